"""Subset sum: the highest sum up to a target. Rows: the target; the numbers."""

from functools import lru_cache

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance


def draw(rng: np.random.Generator, num: int) -> Instance:
    """Draw numbers of three digits, and half of their sum as target."""
    numbers = tuple(rng.integers(100, 1000, size=num).tolist())
    return ((sum(numbers) // 2,), numbers)


def show(instance: Instance) -> str:
    """Write the goal, the target and the numbers."""
    (target,), numbers = instance
    rows = "\n".join(f"{place}: {number}" for place, number in enumerate(numbers, start=1))
    return f"Subset sum: choose numbers whose sum is as high as possible, and at most {target}.\n{rows}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the sum, unless it is above the target."""
    (target,), numbers = instance
    total = sum(numbers[place - 1] for place in answer)
    return total if total <= target else f"The sum is {total}, more than {target}."


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return the places of a best sum; bit s of `reached[k]` says that the first k numbers have a subset of sum s."""
    (target,), numbers = instance
    reached = [1]
    for number in numbers:
        reached.append(reached[-1] | reached[-1] << number)
    total = (reached[-1] & (1 << target + 1) - 1).bit_length() - 1
    chosen = []
    for place in range(len(numbers), 0, -1):
        if not reached[place - 1] >> total & 1:
            chosen.append(place)
            total -= numbers[place - 1]
    return tuple(sorted(chosen))


def baseline(instance: Instance) -> float:
    """Return the sum of the largest numbers, each taken where it fits."""
    (left,), numbers = instance
    target = left
    for number in sorted(numbers, reverse=True):
        left -= number if number <= left else 0
    return target - left


SUBSET_SUM = HardProblem(
    sizes=(6, 10, 16),
    form=AnswerForm.SUBSET,
    is_maximum=True,
    asked="the places of the chosen numbers",
    draw=draw,
    show=show,
    num_things=lambda instance: len(instance[1]),
    evaluate=evaluate,
    solve=solve,
    baseline=baseline,
    canonical=lambda instance: (instance[0], tuple(sorted(instance[1]))),
)
