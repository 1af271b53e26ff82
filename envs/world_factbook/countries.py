"""Countries as the pages describe them: numbers, names that belong to one alone, links to others, what is not said."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from envgym.envs.world_factbook.fields import FieldValue, field_of, load_fields
from envgym.envs.world_factbook.pages import plain
from envgym.retrieval import Document


class LineReference(NamedTuple):
    """A line of a page; None stands for the page as a whole."""

    page: str
    line: int | None


class NumberFact(NamedTuple):
    """A number, and the line that says it."""

    reading: FieldValue
    place: LineReference


class NameFact(NamedTuple):
    """A name, and the line that says it."""

    text: str
    place: LineReference
    year: int | None = None


class Country(NamedTuple):
    """One country, as far as questions go."""

    name: str
    accepted: tuple[str, ...]
    """What counts as its name in an answer."""
    facts: Mapping[tuple[str, int | None], NumberFact]
    """(field, year) -> fact."""
    names: Mapping[str, NameFact]
    """capital, internet, prefix, peak."""
    links: Mapping[str, NameFact]
    """border, exports -> name of the country on the other side."""
    lacks: Mapping[str, LineReference]
    """Field of which nothing is said -> page where it would be."""


_Lines = Mapping[tuple[str, str], tuple[str, LineReference]]
"""(section, label in lower case) -> text, place."""

_CAPITALIZED = r"[^\W\d_a-z][\w'\u2019. -]*"
_NAMES: Mapping[str, tuple[str, str, re.Pattern[str]]] = {
    "capital": ("Government", "capital: name", re.compile(rf"(?P<name>{_CAPITALIZED})")),
    "internet": ("Communications", "internet country code", re.compile(r"(?P<name>\.[a-z]{2})")),
    "prefix": (
        "Transportation",
        "civil aircraft registration country code prefix",
        re.compile(r"(?P<name>[A-Z][A-Z0-9]|[A-Z0-9][A-Z])"),
    ),
    "peak": ("Geography", "elevation: highest point", re.compile(rf"(?P<name>{_CAPITALIZED}?) -?[\d,]+ m")),
}
"""Kind -> section, label, what the whole text must be."""
_LINKS: Mapping[str, tuple[str, str, str, re.Pattern[str]]] = {
    "border": (
        "Geography",
        "land boundaries: border countries",
        "; ",
        re.compile(r"(?P<name>[^\d;()]+?) (?P<number>\d[\d,]*(?:\.\d+)?) km"),
    ),
    "exports": (
        "Economy",
        "exports - partners",
        ", ",
        re.compile(r"(?P<name>[^\d,()]+?) (?P<number>\d+(?:\.\d+)?)%(?: \((?P<year>20\d\d)\))?"),
    ),
}
"""Kind -> section, label, what stands between the items, what each whole item must be."""
FORMS = ("country name: conventional short form", "country name: conventional long form")
ALIASES = {
    "Burma": ("Myanmar",),
    "Czechia": ("Czech Republic",),
    "Côte d'Ivoire": ("Ivory Coast",),
    "Democratic Republic of the Congo": ("DRC", "Congo, Democratic Republic of the"),
    "Republic of the Congo": ("Congo, Republic of the", "Congo-Brazzaville"),
    "Turkey": ("Turkiye", "Turkey (Turkiye)"),
    "United Arab Emirates": ("UAE",),
    "United Kingdom": ("UK",),
    "United States": ("USA", "US"),
}


def read_countries(pages: Iterable[Document]) -> list[Country]:
    """Return the countries that questions are about: with a capital and a population, and dependent on no other."""
    entries: dict[str, list[Document]] = defaultdict(list)
    for page in pages:
        entries[page.title.partition(": ")[0]].append(page)
    every = {name: _lines_of(own) for name, own in entries.items()}
    codes = {plain(alias).lower(): name for name, lines in every.items() for alias in _accepted_names(name, lines)}
    names = {name: dict(_names(name, lines)) for name, lines in every.items()}
    counts = Counter((kind, item.text) for own in names.values() for kind, item in own.items())
    return [
        Country(
            name=name,
            accepted=_accepted_names(name, lines),
            facts=dict(_facts(lines)),
            names={kind: item for kind, item in names[name].items() if counts[kind, item.text] == 1},
            links=dict(_links(lines, codes)),
            lacks=dict(_lacks(entries[name])),
        )
        for name, lines in every.items()
        if _is_country(lines)
    ]


def _is_country(lines: _Lines) -> bool:
    needed = {("Government", FORMS[0]), ("Government", "capital: name"), ("People and Society", "population: total")}
    return needed <= set(lines) and ("Government", "dependency status") not in lines


def _lines_of(pages: Sequence[Document]) -> _Lines:
    """Return the lines under every label that they can be read with: `a: b: c` is `b: c` under a, and c under a: b."""
    lines: dict[tuple[str, str], tuple[str, LineReference]] = {}
    for page in pages:
        section = page.title.partition(": ")[2]
        for number, line in enumerate(page.text.split("\n")):
            parts = line.split(": ")
            for cut in range(1, min(len(parts), 4)):
                label, text = ": ".join(parts[:cut]), ": ".join(parts[cut:])
                lines.setdefault((section, label.lower()), (text, LineReference(page.id, number)))
    return lines


def _accepted_names(name: str, lines: _Lines) -> tuple[str, ...]:
    forms = [lines[key][0] for key in (("Government", form) for form in FORMS) if key in lines]
    plausible = [form for form in forms if form.lower() != "none" and not re.search(r"[;()]", form)]
    names = [name, *plausible, *ALIASES.get(name, ())]
    names = [variant for item in names for variant in (item, plain(item))]
    bare = [item.removeprefix("The ").removeprefix("the ") for item in names]
    return tuple(dict.fromkeys(variant for item in bare for variant in (item, f"the {item}")))


def _facts(lines: _Lines) -> Iterator[tuple[tuple[str, int | None], NumberFact]]:
    for (section, label), (text, place) in lines.items():
        field = field_of(section, label)
        reading = field.read(label, text) if field is not None else None
        if field is not None and reading is not None:
            yield (field.name, reading.year), NumberFact(reading, place)


def _names(country: str, lines: _Lines) -> Iterator[tuple[str, NameFact]]:
    """Yield what a country is known by; a name that gives the country away is left out."""
    for kind, (section, label, form) in _NAMES.items():
        text, place = lines.get((section, label), ("", LineReference("", 0)))
        match = form.fullmatch(text)
        if match is not None and country.lower() not in match["name"].lower():
            yield kind, NameFact(match["name"], place)


def _links(lines: _Lines, codes: Mapping[str, str]) -> Iterator[tuple[str, NameFact]]:
    """Yield the first of the linked countries where it is first by more than a rounding, and every item is plain."""
    for kind, (section, label, between, form) in _LINKS.items():
        text, place = lines.get((section, label), ("", LineReference("", 0)))
        items = [form.fullmatch(item) for item in text.split(between)]
        matches = [item for item in items if item is not None]
        if len(matches) < max(2, len(items)):
            continue
        order = sorted(matches, key=lambda item: float(item["number"].replace(",", "")), reverse=True)
        first, second = (float(item["number"].replace(",", "")) for item in order[:2])
        name = codes.get(plain(order[0]["name"]).lower())
        years = [item["year"] for item in matches if "year" in form.groupindex and item["year"]]
        if name is not None and first - second > 0.01 * first + (1.0 if kind == "exports" else 0.0):
            yield kind, NameFact(name, place, int(years[-1]) if years else None)


def _lacks(pages: Sequence[Document]) -> Iterator[tuple[str, LineReference]]:
    """Yield the fields that no line of their page begins with, where nothing else would say it either."""
    texts = {page.title.partition(": ")[2]: (page.id, page.text.lower()) for page in pages}
    for field in load_fields().values():
        page, text = texts.get(field.page, ("", ""))
        if field.may_lack and page and field.root.lower() not in text:
            yield field.name, LineReference(page, None)
