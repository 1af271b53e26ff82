"""The leaderboard: ranks that respect ties, columns of the same tasks, and a page that shows names as text."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envgym.agents.evaluation.compare import ModelEvaluation
from envgym.agents.evaluation.leaderboard import (
    LeaderboardEntry,
    build_leaderboard,
    rank_models,
    read_entries,
    write_leaderboard,
)
from envgym.cli.main import main
from envgym.errors import InvalidInput, RunError


def solved(num_solved: int, num_tasks: int = 60, *, first: int = 0, invalid: bool = False) -> ModelEvaluation:
    """Return an evaluation that solves so many tasks, from the first one on."""
    value: Sequence[bool | None] = [first <= task < first + num_solved for task in range(num_tasks)]
    return ModelEvaluation(
        name="runs/x",
        env_id="e",
        label="held-out",
        step=0,
        success_at=1.0,
        samples=1,
        successes={f"t{task}": [None if invalid else own] for task, own in enumerate(value)},
        invalid_rate=float(invalid),
        metrics={},
    )


def test_models_that_cannot_be_told_apart_share_a_rank() -> None:
    column = {"a": solved(50), "b": solved(47), "c": solved(15), "d": solved(16, first=2), "e": solved(0)}
    assert rank_models(column) == {"a": 1, "b": 1, "d": 3, "c": 3, "e": 5}
    assert rank_models({"a": solved(3)}) == {"a": 1}
    assert rank_models({"a": solved(3), "b": solved(0, invalid=True)}) == {"a": 1}


def test_rows_are_ordered_by_columns_and_success_and_gaps_stay() -> None:
    entries = [
        LeaderboardEntry("few", "one", solved(60)),
        LeaderboardEntry("low", "one", solved(10)),
        LeaderboardEntry("low", "two", solved(10)),
        LeaderboardEntry("high", "one", solved(40)),
        LeaderboardEntry("high", "two", solved(40)),
    ]
    board = build_leaderboard(entries)
    assert [row.model for row in board.rows] == ["high", "low", "few"]
    assert board.columns == {"one": "60 tasks, 1 sample(s)", "two": "60 tasks, 1 sample(s)"}
    assert list(board.rows[2].cells) == ["one"]
    assert [row.cells["one"].rank for row in board.rows] == [2, 3, 1]


@pytest.mark.parametrize(
    "other, told",
    [
        (
            LeaderboardEntry("a", "one", solved(1)),
            "evaluations must be one for a model and an environment, got runs/x and",
        ),
        (LeaderboardEntry("b", "one", solved(1, 50)), "tasks must be the same in both evaluations"),
        (LeaderboardEntry("b", "one", replace(solved(1), samples=2)), "samples per task must be the same, got"),
        (LeaderboardEntry("b", "one", replace(solved(1), success_at=0.5)), "success_at must be the same, got"),
    ],
)
def test_what_is_not_of_a_column_is_refused(other: LeaderboardEntry, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        build_leaderboard([LeaderboardEntry("a", "one", solved(1)), other])
    with pytest.raises(InvalidInput, match="evaluations must be at least one, got none"):
        build_leaderboard([])


def test_page_shows_names_as_text_and_loads_nothing(tmp_path: Path) -> None:
    entry = LeaderboardEntry("<script>alert(1)</script>", "a & b", solved(30))
    write_leaderboard(build_leaderboard([entry]), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a &amp; b" in page
    assert "50.0% [" in page
    assert "rank 1, invalid 0.0%" in page
    assert not any(word in page for word in ("<script", "http://", "https://", "src=", "href="))


def test_suite_and_run_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = {
        "name": "s",
        "models": ["tiny"],
        "envs": [{"id": "math/arithmetic-v0", "name": "easy", "settings": {"level": 1}}],
        "splits": ["test", "train"],
        "tasks": 2,
        "agent": {"max_turn_tokens": 5},
    }
    (tmp_path / "s.yaml").write_text(json.dumps(suite))
    assert main(["eval", "s.yaml"]) == 0
    entries = read_entries([Path("runs/suite-s")])
    assert [(entry.model, entry.column) for entry in entries] == [("tiny", "easy-test"), ("tiny", "easy-train")]
    capsys.readouterr()
    assert main(["leaderboard", "runs/suite-s"]) == 0
    assert "page: leaderboard.html" in capsys.readouterr().out
    assert main(["leaderboard", "runs/suite-s/cells/easy-test", "--json"]) == 0
    board = json.loads(capsys.readouterr().out)
    assert board["columns"] == {"math/arithmetic-v0, held-out": "2 tasks, 1 sample(s)"}
    assert main(["leaderboard", "runs/suite-s", "--out", "nowhere/page.html"]) == 2
    with pytest.raises(RunError, match="run must be a directory"):
        read_entries([tmp_path / "missing"])
