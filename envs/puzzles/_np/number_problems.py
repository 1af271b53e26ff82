"""Problems about rows of numbers, and whether things fit into bins of one capacity."""

from collections.abc import Sequence
from itertools import count

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, NumbersProblem, numbered


def pack(sizes: Sequence[int], capacity: int, num_bins: int) -> Answer | None:
    """Return a bin, from 1, for each thing so that no bin holds more than `capacity`; None where there is no way.

    Depth first, largest things and fullest bins first; of bins that hold the same one is tried, loads from which the
    rest did not fit are remembered, and what stays empty for certain may not be more than the bins have to spare.
    """
    spare, smallest = num_bins * capacity - sum(sizes), min(sizes)
    order = sorted(range(len(sizes)), key=lambda thing: -sizes[thing])
    loads, bins = [0] * num_bins, [0] * len(sizes)
    hopeless: set[tuple[int, ...]] = set()

    def is_packed(index: int) -> bool:
        if index == len(order):
            return True
        key = (index, *sorted(loads))
        lost = sum(capacity - load for load in loads if capacity - load < smallest)
        if lost > spare or key in hopeless:
            return False
        size = sizes[order[index]]
        for load in sorted({load for load in loads if load + size <= capacity}, reverse=True):
            place = loads.index(load)
            loads[place] += size
            bins[order[index]] = place + 1
            if is_packed(index + 1):
                return True
            loads[place] = load
        hopeless.add(key)
        return False

    return tuple(bins) if spare >= 0 and is_packed(0) else None


def loads_of(sizes: Sequence[int], bins: Answer) -> dict[int, int]:
    """Return the load of each used bin."""
    loads: dict[int, int] = {}
    for size, place in zip(sizes, bins, strict=True):
        loads[place] = loads.get(place, 0) + size
    return loads


CAPACITY = 100
MIN_SIZE = 10
MAX_SPARE = 5
"""A bin of the packing from which the sizes are made has so much room to spare at most."""


class BinPacking(NumbersProblem):
    """Bin packing: as few bins as possible. Rows: the capacity of a bin; the sizes of the items."""

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


JOBS_PER_MACHINE = 3


class Makespan(NumbersProblem):
    """Scheduling on equal machines, the last to end as early as possible. Rows: the number of machines; the times."""

    sizes = (6, 9, 12)
    form, is_maximum = AnswerForm.GROUPS, False
    answer_text = "the machine of each job"
    goal = (
        "Scheduling: give each job to one of {first} machines, so that the last machine is done as early as possible.\n"
        "Job: time"
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        return ((num // JOBS_PER_MACHINE,), tuple(rng.integers(5, 41, size=num).tolist()))

    def num_groups(self, instance: Instance) -> int:
        return instance[0][0]

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        return max(loads_of(instance[1], answer).values())

    def find_best(self, instance: Instance) -> Answer:
        """Return a best schedule: the first time in which all machines can end."""
        (machines,), times = instance
        lowest = max(*times, -(-sum(times) // machines))
        return next(answer for time in count(lowest) if (answer := pack(times, time, machines)) is not None)

    def baseline(self, instance: Instance) -> float:
        """Return the makespan of the longest job first: each job goes to the machine that has the least so far."""
        (machines,), times = instance
        loads = [0] * machines
        for time in sorted(times, reverse=True):
            loads[loads.index(min(loads))] += time
        return max(loads)


class SubsetSum(NumbersProblem):
    """Subset sum: the highest sum up to a target. Rows: the target; the numbers."""

    sizes = (6, 10, 16)
    form, is_maximum = AnswerForm.SUBSET, True
    answer_text = "the places of the chosen numbers"
    goal = "Subset sum: choose numbers whose sum is as high as possible, and at most {first}."

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw numbers of three digits, and half of their sum as target."""
        numbers = tuple(rng.integers(100, 1000, size=num).tolist())
        return ((sum(numbers) // 2,), numbers)

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        (target,), numbers = instance
        total = sum(numbers[place - 1] for place in answer)
        return total if total <= target else f"The sum is {total}, more than {target}."

    def find_best(self, instance: Instance) -> Answer:
        """Return the places of a best sum; bit s of `reached[k]`: the first k numbers have a subset of sum s."""
        (target,), numbers = instance
        reached = [1]
        for number in numbers:
            reached.append(reached[-1] | reached[-1] << number)
        total = (reached[-1] & (1 << target + 1) - 1).bit_length() - 1
        places = []
        for place in range(len(numbers), 0, -1):
            if not reached[place - 1] >> total & 1:
                places.append(place)
                total -= numbers[place - 1]
        return tuple(sorted(places))

    def baseline(self, instance: Instance) -> float:
        """Return the sum of the largest numbers, each taken where it fits."""
        (left,), numbers = instance
        target = left
        for number in sorted(numbers, reverse=True):
            left -= number if number <= left else 0
        return target - left


class Knapsack(HardProblem):
    """Knapsack: the most valuable items that may be carried. Rows: the capacity; then weight and value of each item."""

    sizes = (6, 10, 20)
    form, is_maximum = AnswerForm.SUBSET, True
    answer_text = "the numbers of the chosen items"
    goal = (
        "Knapsack: choose items with the highest total value, and a total weight of at most {first}.\n"
        "Item: weight value"
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw values near the weights, and half of the weights as capacity."""
        weights = rng.integers(5, 31, size=num).tolist()
        extras = rng.integers(-6, 13, size=num).tolist()
        values = [max(1, weight + extra) for weight, extra in zip(weights, extras, strict=True)]
        return ((sum(weights) // 2,), *zip(weights, values, strict=True))

    def show_things(self, instance: Instance) -> str:
        return numbered(instance[1:])

    def num_things(self, instance: Instance) -> int:
        return len(instance) - 1

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        (capacity,), *items = instance
        weight = sum(items[item - 1][0] for item in answer)
        if weight > capacity:
            return f"The total weight is {weight}, more than {capacity}."
        return sum(items[item - 1][1] for item in answer)

    def find_best(self, instance: Instance) -> Answer:
        """Return the best items, by dynamic programming over the capacity: B(c) = max(B(c), B(c - w) + v)."""
        (capacity,), *items = instance
        best: list[tuple[int, Answer]] = [(0, ())] * (capacity + 1)
        for item, (weight, value) in enumerate(items, start=1):
            for room in range(capacity, weight - 1, -1):
                total, packed = best[room - weight]
                if total + value > best[room][0]:
                    best[room] = total + value, (*packed, item)
        return best[capacity][1]

    def baseline(self, instance: Instance) -> float:
        """Return the value of as much as fits of the average item: capacity * values / weights."""
        (capacity,), *items = instance
        return capacity * sum(value for _, value in items) / sum(weight for weight, _ in items)

    def canonical(self, instance: Instance) -> Instance:
        return (instance[0], *sorted(instance[1:]))
