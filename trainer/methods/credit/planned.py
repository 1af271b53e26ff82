"""Planned trees: every node once, against a baseline that a Kalman filter makes of the other trees and the siblings."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.baseline_scale import BaselineCredit, Beta, scale_baselines
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey
from envgym.trainer.methods.credit.return_variances import ReturnVariance, variances_of_others
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit
from envgym.trainer.methods.requirements import Choices, Fault


class NodeWeights(Settings):
    """Settings of a credit whose weights are those of nodes."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require that tokens of trees train once: per path a node would train as often as it has leaves."""
        shared, is_tree = choices.objective.shared_tokens, getattr(choices.search, "is_forking", True)
        must = f"be once with credit {choices.names['credit']}, whose weights are those of nodes"
        do = "set objective.shared_tokens=once"
        return Fault.unless(shared == "once" or not is_tree, "objective.shared_tokens", must, shared, do)


class PlannedCredit(NodeWeights, GroupCredit):
    """Every node once: A(n) = w(n) (Q(n) - beta_t b(n)), w = Π 1 / #children along the path, the trees' 1/M included.

    Q is what is paid from the node's turn t on, averaged over the branches below; episodes that have ended count 0. b
    estimates its mean given the history, from episodes that do not depend on the node's action: `KalmanBaselines`. The
    variances that the filter needs, and beta, are measured on the other groups of the step.

    The gradient is unbiased, for any variances and any beta, if the number of branches at a turn depends on nothing
    that was sampled from that turn on, as in the search `planned`; every sampled token trains `once`, and losses are
    summed over tokens and divided by episodes (`seq-mean-token-sum`). Advantages are scaled by the episodes per group,
    so that groups weigh the same however many of their episodes ended before they could branch. A node that has
    nothing to compare with gets 0, as does a group of one.

    Source: own.
    """

    beta: Beta = "fitted"
    """Scale of the baseline: a number, or `fitted` per turn to the other groups of the step."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        del context
        returns = [NodeReturns(group_tree=GroupTree(group=group)) for group in groups]
        scale = episodes_per_group(groups)
        pairs = [
            baseline_credits(of_group, variance, scale=scale)
            for of_group, variance in zip(returns, variances_of_others(returns), strict=True)
            if of_group.group_tree.group.valid
        ]
        return scale_baselines(pairs, self.beta)


def episodes_per_group(groups: Sequence[Group]) -> float:
    """Return the mean number of valid episodes of the groups that have some; 0.0 where none has."""
    sizes = [len(group.valid) for group in groups if group.valid]
    return statistics.fmean(sizes) if sizes else 0.0


def baseline_credits(returns: NodeReturns, variance: ReturnVariance, *, scale: float) -> list[BaselineCredit]:
    """Return the weighted advantages of a group with the baseline and without.

    Args:
        returns: of the group.
        variance: S_t(u), which must not depend on the group.
        scale: of all advantages.
    """
    baselines = KalmanBaselines(returns=returns, variance=variance)
    compared: dict[NodeKey, float] = {}
    alone: dict[NodeKey, float] = {}
    for node in returns.branches:
        turn = returns.turns.get(node, -1)
        baseline = baselines.baseline(node) if turn >= 0 else None
        weight = 0.0 if baseline is None else scale * returns.weights[node]
        value = returns.returns[node].get(turn, 0.0)
        compared[node] = weight * (value - (baseline or 0.0))
        alone[node] = weight * value
    group_tree = returns.group_tree
    pairs = zip(group_tree.credits(compared.__getitem__), group_tree.credits(alone.__getitem__), strict=True)
    return [BaselineCredit(*pair) for pair in pairs]


class FilteredMean(NamedTuple):
    """A baseline, and the variance of its error."""

    mean: float
    variance: float


def combine(prior: FilteredMean | None, drift: float, observed: FilteredMean) -> FilteredMean:
    """Return one step of a Kalman filter: P += drift, K = P / (P + N), b += K (observed - b), P *= 1 - K.

    Args:
        prior: b and P; None: nothing is known, so K = 1.
        drift: how much the quantity has moved since, as a variance.
        observed: a measurement, and the variance N of its error.
    """
    if prior is None:
        return observed
    variance = prior.variance + max(drift, 0.0)
    total = variance + observed.variance
    gain = variance / total if total > 0 else 0.5
    return FilteredMean(prior.mean + gain * (observed.mean - prior.mean), (1 - gain) * variance)


@dataclass(frozen=True, kw_only=True)
class KalmanBaselines:
    """Baselines of the nodes of a group: the mean return given the history, filtered along the path.

    Every branch above a node, and the prompt as the branch that all trees share, is a measurement by the siblings:
    the mean of what they are paid from the node's turn on, with variance N = Σ D(sibling) / (#siblings)². The mean
    return given the history drifts between two branches at turns u < v by S(u) - S(v). Below a sibling that branches
    again at v, D = S(u) - S(v) + Σ D(child) / (#children)², else S(u).
    """

    returns: NodeReturns
    variance: ReturnVariance
    _estimates: dict[tuple[NodeKey, int], FilteredMean | None] = field(default_factory=dict)
    _spreads: dict[tuple[NodeKey, int], float] = field(default_factory=dict)

    def baseline(self, node: NodeKey) -> float | None:
        """Return b of a node; None where it has siblings neither itself nor above."""
        estimate = self._filtered(self.returns.branches[node], self.returns.turns[node])
        return None if estimate is None else estimate.mean

    def _filtered(self, branch: NodeKey, turn: int) -> FilteredMean | None:
        """Return the estimate of what is paid from `turn` on below a node with siblings."""
        if branch == ROOT:
            return None
        if (branch, turn) not in self._estimates:
            parent = self.returns.parents[branch]
            above = self.returns.branches[parent]
            siblings = [child for child in self.returns.group_tree.children[parent] if child != branch]
            mean = statistics.fmean(self.returns.returns[sibling].get(turn, 0.0) for sibling in siblings)
            noise = sum(self._spread(sibling, turn) for sibling in siblings) / len(siblings) ** 2
            drift = 0.0 if above == ROOT else self._drift(turn, self._place(above), self._place(branch))
            prior = self._filtered(above, turn)
            self._estimates[branch, turn] = combine(prior, drift, FilteredMean(mean, noise))
        return self._estimates[branch, turn]

    def _place(self, branch: NodeKey) -> int:
        """Return the turn at which a node and its siblings branch."""
        siblings = self.returns.group_tree.children[self.returns.parents[branch]]
        return max(self.returns.turns[sibling] for sibling in siblings)

    def _drift(self, turn: int, first: int, second: int) -> float:
        """Return S(first) - S(second), at least 0."""
        return max(self._variance(turn, first) - self._variance(turn, second), 0.0)

    def _variance(self, turn: int, branch_turn: int) -> float:
        """Return S_t(u); what was paid before turn u is no variance."""
        return self.variance(max(turn, branch_turn), branch_turn)

    def _spread(self, node: NodeKey, turn: int) -> float:
        """Return D: the variance of the mean over the branches below a node with siblings, given what is before it."""
        if (node, turn) not in self._spreads:
            place, last = self._place(node), self.returns.stretch_ends[node]
            below = self.returns.group_tree.children.get(last, ())
            if below:
                split = sum(self._spread(child, turn) for child in below) / len(below) ** 2
                self._spreads[node, turn] = self._drift(turn, place, self._place(below[0])) + split
            else:
                self._spreads[node, turn] = self._variance(turn, place)
        return self._spreads[node, turn]
