"""The index says of every episode what its tree says, follows the run, and names what is broken."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envgym.core.trajectory import trajectories
from envgym.report.build import build_episode
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.viewer.episode_files import mean_advantage, read_tree_rows
from envgym.viewer.index import EpisodeIndex
from envgym.viewer.query import EpisodeQuery, GroupQuery, episode_rows, find_episodes, find_groups
from envgym.viewer.viewed_run import ViewedRun
from tests.envgym.viewer.conftest import open_read


def rows_of(index: EpisodeIndex, **query: Any) -> list[dict[str, Any]]:
    columns = index.columns
    return episode_rows(columns, find_episodes(columns, EpisodeQuery(**query)).tolist())


def test_every_row_says_what_the_tree_says(run: RunDirectory, viewed: ViewedRun) -> None:
    rows = {(row["tree_id"], row["leaf"]): row for row in rows_of(viewed.index)}
    saved = run.episodes()
    assert len(rows) == len(saved) > 150
    for tree in trees_of(saved):
        for path in trajectories(tree):
            row, shown = rows[tree.id, path.leaf], build_episode(path, step=1)
            assert (row["question"], row["answer"]) == (shown.question, shown.answer)
            assert row["tool_errors"] == sum(turn.tool_errors for turn in shown.turns)
            assert (row["turns"], row["ending"], row["reward"]) == (len(shown.turns), shown.ending, shown.reward)


def test_what_stands_in_trees_is_not_known_before_they_are_read(run: RunDirectory) -> None:
    index = EpisodeIndex(run)
    index.refresh()
    first = rows_of(index)[0]
    assert (first["question"], first["answer"], first["tool_errors"]) == ("", "", None)
    assert rows_of(index, min_tool_errors=0) == []
    assert index.read_details()
    assert index.num_with_details == len(index.files[-1]), "the newest file comes first"
    while index.read_details():
        pass
    assert index.num_with_details == len(index.columns)


def test_files_that_come_and_go_while_the_run_goes_on(run: RunDirectory, viewed: ViewedRun) -> None:
    index = viewed.index
    before = len(index.columns)
    template = run.episodes([1])
    run.write_episodes(9, [{**row, "step": 9} for row in template])
    index.refresh()
    assert len(index.columns) == before + len(template)
    run.write_episodes(9, [{**template[0], "step": 9}])
    index.refresh()
    assert len(index.columns) == before + 1, "the file was replaced"
    run.forget_after(2)
    index.refresh()
    assert sorted({row["step"] for row in rows_of(index)}) == [1, 2]


def test_broken_row_is_told_and_nothing_else_is_lost(run: RunDirectory) -> None:
    (path,) = (file for file in run.episode_files() if file.name.startswith("step-000002"))
    table = pq.read_table(path)
    trees = table["tree"].to_pylist()
    trees[5] = trees[5][:200]
    trees[6] = json.dumps({"id": table["tree_id"][6].as_py()})
    pq.write_table(table.set_column(table.column_names.index("tree"), "tree", pa.array(trees)), path)
    viewed = open_read(run.path)
    rows = [row for row in rows_of(viewed.index) if row["step"] == 2]
    assert [number for number, row in enumerate(rows) if row["problem"]] == [5, 6]
    assert rows[5]["problem"].startswith("run file must be as envgym wrote it, got JSONDecodeError")
    assert f"{path}, row 5" in rows[5]["problem"]
    assert rows[5]["reward"] is not None, "what stands in other columns is shown"
    with pytest.raises(ValueError, match="run file must be as envgym wrote it"):
        viewed.episode("train", 2, rows[5]["tree_id"], rows[5]["leaf"])
    assert viewed.episode("train", 2, rows[4]["tree_id"], rows[4]["leaf"])["turns"]


def test_file_without_a_row_does_not_end_the_reading(run: RunDirectory) -> None:
    run.write_episodes(9, [])
    viewed = open_read(run.path)
    assert viewed.index.num_with_details == len(viewed.index.columns) > 150


@pytest.mark.parametrize("damage", ["cut", "no columns", "empty"])
def test_broken_file_is_told_and_the_others_are_shown(run: RunDirectory, damage: str) -> None:
    (path,) = (file for file in run.episode_files() if file.name.startswith("step-000001"))
    whole = path.read_bytes()
    if damage == "no columns":
        pq.write_table(pa.table({"step": [1]}), path)
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"")
    viewed = ViewedRun(run.path)
    summary = viewed.summary()
    (problem,) = summary["problems"]
    assert str(path) in problem
    assert problem.endswith("restore it, or move it to another folder.")
    assert {row["step"] for row in rows_of(viewed.index)} == {2, 3, 4}
    path.write_bytes(whole)
    viewed.index.refresh()
    assert viewed.index.problems == []


def test_only_row_groups_with_the_tree_are_read(run: RunDirectory, viewed: ViewedRun, tmp_path: Path) -> None:
    rows = run.episodes()
    path = run.write_episodes(7, [{**row, "step": 7} for row in rows])
    for size in (1, 7, 1000):
        pq.write_table(pq.read_table(path), path, row_group_size=size)
        index = EpisodeIndex(run)
        index.refresh()
        file = index.files[-1]
        for row in (0, 100, len(rows) - 1):
            found = read_tree_rows(file, row)
            assert {item["tree_id"] for item in found} == {rows[row]["tree_id"]}
            assert len(found) == sum(item["tree_id"] == rows[row]["tree_id"] for item in rows)
            assert found[0]["tree"] is not None


def test_groups_have_the_mean_and_the_spread_of_their_valid_rewards(run: RunDirectory, viewed: ViewedRun) -> None:
    total, groups = find_groups(viewed.columns, GroupQuery(limit=200))
    assert total == len(groups)
    saved = run.episodes()
    for group in groups:
        prefix = group["group"].split("/", 2)[2]
        own = [row for row in saved if row["step"] == group["step"] and row["tree_id"].rpartition("/")[0] == prefix]
        valid = [row["reward"] for row in own if row["reward"] is not None]
        assert (group["episodes"], group["valid"]) == (len(own), len(valid))
        assert group["mean"] == pytest.approx(sum(valid) / len(valid))
        assert group["spread"] == pytest.approx(max(valid) - min(valid))
    equal = find_groups(viewed.columns, GroupQuery(spread="none", limit=200))[1]
    assert [item["group"] for item in equal] == [item["group"] for item in groups if item["spread"] == 0]
    differing = find_groups(viewed.columns, GroupQuery(spread="some", limit=200))[1]
    assert [item["group"] for item in differing] == [item["group"] for item in groups if item["spread"] > 0]
    assert equal
    assert differing
    by_mean = find_groups(viewed.columns, GroupQuery(sort="mean", descending=True, limit=5))[1]
    assert [item["mean"] for item in by_mean] == sorted((item["mean"] for item in groups), reverse=True)[:5]


def test_mean_advantage_is_over_nodes_and_tokens_below_the_root() -> None:
    assert mean_advantage("[0.0, 1.0, [2.0, 3.0]]") == 2.0  # (1 + 2 + 3) / 3
    for text in (None, "", "[0.0]", "{", "3"):
        assert math.isnan(mean_advantage(text))
