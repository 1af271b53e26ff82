"""Selection and backup of tree search, as pure functions of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def uct(value: float, visits: int, parent_visits: int, *, c: float) -> float:
    """Return Q + c sqrt(ln N_parent / N); a child without visits comes first.

    Source: 2509.25454 with c = 2 (called PUCT there); 2406.03816 is c = C sqrt 2.
    """
    if visits == 0:
        return math.inf
    return value + c * math.sqrt(math.log(max(parent_visits, 1)) / visits)


def puct(value: float, visits: int, parent_visits: int, *, prior: float, c: float) -> float:
    """Return Q + c P sqrt(N_parent) / (1 + N). Source: 1712.01815."""
    return value + c * prior * math.sqrt(parent_visits) / (1 + visits)


def num_children(visits: int, *, width: int, widening: float) -> int:
    """Return how many children a node may have: ceil(N^widening), at most `width`, at least 1."""
    return max(min(math.ceil(math.pow(visits, widening)), width), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierWeights:
    """Weights of `frontier_score`. Source: the values of 2509.25454, surprisal off."""

    parent: float = 0.4
    own: float = 0.0
    surprisal: float = 0.0
    depth: float = 0.01


def frontier_score(
    *, value: float, parent_value: float, surprisal: float, depth: int, max_depth: int, weights: FrontierWeights
) -> float:
    """Return w_p tanh(Q_parent) + w_o tanh(Q) + w_s H + w_d sqrt(d / d_max). Source: 2509.25454.

    Args:
        value: Q of the node.
        parent_value: Q of its parent, 0.0 for the root.
        surprisal: H, mean surprisal of the node's turn, nats a token.
        depth: d, turns from the root.
        max_depth: d_max, largest depth in the tree.
        weights: of the terms.
    """
    far = math.sqrt(depth / max_depth) if max_depth else 0.0
    closeness = weights.parent * math.tanh(parent_value) + weights.own * math.tanh(value)
    return closeness + weights.surprisal * surprisal + weights.depth * far


def decayed_backup(values: Sequence[float], outcome: float) -> list[float]:
    """Return the values along a path after an outcome: q_i += gamma_i outcome, gamma_i = max((i + 1) / length, 0.1).

    A positive outcome overwrites a negative value, and a negative outcome leaves a positive value, so that every node
    of a path to a success stays positive. Source: 2509.25454.

    Args:
        values: q of the nodes from the root to the end of the episode.
        outcome: +1 for a success, -1 for a failure.
    """
    backed_up: list[float] = []
    for depth, value in enumerate(values):
        step = max((depth + 1) / len(values), 0.1) * outcome
        if value < 0 < outcome:
            backed_up.append(step)
        elif outcome < 0 < value:
            backed_up.append(value)
        else:
            backed_up.append(value + step)
    return backed_up


def roll_forward_value(value: float, later: Sequence[float], *, mix: float) -> float:
    """Return (1 - mix) V + mix max(V of later turns); V where there are none. Source: 2406.03816."""
    return (1 - mix) * value + mix * max(later) if later else value
