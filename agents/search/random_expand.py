"""`random_expand`: Tree-GRPO's search. Source: 2509.21240.

The places of a round are drawn uniformly among all at which a turn begins, the root included. A round draws no place
twice before it has drawn all of them once. Leaves of a tree: 1 + N L.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from envgym.agents.search.branches import Branch
from envgym.agents.search.expanding import Expanding
from envgym.agents.search.growth import Growth
from envgym.seeds import generator

T = TypeVar("T")


class RandomExpand(Expanding):
    """Continue from `nodes` places drawn at random, `rounds` times."""

    name: ClassVar[str] = "random_expand"

    def decide(self, growth: Growth, count: int, number: int) -> list[Branch]:
        """Begin one branch at each of `count` drawn places."""
        places = draw(growth.places(), count, growth.job.sampling_seed, "round", number)
        return [growth.branch(place) for place in places]


def draw(places: Sequence[T], count: int, *seed: int | str) -> list[T]:
    """Draw `count` places uniformly; none is drawn twice before all were drawn once."""
    numbers = generator(*seed)
    found: list[T] = []
    while len(found) < count:
        order = numbers.permutation(len(places))[: count - len(found)]
        found.extend(places[place] for place in order)
    return found
