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


def licence_head(licences: Sequence[str | None]) -> dict[str, str]:
    """Return the licence of all as metadata of a card: nothing if one is unknown, `other` if they differ.

    The Hub takes its own identifiers alone; another licence is `other`, with its name beside it.
    """
    if not licences or None in licences:
        return {}
    names = {str(licence).lower() for licence in licences}
    name = names.pop() if len(names) == 1 else "other"
    return {"license": name} if name in _HUB_LICENCES else {"license": "other", "license_name": name}


_HUB_LICENCES: Final = frozenset({
    "afl-3.0", "agpl-3.0", "apache-2.0", "apple-amlr", "apple-ascl", "artistic-2.0", "bigcode-openrail-m",
    "bigscience-bloom-rail-1.0", "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause",
    "bsd-3-clause-clear", "bsl-1.0", "c-uda", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0",
    "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0",
    "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0",
    "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0", "creativeml-openrail-m",
    "deepfloyd-if-license", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2", "gemma", "gfdl",
    "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "llama2", "llama3", "llama3.1",
    "llama3.2", "llama3.3", "llama4", "lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by", "ofl-1.1",
    "openrail", "openrail++", "osl-3.0", "other", "pddl", "postgresql", "unknown", "unlicense", "wtfpl", "zlib",
})  # fmt: skip
