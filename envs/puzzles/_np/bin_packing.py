"""Bin packing: as few bins as possible. Rows: the capacity of a bin; the sizes of the items."""

from functools import lru_cache
from itertools import count

import numpy as np

from envgym.envs.puzzles._np.packing import loads_of, pack
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance

CAPACITY = 100
MIN_SIZE = 10
MAX_SPARE = 5
"""A bin of the packing from which the sizes are made has so much room to spare at most."""


def draw(rng: np.random.Generator, num: int) -> Instance:
    """Cut bins that are nearly full into three items each, and mix them: what fits only just is hard to find."""
    sizes: list[int] = []
    while len(sizes) < num:
        full = CAPACITY - int(rng.integers(MAX_SPARE + 1))
        first, second = sorted(rng.integers(MIN_SIZE, full - MIN_SIZE + 1, size=2).tolist())
        if second - first >= MIN_SIZE:
            sizes += [first, second - first, full - second]
    return ((CAPACITY,), tuple(sizes[item] for item in rng.permutation(num).tolist()))


def show(instance: Instance) -> str:
    """Write the goal and the sizes."""
    (capacity,), sizes = instance
    goal = f"Bin packing: put all items into as few bins as possible. A bin holds a total size of at most {capacity}."
    rows = "\n".join(f"{item}: {size}" for item, size in enumerate(sizes, start=1))
    return f"{goal}\nItem: size\n{rows}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the number of bins, unless one holds too much."""
    (capacity,), sizes = instance
    loads = loads_of(sizes, answer)
    for place, load in loads.items():
        if load > capacity:
            return f"Bin {place} holds {load}, more than {capacity}."
    return len(loads)


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return a packing with the fewest bins: the first number of bins for which there is one."""
    (capacity,), sizes = instance
    return next(answer for num in count(1) if (answer := pack(sizes, capacity, num)) is not None)


def baseline(instance: Instance) -> float:
    """Return 3/2 of the bins that the sizes fill: largest first never needs more than 3/2 of the fewest bins."""
    (capacity,), sizes = instance
    return 1.5 * sum(sizes) / capacity


BIN_PACKING = HardProblem(
    sizes=(6, 9, 15),
    form=AnswerForm.GROUPS,
    is_maximum=False,
    asked="the bin of each item",
    draw=draw,
    show=show,
    num_things=lambda instance: len(instance[1]),
    num_groups=lambda instance: len(instance[1]),
    evaluate=evaluate,
    solve=solve,
    baseline=baseline,
    canonical=lambda instance: (instance[0], tuple(sorted(instance[1]))),
)
