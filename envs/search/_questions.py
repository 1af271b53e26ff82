"""Questions over the countries of one side of the split; each is written together with its answer and its evidence.

A country, with all that is said of it, is on one side. A question uses facts of countries of one side only, so no fact
that a test question needs is needed by a train question.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from envgym.authoring.sources import TaskDraft, task_from_draft
from envgym.core.json_types import JsonValue, canonical
from envgym.core.tasks import Split, Task, split_of
from envgym.envs.world_factbook.countries import Country, LineReference, NumberFact
from envgym.envs.world_factbook.fields import FactbookField, load_fields
from envgym.envs.world_factbook.pages import plain
from envgym.seeds import generator

ItemT = TypeVar("ItemT")
Spec = dict[str, JsonValue]
"""What a question is about, apart from its wording."""

UNKNOWN = "unknown"
"""The answer where the pages do not say."""
GAP = 0.02
"""Numbers that are compared, and thresholds, differ by more than this share, so that rounding decides nothing."""
SIZES: Mapping[str, Mapping[Split, int]] = {
    "one_hop": {Split.TRAIN: 1600, Split.TEST: 320},
    "join": {Split.TRAIN: 1600, Split.TEST: 320},
    "compare": {Split.TRAIN: 1000, Split.TEST: 200},
    "superlative": {Split.TRAIN: 800, Split.TEST: 160},
    "filter_count": {Split.TRAIN: 800, Split.TEST: 160},
    "unanswerable": {Split.TRAIN: 400, Split.TEST: 80},
}
"""Kind -> number of questions of each split."""
KINDS = tuple(SIZES)
MAX_DRAWS = 200
"""Draws for each question that is wanted."""

_ARTICLE = re.compile(
    r"(?:Bahamas|Comoros|Gambia|Holy See|Maldives|Netherlands|Philippines)$|United |.*(?:Republic|Islands|States of)\b"
)
_BRIDGES: Mapping[str, str] = {
    "capital": "the country whose capital is {}",
    "internet": "the country whose internet country code is {}",
    "prefix": "the country whose civil aircraft registration prefix is {}",
    "peak": "the country whose highest point is {}",
    "border": "the country with which {} shares its longest land border",
    "exports": "the country that in {year} bought the largest share of the exports of {}",
}
_NAMES: Mapping[str, str] = {
    "capital": "What is the capital of {}?",
    "internet": "What is the internet country code of {}?",
    "prefix": "What is the civil aircraft registration prefix of {}?",
    "peak": "What is the name of the highest point of {}?",
}


@dataclass(frozen=True, slots=True)
class SplitCountries:
    countries: Mapping[str, Country]
    by_year: Mapping[tuple[str, int | None], Sequence[str]]
    """(field, year) -> countries with this fact; at least six."""

    @property
    def fields(self) -> Sequence[str]:
        return sorted({name for name, _ in self.by_year})

    @classmethod
    def of(cls, countries: Iterable[Country], split: Split) -> "SplitCountries":
        """Take the countries of a split: a fifth is test, by a hash of the name."""
        own = {item.name: item for item in countries if split_of({"country": item.name}) is split}
        by_year: dict[tuple[str, int | None], list[str]] = defaultdict(list)
        for country in own.values():
            for key in country.facts:
                by_year[key].append(country.name)
        return cls(own, {key: names for key, names in sorted(by_year.items(), key=str) if len(names) >= 6})


def with_article(name: str) -> str:
    """Return a country's name as it stands in a sentence."""
    return f"the {name}" if _ARTICLE.match(name) else name


def questions(countries: Sequence[Country], kinds: Sequence[str]) -> list[Task]:
    """Return the questions of the given kinds, train and test; the same ones on every machine."""
    tasks = []
    for split in Split:
        side = SplitCountries.of(countries, split)
        drafts = [draft for kind in kinds for draft in _of_kind(kind, side, split)]
        order = generator("search/factbook", split.value, "order").permutation(len(drafts)).tolist()
        tasks += [task_from_draft(drafts[place], split, f"{split}/{index}") for index, place in enumerate(order)]
    return tasks


def _of_kind(kind: str, side: SplitCountries, split: Split) -> list[TaskDraft]:
    draws, count = generator("search/factbook", kind, split.value), SIZES[kind][split]
    drafts: dict[str, TaskDraft] = {}
    for _ in range(MAX_DRAWS * count):
        draft = _WRITERS[kind](draws, side)
        if draft is not None:
            drafts.setdefault(canonical(draft.payload), draft)
        if len(drafts) == count:
            break
    return list(drafts.values())


# ---- kinds --------------------------------------------------------------------------------------------------------


def _one_hop(rng: np.random.Generator, side: SplitCountries) -> TaskDraft | None:
    country = _pick(rng, list(side.countries.values()))
    if country.names and rng.random() < 0.1:
        kind = _pick(rng, list(country.names))
        return _text("one_hop", kind, with_article(country.name), country, [], {})
    key = _pick(rng, list(country.facts))
    return _number("one_hop", key, with_article(country.name), country, [], {})


def _join(rng: np.random.Generator, side: SplitCountries) -> TaskDraft | None:
    """Describe a country by a name, as the other side of a link, or as the other side for one described by a name."""
    country = _pick(rng, list(side.countries.values()))
    has_name, has_link = ((True, False), (False, True), (True, True))[int(rng.integers(3))]
    links = {kind: item for kind, item in country.links.items() if item.text in side.countries}
    if (has_name and not country.names) or (has_link and not links):
        return None
    phrase, via, places = with_article(country.name), list[JsonValue](), list[LineReference]()
    spec: Spec = {"start": country.name, "via": via}
    asked_before = None
    if has_name:
        asked_before = _pick(rng, list(country.names))
        phrase = _BRIDGES[asked_before].format(country.names[asked_before].text)
        via.append(asked_before)
        places.append(country.names[asked_before].place)
    if has_link:
        kind, asked_before = _pick(rng, list(links)), None
        phrase = _BRIDGES[kind].format(phrase, year=links[kind].year)
        via.append(kind)
        places.append(links[kind].place)
        country = side.countries[links[kind].text]
    names = [kind for kind in country.names if kind != asked_before]
    if names and rng.random() < 0.15:
        return _text("join", _pick(rng, names), phrase, country, places, spec)
    return _number("join", _pick(rng, list(country.facts)), phrase, country, places, spec)


def _extreme(rng: np.random.Generator, side: SplitCountries, kind: str, count: int) -> TaskDraft | None:
    field, year, names, facts = _some(rng, side, count)
    order = sorted(names, key=lambda name: facts[name].reading.value)
    values = [float(facts[name].reading.value) for name in order]
    most = bool(rng.integers(2))
    if not _apart(*(values[-2:] if most else values[:2])):
        return None
    word = ("great" if most else "small") if field.is_size else ("high" if most else "low")
    word += "er" if count == 2 else "est"
    which = "For which of these two countries" if count == 2 else "For which of these countries"
    prompt = f"{which} {_was(year)} {field.noun} {word}{_in(year)}: {_list_names(names, 'or')}?"
    answer = side.countries[order[-1] if most else order[0]]
    spec: Spec = {"field": field.name, "year": year, "countries": [*sorted(names)], "most": most}
    return _draft(kind, prompt, spec, answer.name, answer.accepted, [facts[name].place for name in names])


def _filter_count(rng: np.random.Generator, side: SplitCountries) -> TaskDraft | None:
    """Ask how many of some countries are above, or below, a number that lies between two of theirs."""
    field, year, names, facts = _some(rng, side, int(rng.integers(4, 7)))
    values = sorted(float(facts[name].reading.value) for name in names)
    gaps = [(low, high) for low, high in pairwise(values) if _apart(low, high)]
    limit = _round_between(*_pick(rng, gaps)) if gaps else None
    if limit is None or not all(_apart(*sorted((value, limit))) for value in values):
        return None
    above = bool(rng.integers(2))
    count = str(sum((value > limit) == above for value in values))
    than = f"{'above' if above else 'below'} {limit:,.12g} {_singular_unit(field.unit)}".rstrip()
    prompt = (
        f"For how many of these countries {_was(year)} {field.noun} {than}{_in(year)}: {_list_names(names, 'and')}?"
    )
    spec: Spec = {"field": field.name, "year": year, "countries": [*sorted(names)], "limit": limit, "above": above}
    return _draft("filter_count", prompt, spec, int(count), (), [facts[name].place for name in names])


def _unanswerable(rng: np.random.Generator, side: SplitCountries) -> TaskDraft | None:
    """Ask for a field that the country's pages do not have, or for a year that they do not go back to."""
    country = _pick(rng, list(side.countries.values()))
    if rng.random() < 0.6:
        if not country.lacks:
            return None
        name, year = _pick(rng, list(country.lacks)), None
        page = country.lacks[name].page
    else:
        series = [key for key in country.facts if "{year}" in load_fields()[key[0]].line]
        if not series:
            return None
        name, _ = _pick(rng, series)
        first = min(when for other, when in series if other == name and when is not None)
        year = first - int(rng.integers(3, 13))
        page = country.facts[name, first].place.page
    prompt = _question(load_fields()[name], with_article(country.name), year)
    spec: Spec = {"field": name, "year": year, "countries": [country.name]}
    return _draft("unanswerable", prompt, spec, UNKNOWN, (UNKNOWN,), [LineReference(page, None)])


_WRITERS: Mapping[str, Callable[[np.random.Generator, SplitCountries], TaskDraft | None]] = {
    "one_hop": _one_hop,
    "join": _join,
    "compare": lambda rng, side: _extreme(rng, side, "compare", 2),
    "superlative": lambda rng, side: _extreme(rng, side, "superlative", int(rng.integers(3, 6))),
    "filter_count": _filter_count,
    "unanswerable": _unanswerable,
}


# ---- parts --------------------------------------------------------------------------------------------------------


def _number(
    kind: str, key: tuple[str, int | None], phrase: str, country: Country, places: Sequence[LineReference], spec: Spec
) -> TaskDraft:
    fact, (name, year) = country.facts[key], key
    prompt = _question(load_fields()[name], phrase, year)
    spec = {"field": name, "year": year, "countries": [country.name], **spec}
    value = fact.reading.value
    return _draft(kind, prompt, spec, int(value) if value == int(value) else float(value), (), [*places, fact.place])


def _text(
    kind: str, name: str, phrase: str, country: Country, places: Sequence[LineReference], spec: Spec
) -> TaskDraft:
    fact = country.names[name]
    spec = {"name": name, "countries": [country.name], **spec}
    accepted = tuple(dict.fromkeys((fact.text, plain(fact.text))))
    return _draft(kind, _NAMES[name].format(phrase), spec, fact.text, accepted, [*places, fact.place])


def _draft(
    kind: str,
    prompt: str,
    spec: Spec,
    answer: str | int | float,
    accepted: Sequence[str],
    places: Sequence[LineReference],
) -> TaskDraft:
    """Put a question together: with accepted texts, or with a number."""
    key: dict[str, JsonValue] = {"answer": answer, "accepted": list(accepted)}
    evidence: list[JsonValue] = [list(place) for place in sorted(set(places), key=str)]
    return TaskDraft(
        prompt=prompt,
        payload={"kind": kind, **spec, **key, "evidence": evidence},
        metadata={"kind": kind, "num_facts": len(evidence)},
    )


def _some(
    rng: np.random.Generator, side: SplitCountries, count: int
) -> tuple[FactbookField, int | None, Sequence[str], Mapping[str, NumberFact]]:
    name = _pick(rng, side.fields)
    year = _pick(rng, [year for other, year in side.by_year if other == name])
    names = [str(item) for item in rng.choice(side.by_year[name, year], size=count, replace=False)]
    return load_fields()[name], year, names, {item: side.countries[item].facts[name, year] for item in names}


def _pick(rng: np.random.Generator, items: Sequence[ItemT]) -> ItemT:
    return items[int(rng.integers(len(items)))]


def _apart(low: float, high: float) -> bool:
    return high - low > GAP * max(abs(low), abs(high))


def _round_between(low: float, high: float) -> float | None:
    """Return the number of fewest digits nearest to the middle, at most three; None where there is none between."""
    middle = (low + high) / 2
    rounded = (float(f"{middle:.{digits}g}") for digits in (1, 2, 3))
    return next((number for number in rounded if low < number < high), None)


def _question(field: FactbookField, phrase: str, year: int | None) -> str:
    start = "What is" if year is None else f"In {year}, what was"
    return f"{start} {field.asks.format(phrase)}{f', in {field.unit}' if field.unit else ''}?"


def _was(year: int | None) -> str:
    return "is" if year is None else "was"


def _in(year: int | None) -> str:
    return "" if year is None else f" in {year}"


def _singular_unit(unit: str) -> str:
    """Return a unit after a number: 3 billion US dollars."""
    return re.sub(r"^(million|billion)s(?: of)?\b", r"\1", unit)


def _list_names(names: Sequence[str], last: str) -> str:
    *others, end = (with_article(name) for name in names)
    return f"{', '.join(others)} {last} {end}"
