"""What several commands share: their arguments, and how they write text, JSON and colour."""

import argparse
import json
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from envgym.core.json_types import visible, well_formed
from envgym.errors import InvalidInput, SettingsError, near_names
from envgym.runs.trust import names_code
from envgym.runtime.http.access import is_loopback
from envgym.runtime.processes.handles import is_in

if TYPE_CHECKING:
    from envgym.env import Env

_IMPORT_PATH = re.compile(r"([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Parser(argparse.ArgumentParser):
    """A parser whose refusal is one sentence, as every other refusal."""

    commands: Mapping[str, argparse.ArgumentParser] = {}
    """Name of a command -> its parser, if this one has commands."""

    def __init__(self, **options: Any) -> None:  # of ArgumentParser
        super().__init__(**options, exit_on_error=False)
        self.register("type", int, partial(_read, int, "be a whole number"))
        self.register("type", float, partial(_read, float, "be a number"))

    def error(self, message: str) -> NoReturn:
        """Refuse the command line. Raises: InvalidInput."""
        must, do = "be complete and fit together", f"run `{self.prog} --help` for the list of arguments"
        raise InvalidInput.of("arguments", must, f'"{message}"', where=self.prog, do=do)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # Any: argparse's own overloads
        """Refuse what is not known here, where the command's own options can be offered. Raises: InvalidInput."""
        try:
            parsed, unknown = super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            text = f"{error.argument_name or ''} {error.message}".lstrip()
            if not error.message.startswith("must "):  # in argparse's words
                self.error(text)
            do = f"run `{self.prog} --help` for the list of arguments"
            raise InvalidInput(f"{text} ({self.prog}); {do}.") from None
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            near = near_names(unknown[0].partition("=")[0], options) if unknown[0].startswith("-") else []
            do = f"did you mean {' or '.join(near)}?" if near else f"run `{self.prog} --help` for the list of arguments"
            raise InvalidInput.of("argument", "be a known one", " ".join(unknown), where=self.prog, do=do)
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = ", ".join(map(repr, action.choices))
            raise argparse.ArgumentError(action, f"must be one of {choices}, got {value!r}")


def _read(kind: type[float], must: str, text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must {must}, got {text!r}") from None


def at_least_0(text: str) -> int:
    """Read a whole number. Raises: ArgumentTypeError: it is none, or negative."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text}")
    return int(text)


def not_negative(text: str) -> float:
    """Read a number. Raises: ArgumentTypeError: it is none, negative or not finite."""
    with suppress(ValueError):
        if 0 <= (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, got {text}")


def option_of(name: str) -> str:
    """Return the option of an argument's name, such as `--env-set` of `env_set`."""
    return f"--{name.replace('_', '-')}"


def check_options(options: Iterable[str], allowed: Sequence[str], *, where: str, do: str) -> None:
    """Refuse options that mean nothing here. Raises: SettingsError."""
    if others := [option_of(name) for name in options if name not in allowed]:
        must = f"be among {', '.join(map(option_of, allowed))}"
        raise SettingsError.of("options", must, ", ".join(others), where=where, do=do)


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ENV and `--set`."""
    parser.add_argument(
        "env",
        metavar="ENV",
        help="id (math/arithmetic-v0), file (my_env.py:Class) or import path (package.module:Class)",
    )
    add_set_argument(parser)


def add_set_argument(
    parser: argparse.ArgumentParser, text: str = "keyword argument of the environment, such as level=3"
) -> None:
    """Add `--set KEY=VALUE`: what `text` says."""
    help_set = f"{text}; repeatable"
    parser.add_argument("--set", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=help_set)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="write JSON")


def import_from_here(settings: object) -> None:
    """Let import paths lead to the folder one works in; where no setting has one, no module there is ever imported.

    That folder comes last, so that no file in it stands in for a module of Python, envgym or a package, unless a
    setting names a module that is in it.
    """
    here = os.getcwd()
    if names_code(settings) and here not in sys.path:
        is_named = any(is_in([here], root) for root in sorted(set(_module_roots(settings))))
        sys.path.insert(0 if is_named else len(sys.path), here)


def _module_roots(settings: object) -> Iterator[str]:
    """Yield the packages and modules that import paths in settings begin with."""
    if isinstance(settings, dict | list | tuple):
        for part in settings.values() if isinstance(settings, dict) else settings:
            yield from _module_roots(part)
    elif isinstance(settings, str) and (match := _IMPORT_PATH.match(settings)):
        yield match[1]


def process_start() -> float:
    """Return the value of `time.perf_counter()` when this process began, or its value now if that is unknown."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
        ticks = int(after_name.split()[19])  # field 22 of proc(5): ticks from the system's start
    except OSError:
        return time.perf_counter()
    return time.perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def add_trust_argument(parser: "argparse._ActionsContainer") -> None:
    """Add `--trust`."""
    text = "allow a run from elsewhere to use the code, URLs and files that its settings name"
    parser.add_argument("--trust", action="store_true", help=text)


def env_kwargs(settings: list[str]) -> dict[str, Any]:  # the env's own keyword arguments
    """Read `--set KEY=VALUE` arguments. Raises: SettingsError: one of them is malformed."""
    if not settings:
        return {}
    from envgym.config.settings import apply_overrides

    return apply_overrides({}, settings)


def make_env(args: argparse.Namespace) -> "Env[Any]":  # every env has its own state type
    """Make the env that the arguments name."""
    import envgym

    return envgym.make(args.env, **env_kwargs(args.settings))


_json_streams: list[TextIO] = []
"""Where `print_json` writes while a command runs whose standard output is JSON."""


def server_token(host: str, variable: str, *, is_printed: bool = True) -> str | None:
    """Return the token of a server: the user's, else a new one if other machines reach the host, which is printed."""
    token = os.environ.get(variable)
    if token or is_loopback(host):
        return token or None
    token = secrets.token_urlsafe(24)
    if is_printed:
        echo(f"Clients need {variable}={token}", flush=True)
    return token


def print_json(value: object) -> None:
    """Write a JSON value for another program."""
    stream = _json_streams[-1] if _json_streams else None
    echo(well_formed(json.dumps(value, ensure_ascii=False, indent=2)), file=stream, flush=stream is not None)


@contextmanager
def json_alone(*, of_process: bool) -> Iterator[None]:
    """Keep standard output for `print_json`: whatever else is printed goes to standard error.

    What environments, plug-ins and their packages print would break the JSON.

    Args:
        of_process: Redirect the process's own output, so also that of child processes and of C code.
    """
    if not of_process:
        _json_streams.append(sys.stdout)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _json_streams.pop()
        return
    with stdout_of_process(encoding=sys.stdout.encoding, errors=sys.stdout.errors) as stream:
        _json_streams.append(stream)
        try:
            yield
        finally:
            _json_streams.pop()


@contextmanager
def stdout_of_process(*, encoding: str, errors: str | None = None) -> Iterator[TextIO]:
    """Return a stream to standard output; until it ends, what the process and its children print goes to stderr."""
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(stdout_copy), "w", encoding=encoding, errors=errors) as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


class Styled(str):
    """Text that a terminal may obey: it is visible but for the colours that `styled` has put around it."""

    __slots__ = ()


def styled(text: str, *styles: str) -> Styled:
    """Colour `text` where standard output is a terminal and NO_COLOR is not set; all else in it is made visible."""
    printable = visible(text)
    if not text or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return Styled(printable)
    return Styled(f"\033[{';'.join(_STYLES[style] for style in styles)}m{printable}\033[0m")


def echo(*parts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Write as `print` does, with every part that is not `Styled` made visible: models, tools and pages wrote some."""
    texts = (part if isinstance(part, Styled) else visible(str(part)) for part in parts)
    print(*texts, sep=sep, end=end, file=file, flush=flush)
