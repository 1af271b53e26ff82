"""Knapsack: the most valuable items that may be carried. Rows: the capacity; then weight and value of each item."""

from functools import lru_cache

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, numbered


def draw(rng: np.random.Generator, num: int) -> Instance:
    """Draw values near the weights, and half of the weights as capacity."""
    weights = rng.integers(5, 31, size=num).tolist()
    values = [
        max(1, weight + extra) for weight, extra in zip(weights, rng.integers(-6, 13, size=num).tolist(), strict=True)
    ]
    return ((sum(weights) // 2,), *zip(weights, values, strict=True))


def show(instance: Instance) -> str:
    """Write the goal, the capacity and the items."""
    goal = f"Knapsack: choose items with the highest total value, and a total weight of at most {instance[0][0]}."
    return f"{goal}\nItem: weight value\n{numbered(instance[1:])}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the total value, unless the items are too heavy."""
    (capacity,), *items = instance
    weight = sum(items[item - 1][0] for item in answer)
    if weight > capacity:
        return f"The total weight is {weight}, more than {capacity}."
    return sum(items[item - 1][1] for item in answer)


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return the best items, by dynamic programming over the capacity: B(c) = max(B(c), B(c - w) + v)."""
    (capacity,), *items = instance
    best: list[tuple[int, Answer]] = [(0, ())] * (capacity + 1)
    for item, (weight, value) in enumerate(items, start=1):
        for room in range(capacity, weight - 1, -1):
            total, chosen = best[room - weight]
            if total + value > best[room][0]:
                best[room] = total + value, (*chosen, item)
    return best[capacity][1]


def baseline(instance: Instance) -> float:
    """Return the value of as much as fits of the average item: capacity * values / weights."""
    (capacity,), *items = instance
    return capacity * sum(value for _, value in items) / sum(weight for weight, _ in items)


KNAPSACK = HardProblem(
    sizes=(6, 10, 20),
    form=AnswerForm.SUBSET,
    is_maximum=True,
    asked="the numbers of the chosen items",
    draw=draw,
    show=show,
    num_things=lambda instance: len(instance) - 1,
    evaluate=evaluate,
    solve=solve,
    baseline=baseline,
    canonical=lambda instance: (instance[0], *sorted(instance[1:])),
)
