"""`random_expand`: Tree-GRPO's search. Source: 2509.21240.

The states of a round are drawn uniformly among all at which a turn begins, the root included. A round draws no state
twice before it has drawn all of them once. Leaves of a tree: 1 + N L.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from envgym.agents.search.branches import Branch
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.rounds import RoundStrategy
from envgym.seeds import generator

T = TypeVar("T")


class RandomExpand(RoundStrategy):
    """Continue from `nodes` states drawn at random, `rounds` times."""

    name: ClassVar[str] = "random_expand"

    def decide(self, tree: SearchTree, count: int, number: int) -> list[Branch]:
        """Begin one branch at each of `count` drawn states."""
        states = draw(tree.states, count, tree.job.sampling_seed, "round", number)
        return [tree.add_branch(state) for state in states]


def draw(items: Sequence[T], count: int, *seed: int | str) -> list[T]:
    """Draw `count` items uniformly; none is drawn twice before all were drawn once."""
    numbers = generator(*seed)
    sample: list[T] = []
    while len(sample) < count:
        order = numbers.permutation(len(items))[: count - len(sample)]
        sample.extend(items[index] for index in order)
    return sample
