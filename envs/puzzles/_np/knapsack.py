"""Knapsack: the most valuable items that may be carried. Rows: the capacity; then weight and value of each item."""

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, numbered


class Knapsack(HardProblem):
    """Knapsack."""

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
