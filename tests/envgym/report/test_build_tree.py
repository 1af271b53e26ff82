"""Trees as a report shows them: every number is that of the record."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import trajectories
from envgym.core.tree import SearchStats, Tree
from envgym.core.turns import Cost, Ending
from envgym.errors import InvalidInput
from envgym.report.data import NodeData, to_json
from envgym.report.trees import build_tree
from tests.envgym.report.search_tree import PRUNED, outcome_advantages, search_tree
from tests.support import example_trees

CASES = [*(make() for make in example_trees.HARD_CASES), search_tree(60)]
EVERY_TREE = pytest.mark.parametrize("tree", CASES, ids=lambda tree: tree.id)


def token_advantages(node: NodeData) -> list[float]:
    return [value for segment in node.content.segments for value in segment.advantages]


@EVERY_TREE
def test_what_a_search_knew_and_what_an_edge_cost_are_as_recorded(tree: Tree) -> None:
    shown = build_tree(tree, step=1)
    assert [node.stats for node in shown.nodes] == [node.stats for node in tree.nodes]
    assert [node.cost for node in shown.nodes] == [node.edge.cost for node in tree.nodes]
    assert sum((node.cost for node in shown.nodes), Cost()) == shown.cost == tree.cost
    assert [node.parent for node in shown.nodes] == [node.parent for node in tree.nodes]
    assert [(node.ending, node.error) for node in shown.nodes] == [(n.ending, n.error or "") for n in tree.nodes]


@EVERY_TREE
def test_turns_are_numbered_as_in_the_episodes(tree: Tree) -> None:
    shown = build_tree(tree, step=1).nodes
    assert shown[0].turn == -1
    for episode in trajectories(tree):
        for turn in episode.turns:
            assert {shown[node].turn for node in turn.nodes} == {turn.index}
            said = shown[turn.nodes[-1]].content
            assert said.action == ("" if turn.outcome is None else str(turn.outcome.action))


@EVERY_TREE
def test_episodes_of_a_node_are_its_own_and_those_of_its_children(tree: Tree) -> None:
    shown = build_tree(tree, step=1).nodes
    for index, node in enumerate(shown):
        below = [shown[child] for child in tree.children[index]]
        assert node.num_episodes == (index in tree.leaves) + sum(child.num_episodes for child in below)
        rewards = [node.mean_reward] * node.num_valid if index in tree.leaves else []
        rewards += [child.mean_reward for child in below for _ in range(child.num_valid)]
        known = [reward for reward in rewards if reward is not None]
        assert len(known) == node.num_valid
        expected = sum(known) / len(known) if known else None
        assert node.mean_reward == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_invalid_episode_counts_but_has_no_part_in_the_mean() -> None:
    shown = build_tree(example_trees.invalid_branch(), step=1).nodes
    # Rewards 1, 0 and one that does not exist.
    assert (shown[0].num_episodes, shown[0].num_valid, shown[0].mean_reward) == (3, 2, 0.5)
    assert (shown[3].num_episodes, shown[3].num_valid, shown[3].mean_reward) == (1, 0, None)
    assert (shown[3].ending, shown[3].error) == (Ending.ERROR_TOOL_INFRA, "sandbox died: killed")


def test_episode_that_a_search_cut_is_shown_and_not_counted() -> None:
    tree = example_trees.fork_inside_a_turn()  # paid 1.0 at node 2 and 0.0 at node 3
    nodes = list(tree.nodes)
    nodes[2] = replace(nodes[2], stats=SearchStats(pruned="not among the kept leaves"))
    shown = build_tree(replace(tree, nodes=tuple(nodes)), step=1).nodes
    assert [(node.num_episodes, node.mean_reward) for node in shown] == [(1, 0.0), (1, 0.0), (0, None), (1, 0.0)]
    assert (shown[2].ending, shown[2].content.reward, shown[2].content.action) == (Ending.TERMINATED, 1.0, "done")


def test_shared_tokens_show_the_mean_advantage_of_their_episodes() -> None:
    tree = example_trees.fork_inside_a_turn()  # root, the shared tokens 10 11, then 12 13 (leaf 2) and 20 21 (leaf 3)
    shown = build_tree(tree, step=1, advantages={2: (0.0, 0.5, (1.0, -0.5)), 3: (0.0, (-0.25, -1.0), 2.0)}).nodes
    assert [node.advantages for node in shown] == [{}, {2: 0.5, 3: -0.625}, {2: 0.25}, {3: 2.0}]
    # (0.5 - 0.25) / 2 and (0.5 - 1) / 2
    assert [token_advantages(node) for node in shown] == [[], [0.125, -0.25], [1.0, -0.5], [2.0, 2.0]]
    assert [segment.trained for node in shown for segment in node.content.segments] == [(), (), *[(True, True)] * 3]


def test_nodes_of_an_episode_that_was_not_trained_on_are_not_marked() -> None:
    tree = example_trees.fork_inside_a_turn()
    shown = build_tree(tree, step=1, advantages={2: (0.0, 0.5, 0.5)}, dropped="zero variance").nodes
    assert [any(any(s.trained) for s in node.content.segments) for node in shown] == [False, True, True, False]
    assert [node.advantages for node in shown] == [{}, {2: 0.5}, {2: 0.5}, {}]
    assert build_tree(tree, step=1, dropped="zero variance").dropped == "zero variance"


def test_annotations_stand_at_their_nodes() -> None:
    tree = search_tree(20)
    shown = build_tree(tree, step=1).nodes
    assert len(tree.annotations) == 2
    for index, node in enumerate(shown):
        assert node.annotations == tuple(item for item in tree.annotations if item.node == index)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_every_advantage_stands_on_every_node_of_its_episode_and_nowhere_else(seed: int) -> None:
    tree = search_tree(40, seed)
    advantages = outcome_advantages(tree)
    shown = build_tree(tree, step=1, advantages=advantages).nodes
    for leaf, entries in advantages.items():
        path = tree.path(leaf)
        assert [index for index, node in enumerate(shown) if leaf in node.advantages] == list(path[1:])
        assert [shown[index].advantages[leaf] for index in path[1:]] == pytest.approx(entries[1:], abs=1e-12)
    # Over all episodes reward minus the mean sums to 0.
    given_ = [value for child in tree.children[0] for value in shown[child].advantages.values()]
    assert len(given_) == len(advantages)
    assert math.fsum(given_) == pytest.approx(0, abs=1e-9)


def test_why_a_branch_was_cut_is_told() -> None:
    tree = search_tree()
    reasons = [node.stats.pruned for node in build_tree(tree, step=1).nodes if node.stats and node.stats.pruned]
    assert reasons == [PRUNED]


@pytest.mark.parametrize("advantages", [{2: (0.0, 1.0)}, {1: (0.0, 1.0)}, {9: (0.0, 1.0, 1.0)}])
def test_advantages_of_another_tree_are_refused(advantages: dict[int, tuple[float, ...]]) -> None:
    with pytest.raises(InvalidInput, match=r"advantages must be of its leaves \(2, 3\), one entry per node"):
        build_tree(example_trees.fork_inside_a_turn(), step=1, advantages=advantages)


def test_seed_keeps_all_its_digits() -> None:
    data = to_json(build_tree(search_tree(), step=1))
    assert isinstance(data, dict)
    assert data["seed"] == "2305843009213693953"  # a reader of doubles would make it ...952
