"""Find a method by name: in our table, by import path (`package.module:Class`), or by entry point."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from envgym.errors import InvalidInput, SettingsError, sentence, unknown_name
from envgym.settings import Settings, faults

T = TypeVar("T")


class Choice(Settings):
    """One method at a plug-in point: its name, and its settings beside it."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A name of ours, `package.module:Class`, or the name of an entry point in group `envgym.<point>`."""

    @property
    def settings(self) -> dict[str, Any]:
        """The method's own settings."""
        return dict(self.model_extra or {})


def resolve(point: str, choice: Choice, table: Mapping[str, Callable[..., T]]) -> T:
    """Build the method that `choice` names. Raises: SettingsError: an unknown name, or settings it refuses."""
    build = _find(point, choice.name, table)
    where = f"{point} {choice.name}"
    try:
        return build(**choice.settings)
    except InvalidInput:
        raise
    except ValidationError as error:
        kind = build if isinstance(build, type) and issubclass(build, BaseModel) else Settings
        raise SettingsError("\n".join(faults(kind, error, where=where))) from None
    except (TypeError, ValueError) as error:
        do = "pass the keyword arguments of its class"
        raise SettingsError(sentence("settings", f"fit {choice.name}", str(error), where=where, do=do)) from None


def _find(point: str, name: str, table: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    if name in table:
        return table[name]
    if ":" in name:
        return _imported(point, EntryPoint(name, name, f"envgym.{point}"))
    others = {entry.name: entry for entry in entry_points(group=f"envgym.{point}")}
    if name in others:
        return _imported(point, others[name])
    raise unknown_name(point, name, [*table, *others], where="settings")


def _imported(point: str, entry: EntryPoint) -> Callable[..., Any]:  # the package vouches for what it makes
    try:
        found = entry.load() if EntryPoint.pattern.match(entry.value) else None
    except (ImportError, AttributeError) as error:
        raise _not_found(point, entry, str(error)) from None
    if not callable(found):
        raise _not_found(point, entry, "no class there")
    return found  # type: ignore[no-any-return]  # callable, as was just checked


def _not_found(point: str, entry: EntryPoint, reason: str) -> SettingsError:
    do = "write package.module:Class, and install the package"
    return SettingsError(sentence(f"{point}.name", "name an importable class", entry.value, where=reason, do=do))
