"""Planned trees: the filter by hand, reductions, and unbiasedness by enumeration for any variances and any scale."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.baseline_scale import scale_baselines
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.paths import GroupTree
from envgym.trainer.methods.credit.planned import Estimate, Planned, baseline_credits, combine
from envgym.trainer.methods.credit.return_variances import MeasuredVariance, variance_sums, variances_of_others
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit
from tests.support.credit_trees import branched, chain, chains, group_of, per_node
from tests.support.enumerable import LOGITS, Enumerable, Sampled, SampledGroup, expected_gradient, groups

WORLD = Enumerable(logits=LOGITS)
TRUTH = WORLD.true_gradient()
Variance = Callable[[int, int], float]


def falling(turn: int, given: int) -> float:
    """S_t(u) of three turns that matter as much as each other."""
    return 3.0 - given


def odd(turn: int, given: int) -> float:
    """No variance of any env: it rises and falls."""
    return [0.7, 0.0, 5.0][(2 * turn + given) % 3]


def nothing_learned(turn: int, given: int) -> float:
    """The history says nothing of the return."""
    return 1.0


VARIANCES: dict[str, Variance] = {"falling": falling, "odd": odd, "constant": nothing_learned}


def planned(group: Group, variance: Variance, beta: float = 1.0) -> tuple[TrajectoryCredit, ...]:
    """Credit one group with given variances."""
    returns = NodeReturns(group_tree=GroupTree(group=group))
    return tuple(scale_baselines([baseline_credits(returns, variance, scale=len(group.valid))], beta))


def credited(variance: Variance, beta: float = 1.0) -> Callable[[Group], tuple[TrajectoryCredit, ...]]:
    return lambda group: planned(group, variance, beta)


def plan(*children: int) -> list[Sampled]:
    """Return every tree with so many children at each turn."""
    return WORLD.grown(lambda depth: children[depth])


def drawn(*plans: Sequence[int]) -> list[Sampled]:
    """Return every tree of a plan that is drawn uniformly, for each tree, before it is grown."""
    return [(chance / len(plans), visits) for children in plans for chance, visits in plan(*children)]


# ---- the filter ----------------------------------------------------------------------------------------------------


def test_step_of_the_filter_by_hand() -> None:
    # P = 1 + 2 = 3, K = 3 / (3 + 1) = .75: b = 4 + .75 (0 - 4) = 1, P = .25 * 3
    assert combine(Estimate(4.0, 1.0), 2.0, Estimate(0.0, 1.0)) == Estimate(1.0, 0.75)
    assert combine(None, 2.0, Estimate(3.0, 0.5)) == Estimate(3.0, 0.5)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 5)), min_size=1, max_size=6))
def test_without_drift_the_filter_is_the_mean_weighted_by_precision(measured: list[tuple[float, float]]) -> None:
    found: Estimate | None = None
    for mean, variance in measured:
        found = combine(found, 0.0, Estimate(mean, variance))
    assert found is not None
    precision = sum(1 / variance for _, variance in measured)
    assert found.mean == pytest.approx(sum(mean / variance for mean, variance in measured) / precision)
    assert found.variance == pytest.approx(1 / precision)


def test_baselines_of_a_tree_by_hand() -> None:
    # A: turn 0, then two children at turn 1 that are paid 1 and 0; B: one episode of two turns, paid 0.5.
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), chain("B", [0.0, 0.5]))
    found = planned(group, falling)
    # weights 1/4, 1/4, 1/2, times 3 episodes. A's first turn: w 1/2, Q = .5, b = .5. B's: w 1/2, Q = .5, b = .5.
    # Below: prior from B for turn 1: b = .5, P = D(B) = S(0) = 3; drift S(0) - S(1) = 1: P = 4; N = S(1) = 2;
    # K = 4 / 6: first child: b = .5 + 2/3 (0 - .5) = 1/6, A = 3/4 (1 - 1/6); second: b = .5 + 2/3 (.5) = 5/6.
    # B's turn 1: b = mean of A's children = .5.
    assert per_node(found) == [
        pytest.approx([0.0, 0.75 * 5 / 6]),
        pytest.approx([0.0, -0.75 * 5 / 6]),
        pytest.approx([0.0, 0.0]),
    ]


def test_a_sibling_that_branches_again_has_less_noise() -> None:
    # The mean over two branches at turn 1: D = S(0) - S(1) + 2 S(1) / 4 = 1 + 1 = 2 instead of S(0) = 3.
    group = group_of(
        branched("A", (0, 0.0), (1, 4.0), (1, 0.0)), chain("B", [0.0, 2.0]), branched("C", (0, 0.0), (1, 9.0), (1, 0.0))
    )
    found = per_node(planned(group, falling))
    # C below its branch: prior for turn 1 = mean of A (2) and B (2), P = (2 + 3) / 4 = 1.25; drift 1: P = 2.25; N = 2.
    gain = 2.25 / 4.25
    weight = 5 / 6  # 5 episodes, 1/3 1/2
    assert found[3][1] == pytest.approx(weight * (9 - (2 + gain * (0 - 2))))
    assert found[4][1] == pytest.approx(weight * (0 - (2 + gain * (9 - 2))))


# ---- reductions ----------------------------------------------------------------------------------------------------

TURNS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5)


@given(TURNS)
def test_on_chains_it_is_turn_grpo(turns: list[list[float]]) -> None:
    found, expected = per_node(planned(chains(*turns), falling)), per_node(TurnGrpo()(chains(*turns)))
    for of_episode, wanted in zip(found, expected, strict=True):
        assert of_episode == pytest.approx(wanted, abs=1e-9)


def test_where_siblings_are_trusted_alone_it_is_sibling() -> None:
    """With S(u) = 0 from the branch on, K = 1."""
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0), (1, 5.0)), chain("B", [0.0, 0.5]))
    found = planned(group, lambda turn, given: float(given == 0))
    for credit, wanted in zip(found, Sibling()(group), strict=True):
        shares = [len(GroupTree(group=group).episodes_through[node]) for node in _path(group, credit)]
        # `sibling` trains each token once per path, with the path's weight; here the node has its whole weight once.
        scaled = [share * entry for share, entry in zip(shares, wanted.advantages, strict=True) if not _is_tuple(entry)]
        assert credit.advantages == pytest.approx(scaled)


def _path(group: Group, credit: TrajectoryCredit) -> tuple[tuple[int, int], ...]:
    tree = GroupTree(group=group)
    return tree.paths[[item.leaf for item in group.valid if item.tree == credit.trajectory.tree].index(0)] if False else (
        next(
            path
            for path, episode in zip(tree.paths, group.valid, strict=True)
            if (episode.tree.id, episode.leaf) == (credit.trajectory.tree.id, credit.trajectory.leaf)
        )
    )


def _is_tuple(entry: object) -> bool:
    return isinstance(entry, tuple)


def test_a_group_of_one_has_no_advantage() -> None:
    assert per_node(Planned().assign([chains([1.0, 2.0])], CreditContext())) == [[0.0, 0.0]]


def test_a_group_without_a_valid_episode_is_left_out() -> None:
    empty = Group(key="none", trees=())
    assert Planned().assign([empty], CreditContext()) == []
    alone = Planned().assign([chains([1.0], [0.0])], CreditContext())
    assert per_node(Planned().assign([empty, chains([1.0], [0.0])], CreditContext())) == per_node(alone)


# ---- unbiased ------------------------------------------------------------------------------------------------------

PLANS: dict[str, Callable[[], list[SampledGroup]]] = {
    "chains": lambda: groups(WORLD.chains(), 3),
    "one level": lambda: groups(plan(1, 2, 1), 2),
    "three children": lambda: groups(plan(1, 3, 1), 2),
    "two levels": lambda: groups(plan(1, 2, 2), 2),
    "all levels, one root": lambda: groups(plan(2, 2, 2), 1),
    "two levels, three children": lambda: groups(plan(3, 1, 3), 1),
    "places drawn for each tree": lambda: groups(drawn((1, 2, 1), (1, 1, 3), (1, 1, 1)), 2),
}


@pytest.mark.parametrize("name", PLANS)
def test_unbiased_for_any_variances_and_any_scale(name: str) -> None:
    sampled = PLANS[name]()
    assert math.fsum(item.probability for item in sampled) == pytest.approx(1, abs=1e-12)
    for (variance, beta) in ((falling, 1.0), (odd, 0.4), (nothing_learned, 1.7)):
        # one entry a group: the episodes of a group are not fixed, so a batch divides by another number than its mean
        found = expected_gradient(WORLD, credited(variance, beta), sampled, once=True)
        assert found == pytest.approx(TRUTH, abs=1e-10), (variance.__name__, beta)
