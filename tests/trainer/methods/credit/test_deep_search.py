"""DeepSearch: hand case, the rule of correct paths, reduction and law."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.deep_search import DeepSearch
from tests.support.credit_trees import branched, chain, chains, group_of, per_node


def test_leaves_back_up_by_depth_and_are_clipped_inside() -> None:
    # leaves +1, -1; the wrong chain's first node: w = 1/2, so q = -.5; the mean of the leaves is 0
    right, wrong = per_node(DeepSearch()(chains([0, 1], [0, 0])))
    assert right == pytest.approx([math.tanh(0.5), 1.0])
    assert wrong == pytest.approx([-math.tanh(0.5), -1.0])


def test_node_on_a_correct_path_stays_positive() -> None:
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0), (1, 0.0), (1, 0.0)))
    # leaves 1, -1, -1, -1: mean -.5; the shared node counts the correct leaf alone: tanh(1/2)
    assert [found[0] for found in per_node(DeepSearch()(group))] == pytest.approx([math.tanh(0.5) + 0.5] * 4)


def test_correct_leaves_add_up_below_the_ceiling() -> None:
    group = group_of(branched("A", (0, 0.0), *[(1, 1.0)] * 8), chain("B", [0.0]))
    found = per_node(DeepSearch(ceiling=0.5)(group))
    mean = (8 * 1 - 1) / 9
    assert found[0][0] == pytest.approx(0.5 * math.tanh(4.0) - mean)


def test_far_leaves_count_a_tenth() -> None:
    group = chains([0.0] * 19 + [1.0], [0.0])
    assert per_node(DeepSearch()(group))[0][0] == pytest.approx(math.tanh(0.1))  # 1/20 would be less


def test_of_a_tree_without_a_correct_leaf_the_most_confident_wrong_one_is_backed_up() -> None:
    # node n samples token 9 + n, whose surprisal is (9 + n) / 100: leaf 2 is surer than leaf 3
    failed = branched("A", (0, 0.0), (1, 0.0), (1, 0.0))
    solved = branched("B", (0, 0.0), (1, 1.0), (1, 0.0), (0, 0.0))
    found = per_node(DeepSearch(wrong="most_confident")(group_of(failed, solved)))
    mean = (-1 - 1 + 1 - 1 - 1) / 5
    assert found[0] == pytest.approx([-math.tanh(0.5) - mean, -1 - mean])
    assert found[1] == pytest.approx([-math.tanh(0.5) - mean, -1 - mean])  # it shares the node, not the weight
    assert found[2] == pytest.approx([math.tanh(0.5) - mean, 1 - mean])
    assert found[4] == pytest.approx([-1 - mean])  # a wrong leaf keeps its own score


def test_node_that_nothing_is_backed_up_through_has_the_value_zero() -> None:
    found = per_node(
        DeepSearch(wrong="most_confident")(group_of(branched("A", (0, 0.0), (1, 0.0), (0, 0.0), (3, 1.0))))
    )
    assert found[0] == pytest.approx([0.0, -1.0])  # the mean of the leaves is 0
    assert found[1] == pytest.approx([math.tanh(0.5), 1.0])


def test_group_of_one_has_advantage_zero() -> None:
    assert per_node(DeepSearch()(chains([0, 1]))) == [[0.0, 0.0]]


@settings(max_examples=20)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3), min_size=2, max_size=5))
def test_leaves_sum_to_zero(turns: list[list[float]]) -> None:
    found = per_node(DeepSearch()(chains(*turns)))
    assert sum(of_turns[-1] for of_turns in found) == pytest.approx(0.0, abs=1e-9)


def test_what_the_policy_was_less_sure_of_is_not_backed_up() -> None:
    # Chains of nodes 1, 2 and 3, 4: mean surprisals .105 and .125. The leaves are worth -1, their mean.
    failed = branched("A", (0, 0.0), (1, 0.0), (0, 0.0), (3, 0.0))
    sure, unsure = per_node(DeepSearch(wrong="most_confident")(group_of(failed)))
    assert sure == pytest.approx([-math.tanh(0.5) + 1, 0.0])
    assert unsure == pytest.approx([0.0 + 1, 0.0])
