"""`envgym settings`, `envgym schema`: every key of a settings file, for people, editors and the documentation."""

import argparse
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.errors import check_known

if TYPE_CHECKING:
    from envgym.config.plugins import PluginKind
    from envgym.config.reference import SettingKey, SettingSection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("key", metavar="KEY", nargs="?", help="a section, such as optim, or a key, such as optim.lr")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print all keys, or one, or those of a section."""
    sections = read_settings_file_sections()
    keys = [key for section in sections for key in section.keys]
    if args.key is not None:
        target = re.sub(r"\.\d+(?=\.|$)", ".0", args.key)
        known_keys = {*(key.key for key in keys), *(section.key for section in sections)} - {""}
        check_known("settings key", target, known_keys, where="envgym settings")
        keys = [key for key in keys if f"{key.key}.".startswith(f"{target}.")]
    if args.json:
        print_json([asdict(key) for key in keys])
        return 0
    kinds = kinds_by_key()
    for key in keys:
        kind = kinds.get(key.key)
        names = "" if kind is None else f"one of: {', '.join(kind.names())} (envgym list --kind {kind.name})"
        default = f" = {key.default}" if key.default else ""
        value = ", ".join(filter(None, (key.type, key.range)))
        echo(styled(key.key, "bold"), default, styled(f"  {value}", "dim"), sep="")
        for text in filter(None, (key.description, names)):
            echo(fill(text, 100, initial_indent="    ", subsequent_indent="    "))
    return 0


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "of", metavar="WHAT", nargs="?", choices=("train", "eval"), default="train", help="train or eval"
    )


def run_schema(args: argparse.Namespace) -> int:
    """Print the JSON Schema of a settings file, for editors and other programs."""
    from envgym.agents.settings import EvalSettings
    from envgym.trainer.settings import SettingsFile

    print_json((SettingsFile if args.of == "train" else EvalSettings).model_json_schema())
    return 0


def read_settings_file_sections() -> "list[SettingSection]":
    """Return the sections of a settings file of `envgym train`, those that describe several runs included."""
    from envgym.config.reference import read_sections
    from envgym.trainer.settings import SettingsFile

    return read_sections(SettingsFile)


def kinds_by_key() -> "dict[str, PluginKind[Any]]":
    """Return for every key that chooses a plug-in the kind of it."""
    from envgym.cli.plugin_kinds import KINDS

    return {key: kind for kind in KINDS.values() for key in kind.keys}


# ---- the page of the documentation ----------------------------------------------------------------------------------


def settings_tables() -> str:
    """Return a table for every section, then one for every kind of plug-in, in Markdown."""
    from envgym.cli.plugin_kinds import KINDS

    all_sections = read_settings_file_sections()
    section_keys = {section.key for section in all_sections}
    sections = (line for section in all_sections for line in _section_lines(section, section_keys))
    kinds = (line for kind in KINDS.values() if kind.keys for line in _kind_lines(kind))
    return "\n".join(["## Sections", "", *sections, "## Plug-ins", "", *kinds])


def _section_lines(section: "SettingSection", section_keys: Set[str]) -> Iterator[str]:
    kinds = kinds_by_key()
    yield from (f"### {f'`{section.key}`' if section.key else 'The file'} {{ #{_anchor(section.key)} }}", "")
    yield from (section.summary, "")
    yield from _table_head("key")
    for key in section.keys:
        kind = kinds.get(key.key)
        of_kind = key.type if kind is None else key.type.replace("plug-in", f"[plug-in](#kind-{kind.name})")
        target = key.key if key.key in section_keys else section.key  # a section in one of its own kind has no table
        links = of_kind.replace("section", f"[section](#{_anchor(target)})")
        yield _row(key, links)
    yield ""


def _kind_lines(kind: "PluginKind[Any]") -> Iterator[str]:
    from envgym.cli.plugin_kinds import plugin_rows

    chosen_by = " or ".join(f"`{key}`" for key in kind.keys)
    yield from (f"### {kind.title} {{ #kind-{kind.name} }}", "", f"{kind.summary} Chosen by {chosen_by}.", "")
    yield from _table_head("plug-in and its settings")
    for plugin in plugin_rows(kind):
        yield _cells(f"**`{plugin.name}`**", "", "", plugin.summary)
        for key in plugin.settings:
            yield _row(key, key.type)
    yield ""


def _anchor(key: str) -> str:
    """Return the id of a section's heading; a list or a mapping of sections is one section."""
    return "-".join(["section", *(part for part in key.split(".") if part not in ("0", "NAME", ""))])


def _table_head(first: str) -> Sequence[str]:
    return _cells(first, "value", "default", "meaning"), "|---|---|---|---|"


def _row(key: "SettingKey", kind: str) -> str:
    value = ", ".join(filter(None, (kind, key.range)))
    return _cells(f"`{key.key}`", value, f"`{key.default}`" if key.default else "", key.description)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
