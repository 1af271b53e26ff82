"""Subset sum: the highest sum up to a target. Rows: the target; the numbers."""

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance, NumbersProblem


class SubsetSum(NumbersProblem):
    """Subset sum."""

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
