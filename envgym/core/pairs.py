"""Preference pairs of siblings, by numbers alone: of each two, the one of higher value is preferred."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

Which = Literal["all", "extremes"]
"""Every two siblings of different value, or only the best against the worst."""


class Pair(NamedTuple, Generic[T]):
    """Two siblings, of which one is preferred."""

    chosen: T
    rejected: T
    margin: float
    """Value of the chosen less that of the rejected, above 0."""


def preference_pairs(values: Mapping[T, float], *, which: Which = "all", min_margin: float = 0.0) -> list[Pair[T]]:
    """Pair siblings whose values differ by more than `min_margin`, each pair once, in the order of the siblings.

    Example: values a 1, b 0, c 1 give (a, b) and (c, b) with margin 1; the extremes are (a, b) alone.

    Args:
        values: of the siblings. Of equal extremes the first is taken.
        which: which two are compared.
        min_margin: in units of the values, at least 0.
    """
    names = list(values)
    candidates = list(combinations(names, 2))
    if which == "extremes" and names:
        candidates = [(max(names, key=values.__getitem__), min(names, key=values.__getitem__))]
    ordered = [(a, b) if values[a] > values[b] else (b, a) for a, b in candidates]
    pairs = [Pair(chosen, rejected, values[chosen] - values[rejected]) for chosen, rejected in ordered]
    return [pair for pair in pairs if pair.margin > min_margin]


def sibling_pairs(
    paths: Sequence[Sequence[T]], rewards: Sequence[float], *, which: Which = "all", min_margin: float = 0.0
) -> list[Pair[T]]:
    """Pair the children of every node; a child's value is the mean reward of the paths through it.

    Args:
        paths: nodes from the root to the leaf of each episode; nodes of one name are one node.
        rewards: of the episodes.
        which: as for `preference_pairs`, at each node.
        min_margin: as for `preference_pairs`.
    """
    rewards_through: dict[T, list[float]] = {}
    for path, reward in zip(paths, rewards, strict=True):
        for node in path:
            rewards_through.setdefault(node, []).append(reward)
    values = {node: statistics.fmean(node_rewards) for node, node_rewards in rewards_through.items()}
    return child_pairs(paths, values, which=which, min_margin=min_margin)


def child_pairs(
    paths: Sequence[Sequence[T]], values: Mapping[T, float], *, which: Which = "all", min_margin: float = 0.0
) -> list[Pair[T]]:
    """Pair the children of every node by values of their own; a child without a value is in no pair.

    Args:
        paths: as for `sibling_pairs`.
        values: of nodes.
        which: as for `preference_pairs`, at each node.
        min_margin: as for `preference_pairs`.
    """
    children: dict[T, dict[T, None]] = {}
    for path in paths:
        for above, below in pairwise(path):
            children.setdefault(above, {})[below] = None
    return [
        pair
        for below in children.values()
        for pair in preference_pairs(
            {node: values[node] for node in below if node in values}, which=which, min_margin=min_margin
        )
    ]
