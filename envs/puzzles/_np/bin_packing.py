"""Bin packing: as few bins as possible. Rows: the capacity of a bin; the sizes of the items."""

from itertools import count

import numpy as np

from envgym.envs.puzzles._np.packing import loads_of, pack
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance, NumbersProblem

CAPACITY = 100
MIN_SIZE = 10
MAX_SPARE = 5
"""A bin of the packing from which the sizes are made has so much room to spare at most."""


class BinPacking(NumbersProblem):
    """Bin packing."""

    sizes = (6, 9, 15)
    form, is_maximum = AnswerForm.GROUPS, False
    answer_text = "the bin of each item"
    goal = (
        "Bin packing: put all items into as few bins as possible. A bin holds a total size of at most {first}.\n"
        "Item: size"
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Cut bins that are nearly full into three items each, and mix them: what fits only just is hard to find."""
        sizes: list[int] = []
        while len(sizes) < num:
            full = CAPACITY - int(rng.integers(MAX_SPARE + 1))
            first, second = sorted(rng.integers(MIN_SIZE, full - MIN_SIZE + 1, size=2).tolist())
            if second - first >= MIN_SIZE:
                sizes += [first, second - first, full - second]
        return ((CAPACITY,), tuple(sizes[item] for item in rng.permutation(num).tolist()))

    def num_groups(self, instance: Instance) -> int:
        return len(instance[1])

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        (capacity,), sizes = instance
        loads = loads_of(sizes, answer)
        for place, load in loads.items():
            if load > capacity:
                return f"Bin {place} holds {load}, more than {capacity}."
        return len(loads)

    def find_best(self, instance: Instance) -> Answer:
        """Return a packing with the fewest bins: the first number of bins for which there is one."""
        (capacity,), sizes = instance
        return next(answer for num in count(1) if (answer := pack(sizes, capacity, num)) is not None)

    def baseline(self, instance: Instance) -> float:
        """Return 3/2 of the bins that the sizes fill: largest first never needs more than 3/2 of the fewest bins."""
        (capacity,), sizes = instance
        return 1.5 * sum(sizes) / capacity
