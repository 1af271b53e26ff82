"""The card of a data set: a README.md whose YAML head the Hugging Face Hub reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES: Final = Path(__file__).with_name("templates")
_SIZES: Final = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(template: str, values: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """Return the text of a card.

    Args:
        template: name of a file in the folder `templates`.
        values: names that the template uses, besides `head`.
        head: metadata; empty values are left out.
    """
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters["cell"] = table_cell
    metadata = {name: value for name, value in head.items() if value not in (None, "", [], {})}
    yaml_head = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    return environment.get_template(template).render(**values, head=yaml_head)


def table_cell(text: object) -> str:
    """Return a text as one cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def size_category(num_rows: int) -> str:
    """Return the category of a number of rows, in the Hub's words."""
    return next((name for limit, name in _SIZES if num_rows < limit), "n>1M")


def hub_licence(licences: Sequence[str | None]) -> str | None:
    """Return the licence of all in the Hub's form, `other` if they differ, None if one is unknown."""
    if not licences or None in licences:
        return None
    names = {str(licence).lower() for licence in licences}
    return names.pop() if len(names) == 1 else "other"
