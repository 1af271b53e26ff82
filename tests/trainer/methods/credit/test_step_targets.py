"""Targets of a scorer: published values, where they stand, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.trainer.batch.build import build_batch
from envgym.trainer.methods.credit.step_targets import AgentPrm, RestMcts, quality_values, returns_to_go
from envgym.trainer.methods.protocols import VALUES, BatchCredit, CreditContext, CriticCredit, TrajectoryCredit
from tests.support.credit_trees import branched, chain
from tests.support.example_trees import fork_inside_a_turn, outcome_group

# root -> a -> {b correct, c wrong}, root -> d wrong
PUBLISHED = branched("t", (0, 0.0), (1, 1.0), (1, 0.0), (0, 0.0))


def assigned(credit: BatchCredit, *trees: Tree) -> list[TrajectoryCredit]:
    return list(credit.assign([Group(key="g", trees=trees)], CreditContext()))


def test_published_quality_values() -> None:
    # d: b 1, a 2, c 2 (that of a), d 3 (that of the root); a 1/2, b 1/2 + 1/2, c 1/2 - 1/4, d max(0, -1/3)
    assert quality_values(PUBLISHED, [2]) == {0: 0.0, 1: 0.5, 2: 1.0, 3: 0.25, 4: 0.0}


def test_a_chain_to_a_correct_leaf_rises_evenly() -> None:
    # d 4, 3, 2, 1 below the root: each closes 1 / d of what is left
    tree = chain("t", [0.0, 0.0, 0.0, 1.0])
    values = quality_values(tree, list(tree.leaves))
    assert [values[node] for node in range(5)] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])


def test_the_nearest_correct_leaf_counts() -> None:
    # root -> 1 -> {2 correct; 3 -> 4 correct}: node 1 is 2 from the nearest leaf
    tree = branched("t", (0, 0.0), (1, 1.0), (1, 0.0), (3, 1.0))
    assert quality_values(tree, [2, 4]) == pytest.approx({0: 0.0, 1: 0.5, 2: 1.0, 3: 0.75, 4: 1.0})


def test_a_node_inside_a_turn_is_no_step() -> None:
    tree = fork_inside_a_turn()  # both episodes have one turn
    right, wrong = tree.leaves
    # d of the correct leaf is 1, that of the root 2, which the wrong one takes
    assert quality_values(tree, [right]) == {0: 0.0, right: 1.0, wrong: 0.0}


def test_a_tree_without_a_correct_leaf_teaches_nothing() -> None:
    assert quality_values(PUBLISHED, []) == {}
    (credit,) = assigned(RestMcts(), chain("t", [0.0, 0.0]))
    assert set(sum(credit.targets or (), ())) == {None}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_values_lie_between_0_and_1_and_correct_leaves_are_worth_1(parents: list[int], data: st.DataObject) -> None:
    specs = [(min(parent, number), 0.0) for number, parent in enumerate(parents)]
    tree = branched("t", *specs)
    correct = data.draw(st.lists(st.sampled_from(tree.leaves), min_size=1, unique=True))
    values = quality_values(tree, correct)
    assert all(0 <= value <= 1 for value in values.values())
    assert [values[leaf] for leaf in correct] == pytest.approx([1.0] * len(correct))
    assert all(values[leaf] < 1 for leaf in tree.leaves if leaf not in correct)


def test_published_returns_to_go() -> None:
    # .95² = .9025; (1 + .9025) / 2 = .95125
    assert returns_to_go(3, 1.0, 0.95) == pytest.approx([0.9025, 0.95, 1.0])
    (credit,) = assigned(AgentPrm(), chain("t", [0.0, 0.0, 1.0]))
    assert [of_node[0] for of_node in (credit.targets or ())[2:]] == pytest.approx([0.95125, 1.0])
    (failed,) = assigned(AgentPrm(), chain("t", [0.0, 0.0, 0.0]))
    assert [of_node[0] for of_node in (failed.targets or ())[2:]] == pytest.approx([0.04875, 0.0])


def test_a_turn_that_rollouts_share_has_the_mean_of_their_returns() -> None:
    # Both begin with "act 1" and see "", then one succeeds and one fails: (.95 - .95) / 2 -> .5
    right, wrong = assigned(AgentPrm(), branched("a", (0, 0.0), (1, 1.0)), branched("b", (0, 0.0), (1, 0.0)))
    # the last turns have the same action as well: their mean is that of 1 and 0
    assert right.targets == wrong.targets == ((), (None,), (0.5,))


def test_the_same_action_after_another_observation_is_another_turn() -> None:
    first, second = assigned(
        AgentPrm(), branched("a", (0, 0.0, "left"), (1, 1.0)), branched("b", (0, 0.0, "right"), (1, 0.0))
    )
    assert (first.targets, second.targets) == (((), (None,), (1.0,)), ((), (None,), (0.0,)))


@pytest.mark.parametrize("credit", [RestMcts(), AgentPrm()])
def test_only_valid_episodes_have_targets_and_no_token_an_advantage(credit: CriticCredit) -> None:
    assert isinstance(credit, CriticCredit)
    found = credit.assign([outcome_group(1.0, None, 0.0)], CreditContext())
    assert len(found) == 2
    assert all(entry.advantages == (0.0, 0.0) for entry in found)


def test_targets_stand_before_the_next_turn_and_at_the_end() -> None:
    """Turns of one token: the root's value stands at the first, each turn's at the next, the leaf's at its own."""
    of_b, of_c, of_d = assigned(RestMcts(), PUBLISHED)
    assert of_b.targets == ((), (0.0,), (1.0,))
    assert of_c.targets == ((), (0.0,), (0.25,))
    assert of_d.targets == ((), (0.0,))


def test_targets_reach_the_rows_that_the_scorer_learns_from() -> None:
    batch = build_batch(
        [outcome_group(1.0)],
        RestMcts(),
        once=False,
        scores=[VALUES],
        compute=lambda rows, asked: {("policy", "values"): [[0.0] * len(row) for row in rows]},
    )
    # prompt 1 2 3 4, sampled 10 11: the root's 0 before the first, the leaf's 1 before the last
    (row,) = batch.rows
    assert [(place, target.target) for place, target in row.supervised] == [(4, 0.0), (5, 1.0)]
