"""Every task equally often; every env by its weight."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from envgym.seeds import generator
from envgym.trainer.methods.protocols import CurriculumContext, EnvSupply, GroupSource, TaskRequest

ENDLESS = 2**31
"""Indices drawn from where the supply of tasks does not end."""


class Uniform(GroupSource):
    """Draw tasks uniformly, independent of their results.

    An env whose tasks end is drawn from in shuffled epochs, each task once an epoch; an endless one at random. (A step
    that may resample draws for all its rounds, so an epoch passes over the tasks of rounds that were not needed.) Envs
    take turns by weight, so that the shares are exact up to one group.
    """

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        weights = [supply.weight for supply in context.supplies]
        dealt = turns_dealt(context.first, weights)
        requests: list[TaskRequest] = []
        for _ in range(context.num_groups):
            owner = _next(dealt, weights)
            supply = context.supplies[owner]
            requests.append(TaskRequest(supply.name, _index(supply, dealt[owner], context.seed), context.group_size))
            dealt[owner] += 1
        return requests


def _next(dealt: Sequence[int], weights: Sequence[float]) -> int:
    """Return who has the next turn: the env that is furthest behind its share."""
    return min(range(len(weights)), key=lambda number: ((dealt[number] + 1) / weights[number], number))


def turns_dealt(length: int, weights: Sequence[float]) -> list[int]:
    """Return how many of the first `length` turns each env has had.

    Turn k of env i is the earlier the smaller k / w_i. So all turns with k / w_i <= t are among the first t Σ w; only
    those after them are dealt one by one.
    """
    surely = max(length - 2 * len(weights), 0) / sum(weights)
    dealt = [int(surely * weight) for weight in weights]
    for _ in range(length - sum(dealt)):
        dealt[_next(dealt, weights)] += 1
    return dealt


def turns_of_step(context: CurriculumContext) -> list[int]:
    """Return how many of a step's groups each env has."""
    weights = [supply.weight for supply in context.supplies]
    before, after = (turns_dealt(context.first + count, weights) for count in (0, context.num_groups))
    return [last - first for first, last in zip(before, after, strict=True)]


def _index(supply: EnvSupply, place: int, seed: int) -> int:
    """Return the task at `place` of the env's endless sequence of draws."""
    if supply.size is None:
        return int(generator(seed, supply.name, place).integers(ENDLESS))
    epoch, offset = divmod(place, supply.size)
    return int(_epoch(seed, supply.name, epoch, supply.size)[offset])


@lru_cache(maxsize=16)
def _epoch(seed: int, name: str, epoch: int, size: int) -> npt.NDArray[np.int64]:
    return generator(seed, name, "epoch", epoch).permutation(size)
