"""Find a method by name: in our table, by import path (`package.module:Class`), or by entry point."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError

from envgym.errors import SettingsError, sentence, unknown_name
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
    except ValidationError as error:
        assert isinstance(build, type), "only a pydantic model raises this"
        raise SettingsError("\n".join(faults(build, error, where=where))) from None
    except TypeError as error:
        do = "pass the keyword arguments of its class"
        raise SettingsError(sentence("settings", f"fit {choice.name}", str(error), where=where, do=do)) from None


def _find(point: str, name: str, table: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    if name in table:
        return table[name]
    if ":" in name:
        imported: Callable[..., T] = _import(point, name)
        return imported
    others = {entry.name: entry for entry in entry_points(group=f"envgym.{point}")}
    if name in others:
        found: Callable[..., T] = others[name].load()
        return found
    raise unknown_name(point, name, [*table, *others], where="settings")


def _import(point: str, path: str) -> Any:  # whatever the path names
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        do = "write package.module:Class, and install the package"
        raise SettingsError(
            sentence(f"{point}.name", "name an importable class", path, where=str(error), do=do)
        ) from None
