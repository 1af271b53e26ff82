r"""What a shipped problem of `math/problems-v0` is made of.

A family draws numbers, tells them in a sentence, and says in one line of Python how the answer follows from them. This
line is the first way to the answer, and what the oracle runs where it has Python; the tests go another way, with sympy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import reduce
from itertools import product
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from envgym.authoring import TaskDraft
from envgym.core.json_types import JsonValue
from envgym.envs.math._stories import NAMES

Item = TypeVar("Item")

PREAMBLE = """from datetime import date
from fractions import Fraction
from functools import reduce
from itertools import product
from math import *"""
"""What a line of work may use."""
_NAMES = {name: value for name, value in vars(math).items() if not name.startswith("_")} | {
    "Fraction": Fraction,
    "date": date,
    "product": product,
    "reduce": reduce,
}


class ProblemSampler:
    """Draws what problems are made of."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw from `rng`."""
        self._rng = rng

    def between(self, low: int, high: int, step: int = 1) -> int:
        """Draw a number from low to high, in steps."""
        return low + step * int(self._rng.integers((high - low) // step + 1))

    def signed(self, low: int, high: int) -> int:
        """Draw a number from low >= 1 to high, or its negative."""
        return self.between(low, high) * self.pick((1, -1))

    def pick(self, items: Sequence[Item]) -> Item:
        """Draw one of several."""
        return items[int(self._rng.integers(len(items)))]

    def several(self, items: Sequence[Item], count: int) -> list[Item]:
        """Draw some different ones."""
        return [items[int(index)] for index in self._rng.choice(len(items), count, replace=False)]

    def person(self) -> str:
        """Draw a name."""
        return self.pick(NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProblem:
    """A problem that was drawn."""

    prompt: str
    facts: Mapping[str, int]
    """The numbers that make the problem."""
    work: str
    """One expression of Python whose value is the answer, or what it is made of."""
    answer: str
    """In LaTeX."""


Family = Callable[[ProblemSampler, int], SampledProblem]
"""Draws a problem of a level, 1 to 3."""


def ask(
    text: str,
    work: str,
    answer: Callable[..., str] | None = None,
    *,
    words: Mapping[str, object] = MappingProxyType({}),
    numbers: Mapping[str, int] = MappingProxyType({}),
    **more: int,
) -> SampledProblem:
    """Tell a problem.

    Args:
        text: With the facts and words in braces.
        work: Likewise; its value is the answer.
        answer: Writes the value where it is not simply a number.
        words: What is told but makes no difference.
        numbers: The facts, by the names that `text` and `work` use.
        **more: Likewise.
    """
    facts = {**numbers, **more}
    told = work.format(**facts)
    value = eval(told, dict(_NAMES))  # noqa: S307,RUF100  # a line of this package
    return SampledProblem(
        prompt=text.format(**facts, **words),
        facts=facts,
        work=told,
        answer=latex(value) if answer is None else answer(value),
    )


def latex(value: int | Fraction) -> str:
    r"""Write a number: `-7`, or `-\frac{1}{2}`."""
    number = Fraction(value)
    if number.denominator == 1:
        return str(number.numerator)
    return f"{'-' * (number < 0)}\\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"


def times(value: int | Fraction, unit: str) -> str:
    r"""Write a multiple of a unit: `3\pi`, `\pi`, `-\pi`, `0`."""
    size = "" if abs(value) == 1 else latex(Fraction(value)).lstrip("-")
    return "0" if value == 0 else f"{'-' * (value < 0)}{size}{unit}"


def root(square: int) -> str:
    r"""Write a square root with the squares drawn out: `5`, `\sqrt{7}`, `2\sqrt{3}`."""
    outside = max(k for k in range(1, math.isqrt(square) + 1) if square % k**2 == 0)
    inside = square // outside**2
    return str(outside) if inside == 1 else f"{'' if outside == 1 else outside}\\sqrt{{{inside}}}"


def listed(values: Sequence[int | Fraction]) -> str:
    """Write numbers in a row: `3, -2`."""
    return ", ".join(map(latex, values))


def tupled(values: Sequence[int | Fraction]) -> str:
    """Write a tuple: `(3, -2)`."""
    return f"({listed(values)})"


def polynomial(coefficients: Sequence[int], variable: str = "x") -> str:
    """Write a polynomial, the highest power first: `2x^3 - x + 5`."""
    degree = len(coefficients) - 1
    parts: list[str] = []
    for index, coefficient in enumerate(coefficients):
        power = degree - index
        if coefficient == 0:
            continue
        body = "" if power == 0 else variable if power == 1 else f"{variable}^{power}"
        size = "" if abs(coefficient) == 1 and body else str(abs(coefficient))
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(f"{sign}{size}{body}")
    return "".join(parts) or "0"


def draft_of(name: str, level: int, drawn: SampledProblem) -> TaskDraft:
    """Make the task of a drawn problem."""
    facts: dict[str, JsonValue] = dict(drawn.facts)
    return TaskDraft(
        prompt=drawn.prompt,
        payload={"problem": f"{name}/{level}", "facts": facts, "answer": drawn.answer},
        metadata={"family": name, "level": level, "work": drawn.work},
    )
