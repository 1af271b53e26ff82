"""The choice of a sandbox by name: a plug-in that runs programs, starts machines, or does both."""

import inspect
from typing import TYPE_CHECKING, Any

from envgym.errors import InvalidInput
from envgym.sandbox.records import Sandbox

if TYPE_CHECKING:
    from envgym.sandbox.machines.records import MachineBackend

_OFFERS = {"programs": ("run",), "machines": ("build", "start", "why_unavailable")}


def make_sandbox(name: str = "bwrap", *, unsafe: bool = False) -> Sandbox:
    """Make a sandbox that runs single programs.

    Args:
        name: a plug-in of the kind `sandbox`, such as `bwrap` or `my_sandbox.py:MySandbox`. What follows the name of a
            table's or an entry point's plug-in is its first argument, as in `docker:IMAGE` and `remote:URL`.
        unsafe: passed on to a plug-in that has an argument of this name, as `local` has.

    Raises: UnknownName: no such back-end. InvalidInput: it runs no programs, or refuses its argument.
    """
    back_end: Sandbox = _make(name, "programs", unsafe=unsafe)
    return back_end


def make_machines(name: str = "docker", *, unsafe: bool = False) -> "MachineBackend":
    """Make a back-end that starts machines; arguments and errors are as in `make_sandbox`."""
    back_end: MachineBackend = _make(name, "machines", unsafe=unsafe)
    return back_end


def _make(name: str, offer: str, *, unsafe: bool) -> Any:  # as the kind's protocols say
    from envgym.config.plugins import Choice  # settings are slow to import, and few programs choose by name
    from envgym.config.tables import KINDS

    kind, where = KINDS["sandbox"], f"make_{'sandbox' if offer == 'programs' else offer}"
    prefix, _, argument = name.partition(":")
    arguments = (argument,) if argument and prefix in kind.names() else ()
    plugin_name = prefix if arguments else name
    plugin = kind.load(plugin_name, where=where)
    has_unsafe = kind.is_called(plugin) and "unsafe" in inspect.signature(plugin).parameters
    settings = {"unsafe": unsafe} if has_unsafe else {}
    back_end = kind.build(Choice(name=plugin_name, **settings), *arguments, where=where)
    missing = [method for method in _OFFERS[offer] if not callable(getattr(back_end, method, None))]
    if missing:
        do = f"choose one that does, such as {'bwrap' if offer == 'programs' else 'docker'}"
        raise InvalidInput.of("sandbox", f"offer {offer}", f"{name}, without {missing[0]}", where=where, do=do)
    return back_end
