"""What a problem of `code/stdio-v0` is made of, and the tests that are drawn for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envgym.authoring import TaskDraft
from envgym.core.json_types import JsonValue
from envgym.seeds import generator

Draw = Callable[[np.random.Generator], str]
"""Draws an input, without the newline at its end."""
NUM_PUBLIC, NUM_HIDDEN = 2, 8
_MIN_DIFFERENT = 4
"""Different outputs among the tests of a problem: what prints always the same passes none."""
_MAX_DRAWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioProblem:
    """A program to write: what it must print for an input."""

    name: str
    statement: str
    solve: Callable[[str], str]
    """The reference: input, without the newline at its end -> output, likewise."""
    draw: Draw
    level: int
    """1 to 3."""


def draft_of(problem: StdioProblem) -> TaskDraft:
    """Draw the tests of a problem; its first two are shown as examples."""
    rng = generator("code/stdio", problem.name)
    cases: dict[str, str] = {}
    for _ in range(_MAX_DRAWS):
        if len(cases) >= NUM_PUBLIC + NUM_HIDDEN and len(set(cases.values())) >= _MIN_DIFFERENT:
            break
        text = problem.draw(rng)
        cases[text] = problem.solve(text)
    chosen = _pick_varied(cases)
    tests: list[JsonValue] = [{"input": f"{text}\n", "output": output} for text, output in chosen]
    return TaskDraft(
        prompt=problem.statement,
        payload={"statement": problem.statement, "tests": tests},
        metadata={"problem": problem.name, "level": problem.level},
    )


def _pick_varied(cases: dict[str, str]) -> list[tuple[str, str]]:
    """Return as many cases as a problem has, those with outputs of their own first."""
    fresh: dict[str, tuple[str, str]] = {}
    for text, output in cases.items():
        fresh.setdefault(output, (text, output))
    firsts = list(fresh.values())
    rest = [case for case in cases.items() if case not in firsts]
    return [*firsts, *rest][: NUM_PUBLIC + NUM_HIDDEN]


def numbers(low: int, high: int, most: int, fewest: int = 1) -> Draw:
    """Draw a line with a count and a line with so many integers."""

    def draw(rng: np.random.Generator) -> str:
        values = rng.integers(low, high + 1, rng.integers(fewest, most + 1)).tolist()
        return f"{len(values)}\n{' '.join(map(str, values))}"

    return draw


def integers(*ranges: tuple[int, int]) -> Draw:
    """Draw one line with an integer from each range."""
    return lambda rng: " ".join(str(rng.integers(low, high + 1)) for low, high in ranges)


def words(most: int, letters: str = "abcdefghij", longest: int = 8) -> Draw:
    """Draw a line of words."""

    def draw(rng: np.random.Generator) -> str:
        count = int(rng.integers(2, most + 1))
        return " ".join("".join(rng.choice(list(letters), rng.integers(1, longest + 1))) for _ in range(count))

    return draw


def grid(most: int, low: int = 0, high: int = 9, *, square: bool = False) -> Draw:
    """Draw a line with the numbers of rows and columns, and the rows."""

    def draw(rng: np.random.Generator) -> str:
        rows = int(rng.integers(2, most + 1))
        columns = rows if square else int(rng.integers(2, most + 1))
        cells = rng.integers(low, high + 1, (rows, columns)).tolist()
        return "\n".join([f"{rows} {columns}", *(" ".join(map(str, row)) for row in cells)])

    return draw


def read_numbers(text: str) -> list[int]:
    """Read what `numbers` draws."""
    return [int(word) for word in text.split()[1:]]


def read_grid(text: str) -> list[list[int]]:
    """Read what `grid` draws."""
    return [[int(word) for word in line.split()] for line in text.split("\n")[1:]]


def join_values(values: list[int] | list[str]) -> str:
    """Write values on a line."""
    return " ".join(map(str, values))
