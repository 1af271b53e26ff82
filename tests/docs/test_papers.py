"""The page of papers is what its rows say, and rows name files, tests and plug-ins that exist."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.errors import SettingsError
from scripts import papers

ROW = {
    "paper": "GAE: an exponential mean",
    "files": ["trainer/methods/credit/gae.py"],
    "settings": "`credit.name=gae_token`",
    "deviations": "none",
    "status": "works",
    "tests": ["tests/trainer/methods/credit/test_gae.py::test_published_vector_of_gae_token"],
}


def row(**changes: Any) -> papers.Row:
    return papers.Row.model_validate({**ROW, **changes})


def test_page_is_what_its_rows_say() -> None:
    sections = papers.read_rows()
    assert papers.faults_of(sections) == []
    assert papers.missing(sections) == []
    assert papers.render(sections) == papers.PAGE.read_text(encoding="utf-8"), "run `python scripts/papers.py`"


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"files": ["trainer/methods/credit/gone.py"]}, "files must exist, got trainer/methods/credit/gone.py"),
        ({"tests": ["tests/docs/test_papers.py::test_gone"]}, "tests/docs/test_papers.py::test_gone"),
        ({"tests": ["tests/docs/test_papers.py::row"]}, "tests/docs/test_papers.py::row"),
        ({"tests": ["tests/docs/test_gone.py::test_it"]}, "tests/docs/test_gone.py::test_it"),
        ({"settings": "`credit.name=gone`"}, "credit.name=gone"),
        ({"settings": "`gone.name=gae_token`"}, "gone.name=gae_token"),
        ({"settings": "`search: {name: gone}`"}, "search.name=gone"),
        ({"settings": "`recipe=gone`"}, "recipe.name=gone"),
        ({"plugins": ["wrapper.gone"]}, "wrapper.name=gone"),
        ({"status": "part"}, "missing must be given with status part only, got '' with part"),
        ({"missing": "the critic"}, "missing must be given with status part only, got 'the critic' with works"),
        ({"settings": "`credit.name=gigpo`"}, "every plug-in of the row, got none that names credit.name=gigpo"),
        ({"settings": "`recipe=ppo`"}, "every plug-in of the row, got none that names recipe.name=ppo"),
    ],
)
def test_what_a_row_names_exists(changes: dict[str, Any], named: str) -> None:
    assert papers.faults_of({"credit": {"gae": row()}}) == []
    [fault] = papers.faults_of({"credit": {"gae": row(**changes)}})
    assert fault.startswith("docs/papers/credit.toml [gae]: ")
    assert fault.endswith(named)


def test_a_row_without_a_status_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "ROWS", tmp_path)
    lines = "\n".join(f"{key} = {value!r}" for key, value in ROW.items() if key != "status")
    (tmp_path / "credit.toml").write_text(f"[gae]\n{lines}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"status must be set, got nothing \(credit\.toml \[gae\]\)"):
        papers.read_rows()


def test_other_tests_of_a_file_name_no_plug_in_for_a_test() -> None:
    path = "tests/trainer/methods/credit/test_outcome_credit.py"
    assert "Rloo" in papers.names_in(f"{path}::test_published_vector_of_rloo")
    assert "Rloo" not in papers.names_in(f"{path}::test_published_vector_of_grpo")
    assert "RECIPE" in papers.names_in("tests/trainer/test_recipes.py::test_recipe_trains")


def test_page_has_the_status_of_a_row_and_what_is_missing() -> None:
    part = row(status="part", missing="the critic")
    [line] = [line for line in papers.render({"credit": {"gae": part}}).splitlines() if line.startswith("| GAE: ")]
    assert line.split(" | ")[1] == "part"
    assert line.split(" | ")[4] == "none. Missing: the critic"


def test_every_name_of_our_tables_has_a_row_or_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = papers.read_rows()
    credit = papers.KINDS["credit"]
    monkeypatch.setitem(papers.KINDS, "credit", replace(credit, table={**credit.table, "new": "a:B"}))
    assert papers.missing(sections) == ["credit new must have a row in docs/papers/, or stand in _own.toml"]
    with_row = {**sections, "more": {"new": row(settings="`credit.name=new`")}}
    assert papers.missing(with_row) == []
    in_vain = {**with_row, "other": {"keep": row(settings="`filter.name=keep_all`")}}
    assert papers.missing(in_vain) == ["_own.toml must name what a table has and no row, got filter.keep_all"]


def test_status_is_of_the_rows_whose_paper_begins_with_the_name() -> None:
    assert row(paper="DPO: pairs").answers("DPO")
    assert not row(paper="DPO+: pairs").answers("DPO")
    assert not row(paper="Step-DPO: pairs").answers("DPO")
    sections = {"losses": {"a": row(paper="GSPO: ratios"), "b": row(paper="SIREN", status="part", missing="its mask")}}
    page = papers.render(sections)
    status = {
        line.split(" | ")[1].partition(" (")[0]: line.split(" | ")[2]
        for line in page.split("## Status")[1].splitlines()
        if " | " in line
    }
    assert (status["GSPO"], status["SIREN"], status["CISPO"]) == ("works", "part", "not built")


def test_bad_row_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "ROWS", tmp_path)
    (tmp_path / "credit.toml").write_text('[gae]\npaper = "GAE"\nfile = "x.py"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"credit\.toml \[gae\]"):
        papers.read_rows()
