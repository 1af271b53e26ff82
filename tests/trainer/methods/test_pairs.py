"""Preference pairs: worked examples, the case of chains, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.pairs import Pair, child_pairs, preference_pairs, sibling_pairs
from envgym.trainer.methods.pairs import branch_pairs, episode_pairs
from tests.support.credit_trees import BRANCH, branched, chain, chains, group_of
from tests.support.example_trees import outcome_group


def test_every_two_siblings_of_different_value_are_a_pair() -> None:
    values = {"a": 1.0, "b": 0.0, "c": 1.0}
    assert preference_pairs(values) == [Pair("a", "b", 1.0), Pair("c", "b", 1.0)]
    assert preference_pairs(values, which="extremes") == [Pair("a", "b", 1.0)]
    assert preference_pairs({"a": 1.0, "b": 0.7}, min_margin=0.5) == []
    assert preference_pairs({}, which="extremes") == []


def test_siblings_have_the_mean_reward_of_what_goes_through_them() -> None:
    # r -> x -> (1, 0), r -> y -> 0.25: x is worth 0.5 and beats y; below x the leaf of 1 beats that of 0
    paths = [["r", "x", "x1"], ["r", "x", "x0"], ["r", "y"]]
    assert sibling_pairs(paths, [1.0, 0.0, 0.25]) == [Pair("x", "y", 0.25), Pair("x1", "x0", 1.0)]
    assert sibling_pairs(paths, [1.0, 0.0, 0.25], min_margin=0.25) == [Pair("x1", "x0", 1.0)]


def test_children_may_have_values_of_their_own() -> None:
    paths = [["r", "x", "x1"], ["r", "x", "x0"], ["r", "y"], ["r", "z"]]
    values = {"x": 0.25, "y": 0.5, "x1": 0.25, "x0": 1.0}
    assert child_pairs(paths, values) == [Pair("y", "x", 0.25), Pair("x0", "x1", 0.75)]


def test_pairs_of_a_group_are_its_valid_episodes() -> None:
    group = outcome_group(1.0, None, 0.0, 1.0)
    found = [(pair.chosen.tree.id, pair.rejected.tree.id, pair.margin) for pair in episode_pairs(group)]
    assert found == [("t0", "t2", 1.0), ("t3", "t2", 1.0)]


def test_branches_of_one_node_are_compared_after_the_context_that_they_share() -> None:
    # 1 -> (2 -> 1.0, 3 -> 0.0); another tree pays 0.25 from the start
    group = group_of(branched("A", (0, BRANCH), (1, 1.0), (1, 0.0)), chain("B", [0.25]))
    outer, inner = branch_pairs(group)
    assert (outer.chosen.depth, outer.rejected.depth, outer.margin) == (1, 1, 0.25)
    assert (outer.chosen.episode.tree.id, outer.rejected.episode.tree.id) == ("A", "B")
    assert (inner.chosen.depth, inner.rejected.depth, inner.margin) == (2, 2, 1.0)
    assert (inner.chosen.episode.leaf, inner.rejected.episode.leaf) == (2, 3)


REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6)


@given(rewards=REWARDS)
def test_branches_of_chains_are_their_episodes(rewards: list[float]) -> None:
    group = chains(*([0.0, reward] for reward in rewards))
    of_branches = [(pair.chosen.episode, pair.rejected.episode, pair.margin) for pair in branch_pairs(group)]
    assert of_branches == [tuple(pair) for pair in episode_pairs(group)]
    assert all(pair.chosen.depth == 1 for pair in branch_pairs(group))


@given(rewards=REWARDS)
def test_opposite_rewards_exchange_chosen_and_rejected(rewards: list[float]) -> None:
    values = dict(enumerate(rewards))
    opposite = preference_pairs({name: -value for name, value in values.items()})
    assert {(pair.chosen, pair.rejected) for pair in preference_pairs(values)} == {
        (pair.rejected, pair.chosen) for pair in opposite
    }


@given(rewards=st.lists(st.booleans(), max_size=8))
def test_right_and_wrong_episodes_make_as_many_pairs_as_their_product(rewards: list[bool]) -> None:
    values = {number: float(reward) for number, reward in enumerate(rewards)}
    assert len(preference_pairs(values)) == sum(rewards) * (len(rewards) - sum(rewards))
    extremes = preference_pairs(values, which="extremes")
    assert [pair.margin for pair in extremes] == ([1.0] if 0 < sum(rewards) < len(rewards) else [])


@given(rewards=REWARDS, margin=st.floats(0, 1))
def test_margins_are_above_the_least_one(rewards: list[float], margin: float) -> None:
    values = dict(enumerate(rewards))
    found = preference_pairs(values, min_margin=margin)
    assert all(pair.margin == pytest.approx(values[pair.chosen] - values[pair.rejected]) for pair in found)
    assert all(pair.margin > margin for pair in found)
