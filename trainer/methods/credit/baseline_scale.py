"""The scale of a baseline: A = Q - beta b with the beta of least variance, measured on other groups.

A credit gives every advantage twice, with its baseline (Q - b) and without (Q). Any beta that does not depend on the
episodes of the group leaves the gradient unbiased if b does.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from envgym.core.tree import Edge
from envgym.trainer.methods.credit.paths import turn_of_nodes
from envgym.trainer.methods.protocols import TrajectoryCredit

Beta = Annotated[float, Field(ge=0)] | Literal["fitted"]
"""The scale, or `fitted`: per turn, from the other groups of the step."""

Sums = NDArray[np.float64]


class BaselineCredit(NamedTuple):
    """The credit of one episode with its baseline and without."""

    compared: TrajectoryCredit
    """Q - b, and the value targets."""
    returns: TrajectoryCredit
    """Q."""


def scale_baselines(groups: Sequence[Sequence[BaselineCredit]], beta: Beta) -> list[TrajectoryCredit]:
    """Return the credits with Q - beta b = (1 - beta) Q + beta (Q - b); with beta = 1 as they are.

    `fitted`: beta_t = Σ |s|² Q b / Σ |s|² b² over the sampled tokens of turn t in all other groups, the least-squares
    scale; 1 where the sum below is 0. Of |s|², the squared score of a token, (1 - π(token))² is taken, which is between
    half of it and all of it for a softmax over tokens; any weights leave the gradient unbiased.

    Args:
        groups: of every group its episodes.
        beta: the scale.
    """
    if beta == 1:
        return [item.compared for group in groups for item in group]
    if beta == "fitted":
        of_groups = fit_scales([turn_sums(group) for group in groups])
    else:
        of_groups = [np.array([beta])] * len(groups)
    return [_scaled(item, scales) for group, scales in zip(groups, of_groups, strict=True) for item in group]


def fit_scales(sums: Sequence[Sums]) -> list[Sums]:
    """Return beta of every turn for every group, from the sums [turns, 2] of the other groups."""
    num_turns = max((len(of_group) for of_group in sums), default=0)
    padded = np.zeros((len(sums), num_turns, 2))
    for of_group, row in zip(sums, padded, strict=True):
        row[: len(of_group)] = of_group
    others = sums_of_others(padded)
    above, below = others[..., 0], others[..., 1]
    return list(np.divide(above, below, out=np.ones_like(above), where=below > 0))


def sums_of_others(values: Sums) -> Sums:
    """Return for every entry of the first axis the sum of all others; nothing of its own enters, not even rounding."""
    before = np.zeros_like(values)
    after = np.zeros_like(values)
    np.cumsum(values[:-1], axis=0, out=before[1:])
    np.cumsum(values[:0:-1], axis=0, out=after[::-1][1:])
    return np.asarray(before + after, dtype=np.float64)


def turn_sums(group: Sequence[BaselineCredit]) -> Sums:
    """Return (Σ |s|² Q b, Σ |s|² b²) of every turn [turns, 2]; a token that several episodes share counts once."""
    sums: dict[int, list[float]] = {}
    seen: set[tuple[str, int]] = set()
    for compared, returns in group:
        episode = compared.trajectory
        entries = zip(episode.path, turn_of_nodes(episode), compared.advantages, returns.advantages, strict=True)
        for node, turn, advantage, value in entries:
            if turn < 0 or (episode.tree.id, node) in seen:
                continue
            seen.add((episode.tree.id, node))
            of_turn = sums.setdefault(turn, [0.0, 0.0])
            weights = score_weights(episode.tree.nodes[node].edge)
            pairs = zip(_per_token(advantage, len(weights)), _per_token(value, len(weights)), strict=True)
            for weight, (difference, q) in zip(weights, pairs, strict=True):
                baseline = q - difference
                of_turn[0] += weight * q * baseline
                of_turn[1] += weight * baseline**2
    return np.array([sums.get(turn, [0.0, 0.0]) for turn in range(max(sums, default=-1) + 1)]).reshape(-1, 2)


def score_weights(edge: Edge) -> list[float]:
    """Return (1 - π)² of every sampled token of an edge; for a softmax |s|² is between that and twice that."""
    sampled = [segment.behavior_logprobs or () for segment in edge.segments if segment.trains]
    return [math.expm1(logprob) ** 2 for logprobs in sampled for logprob in logprobs]


def _per_token(entry: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    return entry if isinstance(entry, tuple) else (entry,) * count


def _scaled(item: BaselineCredit, scales: Sums) -> TrajectoryCredit:
    """Return one episode's credit; `scales` has one entry per turn, and turns beyond the last have the last one's."""
    compared, returns = item
    turns = turn_of_nodes(compared.trajectory)
    advantages: list[float | tuple[float, ...]] = []
    for turn, advantage, value in zip(turns, compared.advantages, returns.advantages, strict=True):
        beta = float(scales[min(turn, len(scales) - 1)]) if turn >= 0 and len(scales) else 1.0
        if isinstance(advantage, tuple):
            values = _per_token(value, len(advantage))
            advantages.append(tuple((1 - beta) * q + beta * a for a, q in zip(advantage, values, strict=True)))
        else:
            assert isinstance(value, float), "both credits have one shape"
            advantages.append((1 - beta) * value + beta * advantage)
    return TrajectoryCredit(trajectory=compared.trajectory, advantages=tuple(advantages), targets=compared.targets)
