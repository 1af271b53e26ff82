"""Where trees should branch: the variance of the gradient that a plan has, from variances measured on other trees.

Everything is predicted for the credit `planned` with its filtered baseline. Source: own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym.core.trajectory import Group
from envgym.errors import InvalidInput
from envgym.trainer.methods.credit.baseline_scale import score_weights
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.paths import GroupTree
from envgym.trainer.methods.credit.planned import FilteredMean, combine
from envgym.trainer.methods.credit.return_variances import MeasuredVariance, variance_sums

Array = NDArray[np.float64]

MOST_TREES: Final = 12


class TreePlan(NamedTuple):
    """How the trees of a group branch."""

    trees: int
    turns: tuple[int, ...] = ()
    """Of the levels, ascending; () = chains."""
    children: tuple[int, ...] = ()

    @property
    def most_leaves(self) -> int:
        """Leaves of a group in which every episode branches at every level."""
        return self.trees * prod(self.children)


@dataclass(frozen=True, eq=False)
class BranchingMoments:
    """What the choice of a plan depends on, for turns 0 to T - 1."""

    variances: Array
    """[T, T + 1] S_t(u): variance of what is paid from turn t on, given all before turn u; 0 at u = T."""
    scores: Array
    """[T] Φ_t: mean squared score of turn t, over all episodes, also those that have ended before."""
    costs: Array
    """[T] Mean cost of turn t, over all episodes, also those that have ended before."""

    @property
    def drifts(self) -> Array:
        """[T, T] S_t(d) - S_t(d + 1): how much of the return from turn t on is decided at turn d >= t; else 0."""
        return np.asarray(np.triu(self.variances[:, :-1] - self.variances[:, 1:]), dtype=np.float64)


def measure_moments(groups: Sequence[Group], *, by_tokens: bool = True) -> BranchingMoments:
    """Measure the moments on groups of trees, such as those of `planned` with drawn turns.

    Args:
        groups: trees of the policy; they are unbiased samples to train on, too.
        by_tokens: a turn costs its sampled tokens; False: 1.

    Raises: InvalidInput: no tree branches after its first turn.
    """
    returns = [NodeReturns(group_tree=GroupTree(group=group)) for group in groups if group.valid]
    size = 1 + max((turn for of_group in returns for turn in of_group.turns.values()), default=-1)
    sums = np.zeros((size, size, 2))
    scores, costs = np.zeros(size), np.zeros(size)
    for of_group in returns:
        measured = variance_sums(of_group)
        sums[: len(measured), : len(measured)] += measured
        for node, turn in of_group.turns.items():
            if turn < 0:
                continue
            weights = score_weights(of_group.group_tree.group.trees[node[0]].nodes[node[1]].edge)
            scores[turn] += of_group.weights[node] * sum(weights) / len(returns)
            costs[turn] += of_group.weights[node] * (len(weights) if by_tokens else 1.0) / len(returns)
    if not sums[:, 1:, 1].any():
        do = "sample some with search.name=planned"
        raise InvalidInput.of("groups", "hold trees that branch after their first turn", "none", where="moments", do=do)
    variance, variances = MeasuredVariance(sums), np.zeros((size, size + 1))
    for turn in range(size):
        fit = variance.fit(turn)
        if fit is not None:
            turns, values = fit
            variances[turn, :-1] = np.interp(range(size), [*turns, size], [*values, 0.0])
    for start in range(size):  # what was paid before turn u is known there
        variances[:start, start] = variances[start, start]
    return BranchingMoments(variances, scores, costs)


def best_allocation(moments: BranchingMoments) -> Array:
    """Return how many nodes each turn should have, [T], relative to the first turn.

    With a perfect baseline the variance is Σ_d A_d / n_d, A_d = Σ_{t <= d} Φ_t (S_t(d) - S_t(d + 1)), and the cost
    Σ_d c_d n_d; so n_d = sqrt(A_d / c_d), made nondecreasing, for no turn has fewer nodes than the one before it.
    """
    decided = moments.scores @ np.maximum(moments.drifts, 0.0)
    ratios = decided / np.maximum(moments.costs, 1e-12)
    nodes = np.sqrt(isotonic_regression(ratios, weights=np.maximum(moments.costs, 1e-12)).x)
    return np.asarray(nodes / nodes[0] if nodes[0] > 0 else np.ones_like(nodes), dtype=np.float64)


def predict_variance(moments: BranchingMoments, plan: TreePlan) -> float:
    """Return the variance of a group's gradient, Σ_t Φ_t (Var(Q | history) + P_t) / n_t, without terms between nodes.

    Var(Q | history) = Σ_{d >= t} (S_t(d) - S_t(d + 1)) n_t / n_d, and P_t is the variance of the baseline's error.
    """
    nodes, drifts = _nodes(moments, plan), np.maximum(moments.drifts, 0.0)
    of_returns = (drifts / nodes).sum(axis=1) * nodes
    errors = np.array([_baseline_error(moments.variances[turn], turn, plan) for turn in range(len(nodes))])
    return float((moments.scores * (of_returns + errors) / nodes).sum())


def predict_cost(moments: BranchingMoments, plan: TreePlan) -> float:
    """Return the mean cost of a group."""
    return float((moments.costs * _nodes(moments, plan)).sum())


def _nodes(moments: BranchingMoments, plan: TreePlan) -> Array:
    """Return the nodes of every turn, [T], of episodes that do not end."""
    nodes = np.full(len(moments.costs), float(plan.trees))
    for turn, count in zip(plan.turns, plan.children, strict=True):
        nodes[turn:] *= count
    return nodes


def _baseline_error(variances: Array, turn: int, plan: TreePlan) -> float:
    """Return P of the filtered baseline at a turn; `variances` is S(u) of what is paid from it on, [T + 1]."""
    places, children = [0, *plan.turns], [plan.trees, *plan.children]
    spreads = [0.0] * len(places)  # variance of the mean below one child
    for level in reversed(range(len(places))):
        below = variances[places[level + 1]] if level + 1 < len(places) else 0.0
        split = spreads[level + 1] / children[level + 1] if level + 1 < len(places) else 0.0
        spreads[level] = max(variances[places[level]] - below, 0.0) + split
    estimate, last = FilteredMean(0.0, float(spreads[0]) / (children[0] - 1)), 0
    for place, count, spread in zip(places[1:], children[1:], spreads[1:], strict=True):
        if place <= turn:
            drift = float(variances[last] - variances[place])
            estimate, last = combine(estimate, drift, FilteredMean(0.0, spread / (count - 1))), place
    return estimate.variance + max(float(variances[last] - variances[turn]), 0.0)


def small_plans(num_turns: int, *, most_leaves: int, levels: int = 2, most_children: int = 3) -> Iterator[TreePlan]:
    """Yield chains and trees of at most so many levels and leaves, with at least two trees."""
    for trees in range(2, min(MOST_TREES, most_leaves) + 1):
        for count in range(levels + 1):
            for children in product(range(2, most_children + 1), repeat=count):
                if trees * prod(children) <= most_leaves:
                    for turns in combinations(range(1, num_turns), count):
                        yield TreePlan(trees, turns, children)


def best_plan(moments: BranchingMoments, plans: Sequence[TreePlan]) -> TreePlan:
    """Return the plan with the least variance times cost, which is the variance at an equal budget."""
    return min(plans, key=lambda plan: predict_variance(moments, plan) * predict_cost(moments, plan))
