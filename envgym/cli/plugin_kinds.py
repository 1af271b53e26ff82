"""`envgym list --kind` and `envgym recipes`: the kinds of plug-ins, the plug-ins of a kind, what recipes choose."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any, get_origin

from pydantic import BaseModel

from envgym.agents.tables import KINDS as AGENT_KINDS
from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.config.plugins import PluginKind
from envgym.config.reference import SettingKey, read_argument, read_sections
from envgym.config.tables import KINDS as ENV_KINDS
from envgym.errors import EnvgymError, check_known
from envgym.trainer.recipes import RECIPE
from envgym.trainer.tables import KINDS as TRAINER_KINDS

KINDS: Mapping[str, PluginKind[Any]] = {**ENV_KINDS, **AGENT_KINDS, **TRAINER_KINDS}
"""Name -> kind, of every part of the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One plug-in as it is listed."""

    name: str
    path: str
    """Where its class or function is."""
    summary: str
    """First line of its docstring, or why it cannot be loaded."""
    settings: tuple[SettingKey, ...]
    """Its settings, those of sections inside included."""


def list_kinds(*, as_json: bool) -> None:
    """Print the kinds, with the names of their plug-ins."""
    names = {kind.name: kind.names() for kind in KINDS.values()}
    if as_json:
        print_json(names)
        return
    width = max(map(len, names))
    for kind, plugins in names.items():
        echo(styled(f"{kind:<{width}}", "bold"), f" {', '.join(plugins)}")


def list_plugins(kind_name: str, *, as_json: bool) -> None:
    """Print the plug-ins of a kind. Raises: UnknownName: there is no such kind; near names are listed."""
    check_known("kind", kind_name, KINDS, where="envgym list --kind")
    rows = plugin_rows(KINDS[kind_name])
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    echo(styled(KINDS[kind_name].summary, "dim"))
    for row in rows:
        echo(styled(row.name, "bold"), styled(row.path, "dim"), sep="  ")
        echo(f"    {row.summary}")
        for setting in row.settings:
            echo(f"    {setting.key} = {setting.default}", styled(setting.description, "dim"), sep="  ")


def plugin_rows(kind: PluginKind[Any]) -> list[PluginRow]:
    """Return the plug-ins of a kind with their settings."""
    return [_row(kind, name) for name in kind.names()]


def _row(kind: PluginKind[Any], name: str) -> PluginRow:
    path = ""
    try:
        path = kind.path(name)
        plugin = kind.load(name)
    except EnvgymError as error:  # one that is installed and cannot be used hides no other
        return PluginRow(name=name, path=path, summary=str(error), settings=())
    return PluginRow(name=name, path=path, summary=_summary(plugin), settings=_settings(kind, plugin))


def _summary(plugin: Any) -> str:  # a class, a function, or an instance that may have a summary
    is_instance = not (isinstance(plugin, type) or inspect.isroutine(plugin))
    text = getattr(plugin, "summary", None) if is_instance else None
    return (text or inspect.getdoc(plugin) or "").partition("\n")[0]


def _settings(kind: PluginKind[Any], plugin: Any) -> tuple[SettingKey, ...]:  # see `_summary`
    if not kind.is_called(plugin):
        return ()
    if isinstance(plugin, type) and issubclass(plugin, BaseModel):
        return tuple(key for section in read_sections(plugin) for key in section.keys)
    texts = _argument_texts(plugin)
    return tuple(
        read_argument(item, texts.get(name, ""))
        for name, item in inspect.signature(plugin, eval_str=True).parameters.items()
        if item.kind in (item.KEYWORD_ONLY, item.POSITIONAL_OR_KEYWORD)
        and name not in kind.arguments
        and get_origin(item.annotation) is not Callable
    )


def _argument_texts(plugin: Any) -> dict[str, str]:  # a class or a function
    function = plugin.__init__ if isinstance(plugin, type) else plugin  # type: ignore[misc]  # read, not called
    text = inspect.getdoc(function) or ""
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    return {
        name: description[0].upper() + description[1:]
        for name, description in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    }


# ---- envgym recipes -------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this recipe alone")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print what each recipe chooses; as JSON with the defaults of the rest."""
    from envgym.trainer.settings import recipe_settings

    names = RECIPE.names() if args.name is None else [args.name]
    recipes = {name: recipe_settings(name, where="envgym recipes") for name in names}
    if args.json:
        print_json({name: recipe.model_dump(mode="json") for name, recipe in recipes.items()})
        return 0
    for name, recipe in recipes.items():
        echo(styled(name, "bold"))
        echo(fill(RECIPE.load(name).summary, 100, initial_indent="  ", subsequent_indent="  "))
        for point, choices in recipe.model_dump(exclude_none=True, exclude_unset=True).items():
            for choice in choices if isinstance(choices, tuple) else [choices]:
                named = [choice.pop("name")] if "name" in choice else []
                echo(f"  {point:<11}", *named, *(f"{key}={value}" for key, value in choice.items()))
    return 0
