"""What a problem of `code/stdio-v0` is made of, and the tests that are drawn for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from envgym.authoring import TaskDraft
from envgym.core.json_types import JsonValue
from envgym.errors import EnvFailure
from envgym.seeds import generator

Program = Callable[[str], str]
"""Input, without the newline at its end -> output, likewise."""
Draw = Callable[[np.random.Generator], str]
"""Draws an input, without the newline at its end."""
NUM_PUBLIC, NUM_HIDDEN = 2, 8
_MIN_DIFFERENT = 4
"""Different outputs among the tests of a problem: what prints always the same passes none."""
_MAX_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioProblem:
    """A program to write: what it must print for an input."""

    name: str
    statement: str
    solve: Program
    """The reference."""
    draw: Draw
    level: int
    """1 to 3."""
    mutants: Mapping[str, Program] = field(default_factory=dict)
    """Programs that are almost right, each of which must fail a hidden test."""


def draft_of(problem: StdioProblem) -> TaskDraft:
    """Draw the tests of a problem; its first two are shown as examples.

    Raises: EnvFailure: a mutant survives all inputs drawn, or killing all takes more tests than a problem has.
    """
    rng = generator("code/stdio", problem.name)
    cases: dict[str, str] = {}
    examples: list[str] = []
    killing: list[str] = []
    """Hidden inputs on each of which a mutant fails that passes all before."""
    surviving = dict(problem.mutants)
    for _ in range(_MAX_DRAWS):
        if not surviving and len(cases) >= NUM_PUBLIC + NUM_HIDDEN and len(set(cases.values())) >= _MIN_DIFFERENT:
            break
        text = problem.draw(rng)
        if text in cases:
            continue
        output = problem.solve(text)
        if len(examples) < NUM_PUBLIC and output not in cases.values():
            examples.append(text)
        elif killed := {name for name, program in surviving.items() if program(text) != output}:
            killing.append(text)
            surviving = {name: program for name, program in surviving.items() if name not in killed}
        cases[text] = output
    inputs = _fill([*examples, *killing], cases)
    if len(killing) > NUM_HIDDEN or len({cases[text] for text in inputs}) < _MIN_DIFFERENT:
        killing = _without_superfluous(killing, cases, problem.mutants)
        inputs = _fill([*examples, *killing], cases)
    if surviving or len(killing) > NUM_HIDDEN:
        must, do = f"fail one of {NUM_HIDDEN} hidden tests", "declare them equivalent, or draw inputs that kill them"
        got = ", ".join(surviving) or f"{len(killing)} tests needed"
        raise EnvFailure.of("mutants", must, got, where=f"problem {problem.name}", do=do)
    tests: list[JsonValue] = [{"input": f"{text}\n", "output": cases[text]} for text in inputs]
    return TaskDraft(
        prompt=problem.statement,
        payload={"statement": problem.statement, "tests": tests},
        metadata={"problem": problem.name, "level": problem.level},
    )


def _without_superfluous(killing: list[str], cases: dict[str, str], mutants: Mapping[str, Program]) -> list[str]:
    """Leave out inputs on which no mutant fails that passes all others."""
    fails = {text: {name for name, program in mutants.items() if program(text) != cases[text]} for text in killing}
    for text in killing:
        others = set[str]().union(*(names for other, names in fails.items() if other != text))
        if fails[text] <= others:
            del fails[text]
    return list(fails)


def _fill(inputs: list[str], cases: dict[str, str]) -> list[str]:
    """Return as many inputs as a problem has: those chosen, those with outputs of their own, others."""
    outputs = {cases[text] for text in inputs}
    fresh: dict[str, str] = {}
    for text, output in cases.items():
        if output not in outputs:
            fresh.setdefault(output, text)
    return list(dict.fromkeys([*inputs, *fresh.values(), *cases]))[: NUM_PUBLIC + NUM_HIDDEN]


def numbers(low: int, high: int, most: int, fewest: int = 1) -> Draw:
    """Draw a line with a count and a line with so many integers."""

    def draw(rng: np.random.Generator) -> str:
        values = rng.integers(low, high + 1, rng.integers(fewest, most + 1)).tolist()
        return f"{len(values)}\n{' '.join(map(str, values))}"

    return draw


def integers(*ranges: tuple[int, int]) -> Draw:
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
    return [int(word) for word in text.split()[1:]]


def read_grid(text: str) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in text.split("\n")[1:]]


def join_values(values: list[int] | list[str]) -> str:
    return " ".join(map(str, values))
