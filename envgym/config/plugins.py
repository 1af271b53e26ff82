"""The registry of plug-ins: one kind per choice, and one way to find what a choice names.

A name is one of our table, the name of an entry point in the group `envgym.<kind>`, an import path
`package.module:Class`, or a file `path/to/file.py:Class`. What it names is imported and checked against the kind's
protocols, and called only if it fits them.
"""

import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from typing_extensions import is_protocol

from envgym.config.file_imports import FILE_MODULE, NoSuchClass, check_class_is_named, import_file, read_attribute
from envgym.config.protocol_checks import misfit, return_type
from envgym.config.settings import Settings, apply_overrides, faults, read_value, read_yaml_value, set_value
from envgym.errors import InvalidInput, SettingsError, suggestion, unknown_name

T = TypeVar("T")

_PATH = re.compile(r"(?P<place>.+):(?P<attribute>[A-Za-z_][\w.]*)")


def _or_bare_name(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [whole, {"type": "string"}]


class Choice(Settings):
    """One plug-in of a kind: its name, and its settings beside it. A bare name is a choice without settings."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_or_bare_name)

    name: str
    """A name of ours, `package.module:Class`, `path/to/file.py:Class`, or an entry point in group `envgym.<kind>`."""

    @model_validator(mode="before")
    @classmethod
    def _read_bare_name(cls, data: object) -> object:
        return {"name": data} if isinstance(data, str) else data

    @property
    def settings(self) -> dict[str, Any]:
        """The plug-in's own settings."""
        return dict(self.model_extra or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginKind(Generic[T]):
    """One choice that a run makes: which plug-ins there are, and what each of them must be."""

    name: str
    """Such as `credit`; entry points of the kind are in the group `envgym.credit`."""
    summary: str = ""
    """What the kind chooses, in one sentence."""
    keys: Sequence[str] = ()
    """Settings keys that choose a plug-in of the kind, or a list or mapping of them; as in `settings_reference`."""
    protocols: Sequence[str]
    """Import paths of the protocols, or base classes, of which an instance must meet one."""
    table: Mapping[str, str]
    """Name -> import path of our own plug-ins; nothing is imported before one is asked for."""
    arguments: Sequence[str] = ()
    """Names of what `build` passes before the settings."""
    is_function: bool = False
    """Whether a function with the signature of the protocol's `__call__` is itself a plug-in, without settings."""

    @property
    def title(self) -> str:
        """The name in words, such as `text format`."""
        return self.name.replace("_", " ")

    def names(self) -> list[str]:
        """Return the names of our table, then those of installed entry points."""
        return list(dict.fromkeys([*self.table, *self._entry_points()]))

    def path(self, name: str, *, where: str = "settings") -> str:
        """Return the import path, or file and class, that `name` stands for.

        Raises: UnknownName: no table, no entry point and no path has it; near names are listed. SettingsError: two
            distributions have it.
        """
        if name in self.table:
            return self.table[name]
        if ":" in name:
            return name
        installed = self._entry_points()
        if name in installed:
            points = _installed(f"envgym.{self.name}").select(name=name)
            if len({point.value for point in points}) > 1:
                got = " and ".join(f"{point.value} of {point.dist.name}" for point in points if point.dist)
                do = "write the import path of the one that is meant"
                raise SettingsError.of(f"{self.title} {name}", "be of one plug-in", got, where=where, do=do)
            return installed[name]
        check_class_is_named(name)
        raise unknown_name(self.title, name, [*self.table, *installed], where=where)

    def name_of(self, plugin: object) -> str:
        """Return the name in the table of the class of an object, or its import path."""
        path = path_of(type(plugin))
        return next((name for name, target in self.table.items() if target == path), path)

    def load(self, name: str, *, where: str = "settings") -> Any:  # as `misfit` checked
        """Import what `name` names and check that it is of this kind; it is not called.

        Raises: UnknownName: there is no such name. SettingsError: it cannot be imported, or is of another kind.
        """
        path = self.path(name, where=where)
        plugin = self._import(path)
        reason = self._misfit(plugin)
        if reason is not None:
            names = " or ".join(path.rpartition(":")[2] for path in self.protocols)
            do = f"name a class with the methods of {names}"
            raise SettingsError.of(f"{self.name}.name", f"name a {self.title}", path, where=reason, do=do)
        return plugin

    def build(self, choice: Choice, *arguments: object, where: str = "settings") -> T:
        """Make the plug-in that `choice` names from its settings, which follow `arguments`; `where` gave its name.

        Raises: UnknownName, SettingsError: as `load`, or settings that it refuses.
        """
        return self.maker(choice, where=where)(*arguments)

    def maker(self, choice: Choice, *, where: str = "settings") -> Callable[..., T]:
        """Return a maker of the plug-in from `arguments`, which uses the code as it is now. Raises: as `load`."""
        return partial(self._make, self.load(choice.name, where=where), choice)

    def _make(self, plugin: Any, choice: Choice, *arguments: object) -> T:  # as `load` checked
        place = f"{self.title} {choice.name}"
        if not self.is_called(plugin):
            if choice.settings:
                got, do = ", ".join(choice.settings), "leave them out"
                raise SettingsError.of("settings", "be left out where none are taken", got, where=place, do=do)
            return plugin  # type: ignore[no-any-return]  # `load` checked it
        try:
            return plugin(*arguments, **choice.settings)  # type: ignore[no-any-return]  # `load` checked it
        except InvalidInput:
            raise
        except ValidationError as error:
            model = plugin if isinstance(plugin, type) and issubclass(plugin, BaseModel) else Settings
            raise SettingsError("\n".join(faults(model, error, where=place))) from None
        except (TypeError, ValueError) as error:
            fault = _wrong_keys(plugin, arguments, choice.settings, where=place)
            if fault is not None:
                raise fault from None
            do = "pass the keyword arguments of its class"
            raise SettingsError.of("settings", f"fit {choice.name}", str(error), where=place, do=do) from error

    def _entry_points(self) -> dict[str, str]:
        return {entry.name: entry.value for entry in _installed(f"envgym.{self.name}")}

    def _import(self, path: str) -> Any:  # whatever stands there
        try:
            return import_path(path)
        except Exception as error:  # importing runs code of others, which may raise anything
            where, do = str(error), "write package.module:Class of an installed package, or path/to/file.py:Class"
            if isinstance(error, NoSuchClass):
                where, do = error.reason, error.remedy
            raise SettingsError.of(f"{self.name}.name", "name an importable class", path, where=where, do=do) from error

    def _misfit(self, plugin: object) -> str | None:
        protocols = [import_path(path) for path in self.protocols]
        if isinstance(plugin, type):
            return _uncallable(plugin) or misfit(plugin, protocols)
        if not inspect.isroutine(plugin):
            return misfit(type(plugin), protocols)
        result = return_type(plugin)
        if isinstance(result, type) and misfit(result, protocols) is None:
            return None
        if self.is_function:
            return misfit(plugin, protocols)
        return "a function, whose return annotation must be a class of this kind"

    def is_called(self, plugin: object) -> bool:
        """Return whether a plug-in is a class, or a function that makes one; else it is used as it is."""
        if isinstance(plugin, type) or not inspect.isroutine(plugin):
            return isinstance(plugin, type)
        result = return_type(plugin)
        return isinstance(result, type) and misfit(result, [import_path(path) for path in self.protocols]) is None


def _installed(group: str) -> EntryPoints:
    return _entry_points_of(group, tuple((folder, _modified_ns(folder or os.curdir)) for folder in sys.path))


@lru_cache(maxsize=128)
def _entry_points_of(group: str, path: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Read the entry points of a group, once as long as the folders of the path stay as they are."""
    del path  # of which `sys.path` is the same
    return entry_points(group=group)


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # not there


def read_kinds(path: Path) -> Mapping[str, PluginKind[Any]]:  # each kind makes objects of its own type
    """Read the kinds of a TOML file, by name."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: PluginKind(name=name, **row) for name, row in rows.items()}


def path_of(plugin: Callable[..., object]) -> str:
    """Return the import path of a class or function as settings have it: `package.module:Name`, or `file.py:Name`."""
    place = plugin.__module__
    if place.startswith(FILE_MODULE):
        file = Path(inspect.getfile(plugin))
        place = str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    return f"{place}:{plugin.__qualname__}"


def import_path(path: str) -> Any:  # whatever stands there
    """Import what `package.module:name` or `path/to/file.py:name` names.

    Raises: ImportError: there is no such module or file. NoSuchClass: it has no such class; near names are listed. Or
        whatever the imported code raises.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise ImportError("no module and class with a colon between them")
    place = match["place"]
    module = import_file(Path(place)) if place.endswith(".py") else import_module(place)
    return read_attribute(module, match["attribute"], place=place)


def _wrong_keys(
    plugin: Callable[..., object], arguments: Sequence[object], settings: Mapping[str, Any], *, where: str
) -> SettingsError | None:
    """Return the error of settings that a class or function has no parameter for, or lacks; None if they fit."""
    signature = inspect.signature(plugin)
    takes = list(signature.parameters.values())[len(arguments) :]
    named = [item for item in takes if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    names = [item.name for item in named]
    unknown = (
        [] if any(item.kind is item.VAR_KEYWORD for item in takes) else [key for key in settings if key not in names]
    )
    if unknown:
        do = suggestion(unknown[0], names, otherwise=f"known keys: {', '.join(names)}") if names else "leave it out"
        return SettingsError.of("settings key", "be known", unknown[0], where=where, do=do)
    missing = [item.name for item in named if item.default is item.empty and item.name not in settings]
    if missing:
        do = f"write {missing[0]}: VALUE beside the name"
        return SettingsError.of(missing[0], "be set", "nothing", where=where, do=do)
    return None


def _uncallable(plugin: type) -> str | None:
    if inspect.isabstract(plugin) or is_protocol(plugin):
        return f"{plugin.__name__} is abstract"
    return None


# ---- choices in overrides --------------------------------------------------------------------------------------------


def override_settings(kind: type[Settings], data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return plain data of a kind of settings with every `a.b=value` in place, as `apply_overrides` puts them.

    Another plug-in's name drops the settings of the plug-in before, except those that an earlier override has set. A
    bare name becomes a section, to which a setting is added.

    Raises: SettingsError: an override that leads nowhere.
    """
    merged = deepcopy(dict(data))
    done: list[str] = []
    for override in overrides:
        dotted, _, value = override.partition("=")
        keys = dotted.strip().split(".")
        for depth in range(1, len(keys)):
            path, section = ".".join(keys[:depth]), read_value(merged, ".".join(keys[:depth]))
            if not isinstance(section, str | Mapping) or not _leads_to_choice(kind, keys[:depth]):
                continue
            section = {"name": section} if isinstance(section, str) else section
            name = section.get("name")
            if keys[depth:] == ["name"] and name not in (None, read_yaml_value(value, where=override)):
                section = {key: item for key, item in section.items() if _is_set(f"{path}.{key}", done)}
            set_value(merged, path, dict(section), source=override, where="command line")
        merged = apply_overrides(merged, [override])
        done.append(".".join(keys))
    return merged


def _is_set(path: str, overrides: Sequence[str]) -> bool:
    return any(f"{override}.".startswith(f"{path}.") for override in overrides)


def _leads_to_choice(kind: type[BaseModel], keys: Sequence[str]) -> bool:
    """Return whether a path of settings leads to a choice of a plug-in, or into the settings of one."""
    annotations: list[Any] = [kind]
    for key in keys:
        annotations = [inner for annotation in annotations for inner in _annotations_at(annotation, key)]
    return any(part is Choice for annotation in annotations for part in _parts(annotation))


def _annotations_at(annotation: Any, key: str) -> Iterator[Any]:
    """Yield what annotates a key, or a list entry, of a value."""
    for part in _parts(annotation):
        arguments = get_args(part)
        if part is Choice:
            yield Choice  # of a plug-in's own settings only the plug-in knows more: a name in them is another choice
        elif isinstance(part, type) and issubclass(part, BaseModel) and key in part.model_fields:
            yield part.model_fields[key].annotation
        elif arguments and issubclass(get_origin(part) or object, Mapping | Sequence):
            yield arguments[-1 if issubclass(get_origin(part) or object, Mapping) else 0]


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
