"""Episodes as rows: nothing of a tree is lost, every episode has a row, and a group's fate is told."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from envgym.core.trajectory import Group, trajectories
from envgym.core.tree import Tree
from envgym.runs.episodes import COLUMNS, Advantages, dropped_trees, episode_rows, trees_of
from tests.support.example_trees import HARD_CASES, context_rewrite, invalid_branch, outcome_group, outcome_tree


@pytest.mark.parametrize("case", HARD_CASES)
def test_trees_come_back_from_their_rows(case: Callable[[], Tree]) -> None:
    tree = case()
    assert trees_of(episode_rows([tree], step=3)) == [tree]


@pytest.mark.parametrize("case", HARD_CASES)
def test_every_episode_has_one_row_and_its_tree_is_written_once(case: Callable[[], Tree]) -> None:
    tree = case()
    rows = episode_rows([tree], step=3)
    assert [row["leaf"] for row in rows] == list(tree.leaves)
    assert [row["tree"] is not None for row in rows] == [True] + [False] * (len(rows) - 1)
    assert [row["sampled_tokens"] for row in rows] == [episode.num_sampled for episode in trajectories(tree)]
    assert {row["step"] for row in rows} == {3}


def test_invalid_episode_has_no_reward_but_a_reason() -> None:
    right, wrong, dead = episode_rows([invalid_branch()], step=0)
    assert (right["reward"], wrong["reward"], dead["reward"]) == (1.0, 0.0, None)
    assert (right["invalid_reason"], dead["invalid_reason"]) == (None, "sandbox died: killed")
    assert (json.loads(right["components"]), json.loads(dead["components"])) == ({"answer": 1.0}, {})
    assert dead["ending"] == "ERROR_TOOL_INFRA"


def test_text_that_no_file_holds_is_made_well_formed_and_the_tree_is_kept_as_it_was() -> None:
    tree = replace(invalid_branch(), task_id="cut \ud800 off")
    rows = episode_rows([tree], step=0, dropped={tree.id: "\udfff"})
    assert (rows[0]["task_id"], rows[0]["dropped"]) == ("cut \ufffd off", "\ufffd")
    assert all(cell.encode() for row in rows for cell in row.values() if isinstance(cell, str))
    assert trees_of(rows) == [tree]


def test_a_row_has_exactly_the_columns_of_the_table() -> None:
    (row,) = episode_rows([context_rewrite()], step=0)
    assert list(row) == list(COLUMNS)


def test_turns_are_counted_over_the_episode_not_over_its_rows() -> None:
    (row,) = episode_rows([context_rewrite()], step=0)
    assert (row["turns"], row["sampled_tokens"]) == (2, 4)  # 10 11 | 12 13, in two token sequences


def test_advantages_go_to_the_episode_they_belong_to() -> None:
    tree = invalid_branch()
    given: Advantages = {(tree.id, tree.leaves[0]): (0.0, 0.5), (tree.id, tree.leaves[1]): (0.0, (-0.5, -0.25))}
    rows = episode_rows([tree], step=0, advantages=given)
    assert [row["advantages"] and json.loads(row["advantages"]) for row in rows] == [
        [0.0, 0.5],
        [0.0, [-0.5, -0.25]],
        None,
    ]


def test_dropped_groups_name_the_filter_in_every_tree() -> None:
    kept, flat = outcome_group(1.0, 0.0), Group(key="flat", trees=(outcome_tree("t8", 1.0), outcome_tree("t9", 1.0)))
    dropped = dropped_trees([(flat, "zero_variance")])
    assert dropped == {"t8": "zero_variance", "t9": "zero_variance"}
    rows = episode_rows([*kept.trees, *flat.trees], step=0, dropped=dropped)
    assert [row["dropped"] for row in rows] == [None, None, "zero_variance", "zero_variance"]
