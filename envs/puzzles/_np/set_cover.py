"""Set cover: as few sets as possible that together hold everything. Rows: the number of elements; each set, sorted."""

from collections.abc import Sequence
from itertools import count

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, numbered
from envgym.envs.puzzles._np.symmetry import canonical_order

WORTHLESS_SHARE = 0.75
"""Of the sets: so many often cover everything, whichever they are, and are worth nothing."""
MIN_SIZE, MAX_SIZE = 2, 4
"""Elements of a set, before those that are in none are added."""


class SetCover(HardProblem):
    """Minimum set cover."""

    sizes = (8, 12, 20)
    form, is_maximum = AnswerForm.SUBSET, False
    answer_text = "the numbers of the chosen sets"
    goal = (
        "Set cover: choose as few sets as possible, so that each of the elements 1 to {first} is in one.\nSet: elements"
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw as many sets as there are elements; an element that is in none is put into one of them."""
        sets = [set(rng.permutation(num)[: rng.integers(MIN_SIZE, MAX_SIZE + 1)].tolist()) for _ in range(num)]
        for element in sorted(set(range(num)).difference(*sets)):
            sets[rng.integers(num)].add(element)
        return ((num,), *(tuple(sorted(element + 1 for element in one)) for one in sets))

    def show_things(self, instance: Instance) -> str:
        return numbered(instance[1:])

    def num_things(self, instance: Instance) -> int:
        return len(instance) - 1

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        covered = {element for number in answer for element in instance[number]}
        if len(covered) < instance[0][0]:
            missing = next(element for element in range(1, instance[0][0] + 1) if element not in covered)
            return f"The element {missing} is in none of these sets."
        return len(answer)

    def find_best(self, instance: Instance) -> Answer:
        """Return a smallest cover: the first number of sets for which there is one."""
        (num,), *sets = instance
        masks = [sum(1 << element - 1 for element in one) for one in sets]
        holders = [[place for place, mask in enumerate(masks) if mask >> element & 1] for element in range(num)]
        holders.sort(key=len)
        return next(answer for most in count(1) if (answer := _cover(masks, holders, 0, most)) is not None)

    def baseline(self, instance: Instance) -> float:
        return WORTHLESS_SHARE * (len(instance) - 1)

    def canonical(self, instance: Instance) -> Instance:
        """Name the elements by the canonical order of the graph of elements and sets."""
        (num,), *sets = instance
        edges = {(element - 1, row): 0 for row, one in enumerate(sets, start=num) for element in one}
        order = canonical_order([0] * num + [1] * len(sets), edges)
        names = {vertex + 1: name for name, vertex in enumerate(order[:num], start=1)}
        return ((num,), *sorted(tuple(sorted(names[element] for element in one)) for one in sets))


def _cover(masks: Sequence[int], holders: Sequence[Sequence[int]], selection: int, left: int) -> Answer | None:
    """Add up to `left` sets to those that are bits of `selection`, each through the first element not covered."""
    open_element = next((places for places in holders if not any(selection >> place & 1 for place in places)), None)
    if open_element is None:
        return tuple(place + 1 for place in range(len(masks)) if selection >> place & 1)
    for place in open_element if left else ():
        answer = _cover(masks, holders, selection | 1 << place, left - 1)
        if answer is not None:
            return answer
    return None
