"""Ids of environments and what makes each: the built-in catalogue, third-party entry points, and `register`.

Every id is also in Gymnasium's registry as a lazy string, so `gymnasium.make("envgym:math/arithmetic-v0")` works.
Nothing here imports an environment before it is made.
"""

import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import gymnasium

from envgym.config.arguments import check_kwargs, parameters
from envgym.config.file_imports import NoSuchClass, broken_code, check_class_is_named, suggest_class
from envgym.config.protocol_checks import return_type
from envgym.errors import EnvgymError, InvalidInput, check_known

if TYPE_CHECKING:
    from envgym.env import Env

FAMILIES = ("math", "code", "data", "search", "web", "puzzles", "tools")
"""Namespaces of the built-in environments; a third party may take any other."""
ENTRY_POINT_GROUP = "envgym.envs"
"""Entry points of third parties: name = id, value = `module:Class`."""
_ID = re.compile(r"(?P<family>[A-Za-z0-9_-]+)/(?P<name>[A-Za-z0-9_.-]+)-v(?P<version>\d+)")
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MODULE_ID = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<id>[\w-]+/[\w.-]+)", re.ASCII)
_FILE = re.compile(r".+\.py:[A-Za-z_]\w*")
_REMOTE = re.compile(r"https?://[^/\s]+/(?=.)")
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)")
_REMOTE_ENV = "envgym.serving.remote_env:RemoteEnv"
_RENDER_MODE = "render_mode"
_MAKE = f"{__name__}:make"
"""What Gymnasium calls to make any of our environments."""
_CATALOG = Path(__file__).parent / "envs" / "catalog.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One id and how to make its environment."""

    id: str
    entry_point: str
    """`module:Class`, or `module:function` that returns an env."""
    origin: str
    """`envgym`, the distribution that brought the entry point, or `register`."""
    summary: str = ""
    max_turns: int | None = None
    requires: str | None = None
    """Extra of envgym that the environment needs."""
    wheel: str | None = None
    """Package that pip installs besides, with --no-deps, as it asks for more than is used."""
    program: str | None = None
    """Program that the environment runs in its sandbox, and that no package of Python brings."""
    install: str | None = None
    """Command that installs it."""
    kwargs: dict[str, Any] = field(default_factory=dict)  # an env's own keyword arguments
    """Passed to the entry point unless the caller passes others."""


_registrations: dict[str, Registration] = {}


def register(
    env_id: str,
    entry_point: str,
    *,
    max_turns: int | None = None,
    summary: str = "",
    **kwargs: Any,  # the env's own keyword arguments
) -> None:
    """Register an environment for this process; `entry_point` is a lazy `module:Class`.

    Raises: InvalidInput: a malformed id or entry point, or an id that names another environment already.
    """
    _add(
        Registration(
            id=env_id, entry_point=entry_point, origin="register", summary=summary, max_turns=max_turns, kwargs=kwargs
        )
    )


def list_ids() -> list[str]:
    """Return every registered id, sorted."""
    return sorted(_registrations)


def find(env_id: str) -> Registration:
    """Return the registration of `env_id`. Raises: UnknownName: there is none; the error lists near ids."""
    check_known("env id", env_id, _registrations, where="registry")
    return _registrations[env_id]


def make(env_id: str, **kwargs: Any) -> "Env[Any]":  # the env's own keyword arguments; every env has its own state type
    """Make the environment `env_id`, without Gymnasium's wrappers.

    `env_id` is a registered id, one after the name of a module that registers it (`module:family/name-v0`, as
    Gymnasium reads it), or the import path `module:Class`, or `path/to/file.py:Class`, of an environment that is not
    registered. A file that has changed since it was imported is imported again. After an address, as in
    `http://127.0.0.1:8700/math/arithmetic-v0`, it is the id of an environment on a server, which `envgym serve` starts.
    An id with another scheme, as in `gymnasium://module:Name-v0`, names an environment of another project; a plug-in of
    the kind `connector` makes it.

    Raises: UnknownName: no such id, or the environment takes no such keyword argument.
        InvalidInput: a value that it refuses, or a package it needs is not installed.
    """
    return maker(env_id)(**kwargs)


def maker(env_id: str) -> Callable[..., "Env[Any]"]:  # as `make`
    """Return a maker of `env_id` from keyword arguments, which uses the code as it is now. Raises: as `make`."""
    entry = _resolve(env_id)
    creator = _load(entry)
    tasks: Any = getattr(creator, "tasks", None)  # whatever the author wrote
    if hasattr(tasks, "current") and tasks.current() is not tasks:  # who has the old ones keeps them
        creator.tasks = tasks.current()  # type: ignore[attr-defined]  # it has them
    return partial(_make, entry, creator)


def _make(entry: Registration, creator: Callable[..., object], **kwargs: Any) -> "Env[Any]":  # as `make`
    arguments = {**_defaults(entry), **kwargs}
    accepted = parameters(creator)
    passed = dict(arguments) if accepted is None or _RENDER_MODE in accepted else _without_render_mode(arguments)
    check_kwargs(entry.id, accepted, passed)
    env = _checked(creator(**passed), entry)
    if _RENDER_MODE in arguments:
        env.unwrapped.render_mode = arguments[_RENDER_MODE]
    env.unwrapped.spec = gymnasium.envs.registration.EnvSpec(
        id=_spec_id(entry),
        entry_point=_MAKE,
        kwargs={"env_id": entry.id, **arguments},
        order_enforce=False,
        disable_env_checker=True,
    )
    return env


def id_of(env: str | Callable[..., object]) -> str:
    """Return the id of an environment: the text itself, or the import path of a class or function that makes it.

    Raises: InvalidInput: a class or function that its import path does not name.
    """
    if isinstance(env, str):
        return env
    from envgym.config.plugins import path_of  # settings are heavy

    module, name = getattr(env, "__module__", ""), getattr(env, "__qualname__", repr(env))
    if getattr(sys.modules.get(module), name, None) is not env:
        must = "be an id, or a class or function that its module has at the top level under its name"
        do = 'pass "my_env.py:MyEnv", or define it in a cell of its own'
        raise InvalidInput.of("environment", must, f"{module}:{name}", where="id", do=do)
    return path_of(env)


def creator_of(env_id: str) -> Callable[..., object]:
    """Return the class or function that makes the environment `env_id`. Raises: as `make`."""
    return _load(_resolve(env_id))


def _resolve(env_id: str) -> Registration:
    """Return the registration of an id, or a new one for an import path, a file with a class, or a URL."""
    if _REMOTE.match(env_id):
        return Registration(id=env_id, entry_point=_REMOTE_ENV, origin="server")
    if match := _SCHEME.fullmatch(env_id):
        if match["scheme"] in ("http", "https"):
            must, do = "have the id of an environment after the address", "append it, as in /math/arithmetic-v0"
            raise InvalidInput.of("id of an environment on a server", must, env_id, where="make", do=do)
        return Registration(id=env_id, entry_point=_connector(match["scheme"], env_id), origin="connector")
    if _FILE.fullmatch(env_id):
        return Registration(id=env_id, entry_point=_import_file(env_id), origin="path")
    if match := _MODULE_ID.fullmatch(env_id):
        _import(match["module"], env_id)
        env_id = match["id"]
    if _PATH.fullmatch(env_id):
        return Registration(id=env_id, entry_point=env_id, origin="path")
    if env_id not in _registrations:
        check_class_is_named(env_id)
    return find(env_id)


def _connector(scheme: str, env_id: str) -> str:
    """Return the import path of what makes the environments of a scheme. Raises: UnknownName: there is none."""
    from envgym.config.tables import KINDS  # settings are heavy

    return KINDS["connector"].path(scheme, where=env_id)


def _without_render_mode(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Leave `render_mode` out: every env renders as text, and `make` sets it where the env does not take it."""
    return {name: value for name, value in kwargs.items() if name != _RENDER_MODE}


def _spec_id(entry: Registration) -> str:
    """Return the id as Gymnasium takes it: of a file its name alone, on a server the one that it has there.

    Of an id with a scheme that is the scheme and the last part of the rest, without credentials.
    """
    env_id = _REMOTE.sub("", entry.id)
    if match := _SCHEME.fullmatch(env_id):
        last = match["rest"].rstrip("/").rpartition("/")[2].rpartition("@")[2]
        return re.sub(r"[^\w:.-]", "_", f"{match['scheme']}:{last}")
    if not _FILE.fullmatch(env_id):
        return env_id
    return re.sub(r"[^\w:.-]", "_", env_id.rpartition("/")[2])


def _import(module_name: str, env_id: str) -> None:
    try:
        import_module(module_name)
    except ImportError as error:
        got, do = f"no {error.name or error}", "check the module before the colon"
        raise InvalidInput.of(f"module {module_name}", "be importable", got, where=env_id, do=do) from error


def _import_file(path: str) -> str:
    """Import `file.py:Class` and return the import path of the class. Raises: InvalidInput: it cannot be imported."""
    from envgym.config.plugins import import_path  # settings are heavy

    try:
        creator = import_path(path)
    except NoSuchClass:
        raise
    except ImportError as error:
        do = "check the path, or work in the folder to which it is relative"
        if isinstance(error, ModuleNotFoundError) and error.name:
            do = f"install {error.name.partition('.')[0]}, or put the module into the folder of the file"
        raise InvalidInput.of("environment", "be importable", path, where=str(error), do=do) from error
    except Exception as error:  # what runs is the user's
        raise broken_code(path, error) from error
    must, do = "be a class or function", "name the class of the environment"
    InvalidInput.unless(callable(creator), path, must, repr(creator), where="make", do=do)
    return f"{creator.__module__}:{path.rpartition(':')[2]}"


def _checked(env: object, entry: Registration) -> "Env[Any]":  # every env has its own state type
    from envgym.env import Env

    if not isinstance(env, gymnasium.Env) or not isinstance(env.unwrapped, Env):
        raise _no_env(entry, type(env))
    return env  # type: ignore[return-value]  # our wrappers forward the whole contract


def _no_env(entry: Registration, result: object) -> InvalidInput:
    got = result.__name__ if isinstance(result, type) else "a function without a return annotation that says so"
    do = "subclass envgym.Env, or annotate what the function returns"
    return InvalidInput.of(entry.id, "make an envgym.Env", got, where=_place(entry), do=do)


def _place(entry: Registration) -> str:
    """Say where the code of an env is, where its id does not."""
    return "make" if entry.origin == "path" else entry.entry_point


def _defaults(entry: Registration) -> dict[str, Any]:
    return dict(entry.kwargs) if entry.max_turns is None else {"max_turns": entry.max_turns, **entry.kwargs}


def _load(entry: Registration) -> Callable[..., object]:
    module_name, _, name = entry.entry_point.partition(":")
    try:
        module = import_module(module_name)
    except ImportError as error:
        missing = error.name or str(error)
        if entry.requires:
            do = f"pip install 'envgym[{entry.requires}]'"
        elif entry.origin == "path":
            do = "check the import path"
        else:
            do = f"install {missing}"
        raise InvalidInput.of(entry.id, "find what it imports", f"no {missing}", where="make", do=do) from error
    except Exception as error:  # what runs is the author's
        raise broken_code(entry.id, error) from error
    if (creator := getattr(module, name, None)) is None:
        do = "define it again first" if module_name == "__main__" else suggest_class(module, name)
        raise InvalidInput.of(entry.id, f"be defined as {name}", "nothing", where=f"module {module_name}", do=do)
    if not callable(creator):
        do = "correct the entry point"
        raise InvalidInput.of(entry.id, "be a class or function", creator, where=_place(entry), do=do)
    if entry.origin in ("server", "connector"):
        return partial(creator, entry.id)
    if entry.origin == "path":  # what is registered, its package answers for
        result = creator if isinstance(creator, type) else return_type(creator)
        result = get_origin(result) or result
        if not (isinstance(result, type) and issubclass(result, gymnasium.Env)):
            raise _no_env(entry, result)
    return creator  # type: ignore[no-any-return]  # a class or function by what was just checked


def _add(entry: Registration) -> None:
    where, do = entry.origin, "rename it, as in math/arithmetic-v0"
    InvalidInput.unless(_ID.fullmatch(entry.id), "env id", "have the form family/name-vN", entry.id, where=where, do=do)
    if not _PATH.fullmatch(entry.entry_point):
        where, do = entry.id, "write it as in my_package.my_module:MyEnv"
        raise InvalidInput.of("entry point", "have the form module:Class", entry.entry_point, where=where, do=do)
    if entry.origin == "envgym" and entry.id.partition("/")[0] not in FAMILIES:
        do = "choose one of " + ", ".join(FAMILIES)
        raise InvalidInput.of("family", "be known", entry.id, where="catalog.toml", do=do)
    old = _registrations.get(entry.id)
    if old is not None:
        if (old.entry_point, old.max_turns, old.kwargs) == (entry.entry_point, entry.max_turns, entry.kwargs):
            return
        where, do = f"held by {old.entry_point} of {old.origin}", "choose another name or version"
        raise InvalidInput.of(f"env id {entry.id}", "be new", entry.entry_point, where=where, do=do)
    _registrations[entry.id] = entry
    gymnasium.register(id=entry.id, entry_point=_MAKE, kwargs={"env_id": entry.id, **_defaults(entry)})


def _catalog() -> Iterator[Registration]:
    for env_id, row in tomllib.loads(_CATALOG.read_text(encoding="utf-8")).items():
        yield Registration(id=env_id, origin="envgym", **row)


def _third_parties() -> Iterator[Registration]:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        yield Registration(
            id=point.name, entry_point=point.value, origin=point.dist.name if point.dist else ENTRY_POINT_GROUP
        )


def _register_all() -> None:
    """Enter the catalogue and every installed entry point; a faulty one of a third party is a warning, not a crash."""
    for entry in _catalog():
        _add(entry)
    for entry in _third_parties():
        try:
            _add(entry)
        except EnvgymError as error:
            text = f"the plug-in {entry.id} of {entry.origin} is left out: {error}"
            warnings.warn_explicit(text, UserWarning, filename=entry.origin, lineno=0)  # no line of ours says more


_register_all()
