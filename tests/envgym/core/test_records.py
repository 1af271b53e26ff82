"""The frozen record: golden files of the hard cases, the exact masks they imply, and the laws of the tree."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.serialize import segment_from_json, segment_to_json, tree_from_json, tree_to_json
from envgym.core.trajectory import Group, Trajectory, share_counts, trajectories
from envgym.core.tree import Edge, Node, Rewrite, Tree
from envgym.core.turns import Cost, Ending, Invalid, Scored
from envgym.errors import InvalidInput
from tests.support import example_trees as cases

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("build", cases.HARD_CASES, ids=lambda build: build.__name__)
def test_hard_case_equals_its_golden_file(build: Callable[[], Tree]) -> None:
    tree = build()
    path = GOLDEN / f"{tree.id}.json"
    if os.environ.get("ENVGYM_WRITE_GOLDEN"):
        path.write_text(json.dumps(tree_to_json(tree), indent=1) + "\n")
    frozen = json.loads(path.read_text())
    assert tree_to_json(tree) == frozen
    assert tree_from_json(frozen) == tree


@pytest.mark.parametrize("build", cases.HARD_CASES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("version", [1, 2])
def test_a_tree_of_an_older_schema_version_is_read(build: Callable[[], Tree], version: int) -> None:
    tree = build()
    assert tree_from_json(json.loads((GOLDEN / f"version_{version}" / f"{tree.id}.json").read_text())) == tree
    assert (tree.messages, tree.tools) == ((), ())


def test_fork_inside_a_turn_shares_the_sampled_prefix() -> None:
    tree = cases.fork_inside_a_turn()
    # root(1 2 3 | 4) -> middle(10 11) -> {12 13, 20 21}
    assert [node.parent for node in tree.nodes] == [None, 0, 1, 1]
    assert [node.edge.ends_turn for node in tree.nodes] == [False, False, True, True]
    right, wrong = trajectories(tree)
    assert right.rows[0].token_ids == (1, 2, 3, 4, 10, 11, 12, 13)
    assert wrong.rows[0].token_ids == (1, 2, 3, 4, 10, 11, 20, 21)
    assert wrong.rows[0].loss_mask == (False,) * 4 + (True,) * 4
    assert wrong.rows[0].behavior_logprobs == (0.0, 0.0, 0.0, 0.0, -0.10, -0.11, -0.20, -0.21)
    assert wrong.rows[0].turns == (-1, -1, -1, -1, 0, 0, 0, 0)
    assert len(right.turns) == len(wrong.turns) == 1
    assert right.turns[0].nodes == (1, 2)
    # The first four prompt tokens and the two shared sampled tokens lie in both rows.
    assert share_counts([*right.rows, *wrong.rows]) == [(2,) * 6 + (1,) * 2] * 2


def test_branch_after_a_tool_call_masks_the_tool_reply() -> None:
    first, second = trajectories(cases.branch_after_a_tool_call())
    # prompt 1 2 3 4 | sampled 10 11 | glue 5, reply 30 31, glue 4 | sampled 12 13
    assert first.rows[0].token_ids == (1, 2, 3, 4, 10, 11, 5, 30, 31, 4, 12, 13)
    assert first.rows[0].loss_mask == (False,) * 4 + (True, True) + (False,) * 4 + (True, True)
    assert first.rows[0].turns == (-1,) * 4 + (0,) * 6 + (1, 1)
    assert [turn.outcome is not None for turn in second.turns] == [True, True]
    assert first.turns[0].segments == second.turns[0].segments
    assert (first.reward, second.reward) == (
        Scored(value=1.0, components={"answer": 1.0}),
        Scored(value=0.0, components={"answer": 0.0}),
    )


def test_context_rewrite_makes_two_rows_and_trains_nothing_twice() -> None:
    (episode,) = trajectories(cases.context_rewrite())
    before, after = episode.rows
    assert before.token_ids == (1, 2, 3, 4, 10, 11)
    assert after.token_ids == (1, 10, 11, 30, 4, 12, 13)
    assert (before.rewrite, after.rewrite) == (None, Rewrite.TURNS_DROPPED)
    assert before.loss_mask == (False,) * 4 + (True, True)
    assert after.loss_mask == (False,) * 5 + (True, True)
    assert episode.num_sampled == sum(map(sum, (before.loss_mask, after.loss_mask))) == 4


def test_invalid_branch_is_excluded_and_never_zero() -> None:
    group = Group(key="g", trees=(cases.invalid_branch(),))
    assert len(group.trajectories) == 3
    assert [episode.reward for episode in group.valid] == [
        Scored(value=1.0, components={"answer": 1.0}),
        Scored(value=0.0, components={"answer": 0.0}),
    ]
    dead = group.trajectories[2]
    assert dead.reward == Invalid(cause=Ending.ERROR_TOOL_INFRA, reason="sandbox died: killed")
    assert dead.turns[0].outcome is None


def test_injected_hint_does_not_train() -> None:
    (episode,) = trajectories(cases.injected_hint())
    assert episode.rows[0].token_ids == (1, 2, 3, 4, 10, 90, 91, 11)
    assert episode.rows[0].loss_mask == (False,) * 4 + (True, False, False, True)


def test_shared_prefix_keeps_one_node_for_both_signs() -> None:
    first, second = (episode.rows[0] for episode in trajectories(cases.shared_prefix_both_signs()))
    shared = [(row.nodes[4], row.token_ids[4]) for row in (first, second)]
    assert shared[0] == shared[1] == (1, 10)
    assert share_counts([first, second])[0] == (2, 2, 2, 2, 2, 2, 2, 1)


def test_truncated_episode_keeps_its_reward_and_its_cut_turn() -> None:
    (episode,) = trajectories(cases.truncated_episode())
    assert episode.ending is Ending.TRUNCATED_TOKENS
    assert episode.ending.name.startswith("TRUNCATED_")
    assert episode.reward == Scored(value=0.25, components={"answer": 0.25})
    assert [turn.outcome is None for turn in episode.turns] == [False, True]
    assert episode.rows[0].loss_mask == (False,) * 4 + (True, False) + (True,) * 3
    assert episode.tree.cost == Cost(tokens_generated=4, env_steps=1)


def test_likeliest_tokens_of_a_segment_are_kept_in_json() -> None:
    places = (((10, -0.1), (7, -2.5)), ((3, -0.5),))
    segment = replace(cases.policy(10, 11), top_logprobs=places)
    written = json.loads(json.dumps(segment_to_json(segment)))
    assert written["top_logprobs"] == [[[10, -0.1], [7, -2.5]], [[3, -0.5]]]
    assert segment_from_json(written) == segment
    assert "top_logprobs" not in segment_to_json(cases.policy(10, 11))


def test_a_newer_schema_is_refused() -> None:
    data = tree_to_json(cases.injected_hint())
    with pytest.raises(InvalidInput, match=r"schema must be 1\.\.3, got 4"):
        tree_from_json({**data, "schema": 4})


def test_records_that_no_rollout_can_make_are_refused() -> None:
    with pytest.raises(InvalidInput, match="POLICY segment must carry behavior_logprobs"):
        Segment(origin=Origin.POLICY, token_ids=(1,))
    with pytest.raises(InvalidInput, match="belong to POLICY alone"):
        Segment(origin=Origin.TOOL, token_ids=(1,), behavior_logprobs=(0.0,))
    with pytest.raises(InvalidInput, match="must hold at least one id"):
        cases.prompt()
    with pytest.raises(InvalidInput, match="finite"):
        Scored(value=float("nan"))
    with pytest.raises(InvalidInput, match="component answer must be a finite number, got inf"):
        Scored(value=1.0, components={"format": 1.0, "answer": float("inf")})
    with pytest.raises(InvalidInput, match="ERROR_ ending"):
        Invalid(cause=Ending.TERMINATED, reason="no")
    tree = cases.truncated_episode()
    root = tree.nodes[0]
    for nodes, words in [
        ((), "hold at least the root"),
        ((root, Node(parent=1, edge=cases.turn(cases.policy(1)), outcome=cases.paid(1))), "be an earlier node"),
        ((root, Node(parent=0, edge=cases.turn(cases.policy(1)))), "set exactly where the edge ends a turn"),
        ((Node(parent=None, edge=Edge(segments=(cases.policy(1),), ends_turn=False)),), "hold only the prompt"),
        ((*tree.nodes, Node(parent=2, edge=tree.nodes[2].edge)), "not have ended its episode"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            Tree(id="t", env_id="e", task_id="k", task_key="k", split=tree.split, seed=0, nodes=nodes)
    with pytest.raises(InvalidInput, match="leaf must be one of"):
        Trajectory(tree=tree, leaf=0)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_splitting_an_edge_changes_no_row_and_no_cost(first: int, second: int, data: st.DataObject) -> None:
    def build() -> tuple[TreeBuilder, int]:
        tree = cases.start("split")
        edge = cases.turn(cases.policy(*range(10, 10 + first)), cases.tool(*range(50, 50 + second)))
        return tree, tree.add(tree.root, edge, outcome=cases.paid(1.0), ending=Ending.TERMINATED)

    whole, _ = build()
    cut, handle = build()
    cut.split(handle, data.draw(st.integers(1, first + second - 1)))
    (before,), (after,) = trajectories(whole.freeze()), trajectories(cut.freeze())
    assert before.rows[0].token_ids == after.rows[0].token_ids
    assert before.rows[0].loss_mask == after.rows[0].loss_mask
    assert before.rows[0].behavior_logprobs == after.rows[0].behavior_logprobs
    assert before.rows[0].turns == after.rows[0].turns
    assert before.reward == after.reward
    assert before.tree.cost == after.tree.cost
    assert [turn.outcome for turn in before.turns] == [turn.outcome for turn in after.turns]


@given(st.data())
def test_share_counts_sum_to_one_per_tree_token(data: st.DataObject) -> None:
    """Weights 1/k over all rows count every tree token once (rows without rewrites)."""
    tree = cases.start("random")
    open_nodes, token = [tree.root], 100
    for _ in range(data.draw(st.integers(1, 8))):
        parent = data.draw(st.sampled_from(open_nodes))
        size = data.draw(st.integers(1, 3))
        edge = cases.turn(cases.policy(*range(token, token + size)))
        token += size
        open_nodes.append(tree.add(parent, edge, outcome=cases.paid(0.0)))
    for handle in range(1, len(tree)):
        if all(tree[other].parent != handle for other in range(len(tree))):
            tree.end(handle, Ending.TERMINATED)
    frozen = tree.freeze()
    rows = [row for episode in trajectories(frozen) for row in episode.rows]
    weight = sum(1 / count for counts in share_counts(rows) for count in counts)
    assert weight == pytest.approx(sum(node.edge.num_tokens for node in frozen.nodes))
