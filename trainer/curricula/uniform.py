"""Every task equally often; every env by its weight."""

from collections.abc import Mapping, Sequence

from envgym.seeds import generator
from envgym.settings import Settings
from envgym.trainer.points import EnvSupply, TaskRequest, TaskStats

ENDLESS = 2**31
"""Indices drawn from where the supply of tasks does not end."""


class Uniform(Settings):
    """Draw tasks without looking at how they went.

    An env whose tasks end is gone through in shuffled epochs (each task once an epoch); an endless one is drawn
    from at random. Envs take turns by weight, so that the shares are exact up to one group.
    """

    def choose(
        self,
        *,
        step: int,
        num_groups: int,
        group_size: int,
        supplies: Sequence[EnvSupply],
        stats: Mapping[tuple[str, int], TaskStats],
        seed: int,
    ) -> Sequence[TaskRequest]:
        """Return the groups of train step `step`."""
        del stats
        first = step * num_groups
        owners = _owners(first + num_groups, [supply.weight for supply in supplies])
        counts = [owners[:first].count(number) for number in range(len(supplies))]
        requests: list[TaskRequest] = []
        for owner in owners[first:]:
            supply = supplies[owner]
            requests.append(TaskRequest(supply.name, _index(supply, counts[owner], seed), group_size))
            counts[owner] += 1
        return requests


def _owners(length: int, weights: Sequence[float]) -> list[int]:
    """Deal `length` turns: each goes to the env that is furthest behind its share."""
    dealt = [0] * len(weights)
    owners: list[int] = []
    for _ in range(length):
        owner = min(range(len(weights)), key=lambda number: ((dealt[number] + 1) / weights[number], number))
        dealt[owner] += 1
        owners.append(owner)
    return owners


def _index(supply: EnvSupply, place: int, seed: int) -> int:
    """Return the task at `place` of the env's endless sequence of draws."""
    if supply.size is None:
        return int(generator(seed, supply.name, place).integers(ENDLESS))
    epoch, offset = divmod(place, supply.size)
    return int(generator(seed, supply.name, "epoch", epoch).permutation(supply.size)[offset])
