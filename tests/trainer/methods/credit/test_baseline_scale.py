"""The fitted scale of a baseline: its sums by hand, tokens that episodes share once, and other groups alone."""

import math

import numpy as np
import pytest

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.baseline_scale import (
    BaselineCredit,
    fit_scales,
    scale_baselines,
    sums_of_others,
    turn_sums,
)
from envgym.trainer.methods.credit.outcome import episode_credits
from tests.support.credit_trees import branched, chain, group_of, per_node

A, B, C = ((1 - math.exp(logprob)) ** 2 for logprob in (-0.10, -0.11, -0.12))
"""(1 - π)² of the tokens 10, 11 and 12, those of the first, second and third node of a tree."""


def credits_of(group: Group, values: list[float], baseline: float) -> list[BaselineCredit]:
    """Return credits with Q of each episode on all of its nodes, and one baseline."""
    compared = episode_credits(group.valid, [value - baseline for value in values])
    returns = episode_credits(group.valid, values)
    return [BaselineCredit(*pair) for pair in zip(compared, returns, strict=True)]


def test_a_token_that_episodes_share_counts_once() -> None:
    # turn 0 is one node of both episodes; turn 1 is a node of each
    tree = group_of(branched("t", (0, 0.0), (1, 1.0), (1, 0.0)))
    sums = turn_sums(credits_of(tree, [2.0, 2.0], 0.5))
    # Q b = 1 and b² = 1/4 of every token: one at turn 0, two at turn 1
    assert sums == pytest.approx(np.outer([A, B + C], [1.0, 0.25]))
    apart = group_of(chain("a", [0.0, 1.0]), chain("b", [0.0, 0.0]))
    assert turn_sums(credits_of(apart, [2.0, 2.0], 0.5)) == pytest.approx(np.outer([2 * A, 2 * B], [1, 0.25]))


def test_nodes_of_one_number_in_two_trees_are_two() -> None:
    apart = group_of(chain("a", [1.0]), chain("b", [1.0]))
    assert turn_sums(credits_of(apart, [2.0, 2.0], 0.5)) == pytest.approx(np.outer([2 * A], [1.0, 0.25]))


def test_scale_is_that_of_the_other_groups() -> None:
    sums = [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 5.0]]), np.array([[6.0, 3.0]])]
    assert sums_of_others(np.array([1.0, 10.0, 100.0])).tolist() == [110.0, 101.0, 11.0]
    first, second, third = fit_scales(sums)
    # turn 0: (3 + 6) / (4 + 3), (1 + 6) / (2 + 3), (1 + 3) / (2 + 4); turn 1: 5 / 5, none, 5 / 5
    assert first.tolist() == pytest.approx([9 / 7, 1.0])
    assert second.tolist() == pytest.approx([7 / 5, 1.0])
    assert third.tolist() == pytest.approx([2 / 3, 1.0])


def test_shared_tokens_weigh_once_in_the_fitted_scale() -> None:
    tree, other = group_of(branched("t", (0, 0.0), (1, 1.0), (1, 0.0))), group_of(chain("u", [0.0, 1.0]))
    groups = [credits_of(tree, [2.0, 1.0], 0.5), credits_of(other, [1.0], 0.5)]
    *_, (first, second) = per_node(scale_baselines(groups, "fitted"))
    # of the tree turn 0 has the first episode's Q = 2 alone: beta = 2 · .5 / .25 = 4, Q - beta b = 1 - 4 / 2
    beta = (B * 1.0 + C * 0.5) / ((B + C) * 0.25)
    assert [first, second] == pytest.approx([-1.0, 1 - beta * 0.5])
