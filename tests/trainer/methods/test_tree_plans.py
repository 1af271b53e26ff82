"""Where trees branch: predicted variances by hand, the allocation of nodes, and what is measured on trees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.trainer.methods.tree_plans import (
    BranchingMoments,
    TreePlan,
    best_allocation,
    best_plan,
    measure_moments,
    predict_cost,
    predict_variance,
    small_plans,
)
from tests.support.credit_trees import branched, chain, group_of


def moments(*left: float, scores: float = 1.0) -> BranchingMoments:
    """Return the moments of a reward at the end, of which S(u) is left before turn u; turns cost 1."""
    size = len(left)
    return BranchingMoments(np.tile([*left, 0.0], (size, 1)), np.full(size, scores), np.ones(size))


EVEN = moments(4.0, 3.0, 2.0, 1.0)
"""Four turns that decide as much as each other."""
EARLY = moments(100.0, 50.0, 2.0, 1.0)
"""Two turns decide nearly everything."""


def test_variance_of_chains_is_that_of_leave_one_out() -> None:
    # Σ_t Φ_t S(0) (1 + 1 / (M - 1)) / M = 4 * 4 * (6 / 5) / 6
    assert predict_variance(EVEN, TreePlan(6)) == pytest.approx(3.2)
    assert predict_cost(EVEN, TreePlan(6)) == 24.0


def test_variance_of_a_tree_by_hand() -> None:
    # Two trees of two branches at turn 2; n = 2, 2, 4, 4.
    # Turn 0: Var(Q) = 1 + 1 + 1/2 + 1/2 = 3; P = D(0) = S(0) - S(2) + S(2) / 2 = 3, over M - 1 = 1: (3 + 3) / 2 = 3.
    # Turn 1: Var(Q) = 1 + .5 + .5 = 2; P = 3 + 1 = 4: (2 + 4) / 2 = 3.
    # Turn 2: Var(Q) = 2; before the branch P = 3 + 2 = 5, N = S(2) = 2: P = 10 / 7: (2 + 10/7) / 4.
    # Turn 3: Var(Q) = 1; P = 10/7 + 1: (1 + 17/7) / 4.
    expected = 3 + 3 + (2 + 10 / 7) / 4 + (1 + 17 / 7) / 4
    plan = TreePlan(2, (2,), (2,))
    assert predict_variance(EVEN, plan) == pytest.approx(expected)
    assert predict_cost(EVEN, plan) == 2 + 2 + 4 + 4
    assert plan.most_leaves == 4


def test_nodes_by_hand() -> None:
    # A_d = (d + 1) (S(d) - S(d + 1)) = 1, 2, 3, 4: n = sqrt(A)
    assert best_allocation(EVEN) == pytest.approx(np.sqrt([1, 2, 3, 4]))
    # A = 50, 96, 3, 4: the mean of all but the first is below it, so all are pooled
    assert best_allocation(EARLY) == pytest.approx(np.ones(4))
    costly = BranchingMoments(EVEN.variances, EVEN.scores, np.array([4.0, 1.0, 1.0, 1.0]))
    assert best_allocation(costly) == pytest.approx(np.sqrt([1, 8, 12, 16]))


@given(st.lists(st.floats(0, 5), min_size=2, max_size=6), st.integers(0, 99))
def test_no_turn_has_fewer_nodes_than_the_one_before(decided: list[float], seed: int) -> None:
    left = np.cumsum(decided[::-1])[::-1]
    found = moments(*left)
    costs = np.random.default_rng(seed).uniform(0.5, 2, len(left))
    nodes = best_allocation(BranchingMoments(found.variances, found.scores, costs))
    assert (np.diff(nodes) >= -1e-9).all()


def test_trees_branch_where_the_noise_ends() -> None:
    late = BranchingMoments(EARLY.variances, np.array([0.0, 0.0, 1.0, 1.0]), EARLY.costs)
    plans = [TreePlan(4, (turn,), (2,)) for turn in (1, 2, 3)]
    assert best_plan(late, plans).turns == (2,)


def test_small_plans_are_all_of_the_allowed_size() -> None:
    plans = list(small_plans(4, most_leaves=6))
    assert len(set(plans)) == len(plans)
    assert all(plan.trees >= 2 and plan.most_leaves <= 6 for plan in plans)
    assert TreePlan(6) in plans
    assert TreePlan(2, (1, 3), (3, 1)) not in plans
    assert {plan.turns for plan in plans if plan.children == (3,)} == {(1,), (2,), (3,)}
    assert not any(len(plan.turns) == 2 for plan in plans)  # 2 x 2 x 2 leaves are too many


def test_moments_of_trees_by_hand() -> None:
    group = group_of(branched("A", (0, 0.0), (1, 4.0), (1, 0.0)), chain("B", [0.0, 6.0]))
    found = measure_moments([group])
    # S(1), at A's branch: (4 - 0)^2 / 2 = 8. S(0), of A and B: mean square (16 / 2 + 36) / 2 = 22, product 2 * 6 = 12.
    assert found.variances == pytest.approx(np.array([[10.0, 8.0, 0.0], [10.0, 8.0, 0.0]]))
    assert found.costs == pytest.approx([1.0, 1.0])  # a token a turn, and weights sum to 1
    # token n of the examples has log-prob -n / 100: 10 at the first turn; 11 and 12 below A's branch, 11 in B
    of_10, of_11, of_12 = ((1 - np.exp(-token / 100)) ** 2 for token in (10, 11, 12))
    assert found.scores == pytest.approx([of_10, 0.75 * of_11 + 0.25 * of_12])


def test_trees_without_branches_measure_nothing() -> None:
    with pytest.raises(InvalidInput, match="groups must hold trees that branch after their first turn"):
        measure_moments([group_of(chain("A", [1.0, 0.0]), chain("B", [1.0]))])
