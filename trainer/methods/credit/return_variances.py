"""Variances of returns given the history, measured at the branches of trees.

S_t(u) is the variance of what is paid from turn t on, given all before turn u; it falls with u.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym.trainer.methods.credit.baseline_scale import sums_of_others
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.paths import ROOT

Sums = NDArray[np.float64]
ReturnVariance = Callable[[int, int], float]
"""(t, u) -> S_t(u), for u <= t."""


@dataclass(frozen=True, eq=False)
class MeasuredVariance:
    """S_t(u) from measurements at some turns u: made nonincreasing in u, and interpolated between them."""

    sums: Sums
    """[t, u, 2] sum of the estimates, and their number."""
    _fits: dict[int, tuple[Sums, Sums] | None] = field(default_factory=dict)

    def __call__(self, turn: int, branch_turn: int) -> float:
        """Return S_t(u); the constant 1 where nothing, or no variance at all, was measured for t."""
        if turn not in self._fits:
            self._fits[turn] = self.fit(turn)
        fit = self._fits[turn]
        return 1.0 if fit is None else float(np.interp(branch_turn, *fit))

    def fit(self, turn: int) -> tuple[Sums, Sums] | None:
        """Return the turns u with measurements, and S_t(u) there; None where all is unknown or 0."""
        if turn >= len(self.sums):
            return None
        totals, counts = self.sums[turn].T
        (turns,) = np.nonzero(counts)
        if not len(turns) or not totals[turns].max() > 0:
            return None
        fit = isotonic_regression(totals[turns] / counts[turns], weights=counts[turns], increasing=False)
        return turns.astype(np.float64), np.maximum(fit.x, 0.0)


def variance_sums(returns: NodeReturns) -> Sums:
    """Return the estimates of S_t(u) in one group: [t, u, 2], their sum and number.

    At a node with k children at turn u, with m_i and q_i the mean of the return and of its square over the episodes
    below child i: mean_i q_i - mean_{i != j} m_i m_j, unbiased for the variance of one episode from there.
    """
    size = 1 + max(returns.turns.values(), default=-1)
    sums = np.zeros((size, size, 2))
    for parent, children in returns.group_tree.children.items():
        count, branch_turn = len(children), max(returns.turns[child] for child in children)
        if count < 2 or branch_turn < 0 or (parent != ROOT and returns.turns[parent] == branch_turn):
            continue  # not a branch, or one inside a turn
        for turn in range(branch_turn, size):
            means = [returns.returns[child].get(turn, 0.0) for child in children]
            squares = [returns.squares[child].get(turn, 0.0) for child in children]
            products = sum(means) ** 2 - sum(mean**2 for mean in means)
            sums[turn, branch_turn] += sum(squares) / count - products / (count * (count - 1)), 1.0
    return sums


def variances_of_others(groups: Sequence[NodeReturns]) -> list[MeasuredVariance]:
    """Return for every group the variances that the other groups measure."""
    measured = [variance_sums(group) for group in groups]
    size = max((len(sums) for sums in measured), default=0)
    padded = np.zeros((len(measured), size, size, 2))
    for sums, entry in zip(measured, padded, strict=True):
        entry[: len(sums), : len(sums)] = sums
    return [MeasuredVariance(sums) for sums in sums_of_others(padded)]
