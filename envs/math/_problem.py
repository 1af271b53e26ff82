r"""What a shipped problem of `math/problems-v0` is made of; the problems themselves are in `data/problems.toml`.

A template draws numbers, puts them into a sentence, and computes the answer with one line of Python. This line is what
the oracle runs where it has Python; the tests solve every problem a second time, with sympy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from functools import cache, reduce
from itertools import product
from string import Formatter
from types import CodeType, MappingProxyType
from typing import Any, TypeVar

import numpy as np

from envgym.authoring import TaskDraft
from envgym.core.json_types import JsonValue
from envgym.envs.data_files import read_toml
from envgym.envs.math import _notation
from envgym.envs.math._stories import NAMES

ItemT = TypeVar("ItemT")
Namespace = dict[str, Any]  # what Python code may name

PREAMBLE = """from datetime import date
from fractions import Fraction
from functools import reduce
from itertools import product
from math import *"""
"""What a line of work may use."""
_WORK_NAMES: Mapping[str, object] = MappingProxyType(
    {name: value for name, value in vars(math).items() if not name.startswith("_")}
    | {"Fraction": Fraction, "date": date, "product": product, "reduce": reduce}
)
_DRAW_NAMES: Mapping[str, object] = MappingProxyType(
    {name: value for name, value in vars(_notation).items() if callable(value)} | {"timedelta": timedelta}
)


class ProblemSampler:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def between(self, low: int, high: int, step: int = 1) -> int:
        """Draw a number from low to high, in steps."""
        return low + step * int(self._rng.integers((high - low) // step + 1))

    def signed(self, low: int, high: int) -> int:
        """Draw a number from low >= 1 to high, or its negative."""
        return self.between(low, high) * self.pick((1, -1))

    def pick(self, items: Sequence[ItemT]) -> ItemT:
        return items[int(self._rng.integers(len(items)))]

    def several(self, items: Sequence[ItemT], count: int) -> list[ItemT]:
        return [items[int(index)] for index in self._rng.choice(len(items), count, replace=False)]

    def person(self) -> str:
        return self.pick(NAMES)

    def invertible_matrix(self) -> list[int]:
        """Draw nine entries, row by row, until the matrix and its upper left 2 x 2 block are both invertible."""
        while True:
            a, b, i, c, d, j, e, f, k = entries = [self.signed(1, 9) for _ in range(9)]
            if a * d != b * c and a * (d * k - j * f) - b * (c * k - j * e) + i * (c * f - d * e) != 0:
                return entries

    def functions(self) -> Mapping[str, Callable[..., object]]:
        """Return the functions that a template may call."""
        methods = (self.between, self.signed, self.pick, self.several, self.person, self.invertible_matrix)
        return {method.__name__: method for method in methods}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProblem:
    prompt: str
    facts: Mapping[str, int]
    """The numbers that make the problem."""
    work: str
    """One expression of Python whose value is the answer, or what it is made of."""
    answer: str
    """In LaTeX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTemplate:
    """One level of a family; the head of `data/problems.toml` describes the fields."""

    text: str
    draw: str
    work: str
    answer: str = "latex(value)"

    def sample(self, sampler: ProblemSampler) -> SampledProblem:
        names: Namespace = {**_WORK_NAMES, **_DRAW_NAMES, **sampler.functions()}
        exec(_compiled(self.draw, "exec"), names)
        fields = {field for part in (self.text, self.work) for _, field, _, _ in Formatter().parse(part)}
        facts = {name: value for name, value in names.items() if name in fields and isinstance(value, int)}
        work = self.work.format(**facts)
        value = eval(work, dict(_WORK_NAMES))
        answer = eval(_compiled(self.answer, "eval"), {**names, "value": value})
        return SampledProblem(prompt=self.text.format(**names), facts=facts, work=work, answer=answer)


@cache
def _compiled(code: str, mode: str) -> CodeType:
    return compile(code, "problems.toml", mode)


def _read_families() -> Mapping[str, tuple[ProblemTemplate, ...]]:
    families = read_toml("math/data/problems.toml")
    return {name: tuple(ProblemTemplate(**level) for level in levels) for name, levels in families.items()}


FAMILIES: Mapping[str, tuple[ProblemTemplate, ...]] = MappingProxyType(_read_families())
"""Name -> template of each level."""


def draft_of(name: str, level: int, problem: SampledProblem) -> TaskDraft:
    facts: dict[str, JsonValue] = dict(problem.facts)
    return TaskDraft(
        prompt=problem.prompt,
        payload={"problem": f"{name}/{level}", "facts": facts, "answer": problem.answer},
        metadata={"family": name, "level": level, "work": problem.work},
    )
