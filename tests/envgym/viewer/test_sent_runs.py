"""A run that somebody sent: odd numbers, bombs, pipes and endless trees are shown, or refused in time."""

import json
import math
import os
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.viewer import episode_files, viewed_run
from envgym.viewer.episode_files import details_of, read_light
from envgym.viewer.replies import json_reply
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun
from tests.envgym.viewer.conftest import open_read


def newest(run: RunDirectory) -> Path:
    return sorted(run.episode_files())[0]


def rewrite(path: Path, **columns: Any) -> None:
    """Replace columns of a file of episodes; a text is written once, as the dictionary of its column."""
    table = pq.read_table(path)
    for name, value in columns.items():
        place = table.column_names.index(name)
        array = pa.array([value] * len(table), table.schema.field(name).type)
        table = table.set_column(place, table.schema.field(name), array)
    pq.write_table(table, path, compression="zstd", use_dictionary=True)


def test_numbers_that_are_not_finite_are_null() -> None:
    content = {"a": math.nan, "b": [math.inf, (-math.inf, 1.0)], "c": "NaN"}
    assert json.loads(json_reply(content).body) == {"a": None, "b": [None, [None, 1.0]], "c": "NaN"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rewards_and_metrics_that_are_not_finite_are_shown(run: RunDirectory, value: float) -> None:
    rewrite(newest(run), reward=value)
    with (run.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 99, "reward/mean": value, "x": 1.0}) + "\n")
    server = ViewerServer([ViewedRun(run.path)])
    with running(server), httpx.Client(base_url=server.url, timeout=30) as client:
        for path in ("runs", "runs/0/episodes", "runs/0/episodes?sort=reward", "runs/0/groups", "runs/0/metrics"):
            assert client.get(f"/api/{path}").status_code == 200, path


def test_a_few_bytes_that_stand_for_gigabytes_are_refused(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_files, "MAX_LIGHT_BYTES", 4 << 20)
    path = newest(run)
    rewrite(path, invalid_reason="x" * (1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(RunError, match=r"episode file must have at most [\d,]+ bytes of columns without trees, got"):
        read_light(path, "train")
    viewed = ViewedRun(run.path)
    assert "episode file must have at most" in viewed.summary()["problems"][0]


def test_a_tree_that_is_too_long_is_a_sentence(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_files, "MAX_TREE_BYTES", 1000)
    viewed = open_read(run.path)
    problems = [text for text in viewed.columns.table["problem"].to_pylist() if text]
    assert all("tree must have at most 1,000 bytes" in text for text in problems)
    assert len(problems) == len(viewed.columns)


def test_a_tree_of_too_many_nodes_is_a_sentence(viewed: ViewedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_run, "MAX_NODES", 2)
    (row,) = viewed.columns.table.slice(0, 1).to_pylist()
    with pytest.raises(RunError, match=r"tree must have at most 2 nodes to be shown, got"):
        viewed.tree(row["source"], row["step"], row["tree_id"])


@pytest.mark.parametrize(
    "tool_errors,content", [(float("nan"), "5"), (1 << 80, "5"), (-1, "5"), ("x", "5"), (0, "\ud800")]
)
def test_odd_details_of_one_tree_leave_those_of_others(run: RunDirectory, tool_errors: object, content: str) -> None:
    path = newest(run)
    table = pq.read_table(path)
    trees = table["tree"].to_pylist()
    tree = json.loads(trees[3])
    for node in tree["nodes"][1:]:
        node["outcome"] |= {"tool_errors": tool_errors, "action": {**node["outcome"]["action"], "content": content}}
    trees[3] = json.dumps(tree)
    pq.write_table(table.set_column(table.column_names.index("tree"), "tree", pa.array(trees)), path)
    viewed = open_read(run.path)
    rows = viewed.columns.table.to_pylist()
    assert [bool(row["problem"]) for row in rows[:5]] == [False, False, False, tool_errors != 0, False]
    assert all(row["answer"] for row in rows if not row["problem"])


def test_a_column_of_another_type_is_a_problem(run: RunDirectory) -> None:
    path = newest(run)
    table = pq.read_table(path)
    numbers = pa.array(range(len(table)))
    pq.write_table(table.set_column(table.column_names.index("tree_id"), "tree_id", numbers), path)
    summary = ViewedRun(run.path).summary()
    assert "run file must be as envgym wrote it" in summary["problems"][0]


@pytest.mark.parametrize("parent", [0, 1, 2])
def test_parents_in_a_circle_end(parent: int) -> None:
    nodes = [{"parent": 2, "segments": []}, {"parent": parent, "segments": []}, {"parent": 1, "segments": []}]
    assert details_of({"nodes": nodes}, 2).tool_errors == 0


@pytest.mark.parametrize("name", ["episodes", "metrics.jsonl", "config.json"])
def test_a_pipe_in_place_of_a_file_is_a_problem(run: RunDirectory, name: str) -> None:
    path = newest(run) if name == "episodes" else run.path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    summary = ViewedRun(run.path).summary()  # to open a pipe that nobody writes to would take for ever
    if name == "episodes":  # it is no file of episodes
        assert path not in run.episode_files()
    else:
        assert any("regular file" in problem for problem in summary["problems"]), summary["problems"]
