"""Problems composed of steps: keep some of what is given, change each, and say something about what is left.

Each comes with mutants of its reference: a step left out or done in a slightly other way, two steps exchanged, an input
of which the first or the last part is not read. The hidden tests of a problem kill all of them. Mutants that are right
on every input are declared here as equivalent, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TypeVar

import numpy as np

from envgym.envs.code._stdio_problems import (
    Program,
    StdioProblem,
    grid,
    join_values,
    numbers,
    read_grid,
    read_numbers,
    words,
)
from envgym.envs.code._stdio_steps import (
    GRID_CHANGES,
    GRID_ENDS,
    NUMBER_CHANGES,
    NUMBER_ENDS,
    NUMBER_FILTERS,
    WORD_CHANGES,
    WORD_ENDS,
    WORD_FILTERS,
    Grid,
    Row,
    Step,
    Words,
)

ItemT = TypeVar("ItemT", int, str)
GivenT = TypeVar("GivenT", Row, Words, Grid)

_IDLE = (
    {"positive", "absolute"},  # what is above 0 is its own absolute value
    {"positive", "square", "distinct"},  # different values have different squares, and different 2x + 1
    {"double", "distinct"},
    {"upper", "letters"},  # the same letters, in another order or another case
    {"reverse", "letters"},
    {"ordered", "letters"},
    {"reverse", "common"},
    {"ordered", "common"},
    {"distinct", "longest"},  # a word that stands again is not longer
    {"turned", "border"},  # the border stays the border
    {"transposed", "border"},
    {"mirrored", "border"},
    {"flipped", "border"},
    {"mirrored", "rows"},  # what is summed, or compared, is only put in another order
    {"flipped", "columns"},
    {"transposed", "corner"},  # the ways are transposed too
)
"""Steps of which one never changes the output: they make no problem, since its text would ask for nothing."""
_EXCHANGEABLE = {
    # A number, its square and its absolute value are even, or multiples of 3, alike; of words, the lengths are.
    "even": {"square", "absolute", "upper", "reverse", "ordered"},
    "odd": {"square", "absolute"},
    "thirds": {"square", "absolute", "digits"},  # a number and the sum of its digits are multiples of 3 alike
    "places": {"square", "absolute", "digits", "double"},  # places do not depend on values
    "rising": {"double"},  # 2x + 1 rises with x
    "long": {"upper", "reverse", "ordered"},  # as many letters
    "vowel": {"squeeze"},  # the same first letter
    "with_a": {"reverse", "ordered", "squeeze"},  # the same letters
    "no_e": {"reverse", "ordered", "squeeze"},
    "distinct": {"upper", "reverse"},  # different words stay different
}
"""Filter -> changes that may as well be made before it."""
_EQUIVALENT = (
    {"largest: begun at 0", "positive"},  # nothing is below 0
    {"largest: begun at 0", "square"},
    {"largest: begun at 0", "absolute"},
    {"largest: begun at 0", "digits"},
    {"digits: with sign", "positive"},
    {"positive: 0 too", "same", "sum"},  # what 0 becomes adds nothing
    {"positive: 0 too", "square", "sum"},
    {"positive: 0 too", "digits", "sum"},
    {"sum: nothing if none", "places"},  # the first number, or the first word, is always kept
    {"largest: 0 if none", "places"},
    {"alternating: nothing if none", "places"},
    {"common: nothing if none", "distinct"},
    {"sorted: nothing if none", "places"},
    {"sorted: nothing if none", "distinct"},
    {"joined: nothing if none", "distinct"},
    {"distinct: last", "sorted"},  # the same words in another order
    {"distinct: last", "letters"},
    {"distinct: last", "common"},
    {"sorted: each once", "distinct", "same"},  # they differ already
    {"sorted: each once", "distinct", "upper"},
    {"sorted: each once", "distinct", "reverse"},
    {"turned: other way", "corner"},  # the same ways, walked backwards
    {"mirrored: flipped", "corner"},
    {"flipped: mirrored", "corner"},
    {"transposed: turned", "rows"},  # the same rows, read backwards
)
"""A mutant of a step, and the steps beside which it never changes the output."""
_REPEATED = 0.25
"""Share of the values that repeat an earlier one, or nearly."""


def pipelines() -> Iterator[StdioProblem]:
    intro = "The first line holds n, the second n integers."
    for keep, change, end in _names(NUMBER_FILTERS, NUMBER_CHANGES, NUMBER_ENDS):
        steps = {keep: NUMBER_FILTERS[keep], change: NUMBER_CHANGES[change]}
        solve, mutants = _programs(read_numbers, steps, end, NUMBER_ENDS[end], _on_parts)
        mutants["the count is a value"] = _with_count(solve)
        yield StdioProblem(
            name=f"numbers_{keep}_{change}_{end}",
            statement=_stated(intro, keep, steps[keep], steps[change], NUMBER_ENDS[end]),
            solve=solve,
            draw=_draw_numbers,
            level=1 if change == "same" else 2,
            mutants=mutants,
        )
    intro = "The only line holds words of small letters."
    for keep, change, end in _names(WORD_FILTERS, WORD_CHANGES, WORD_ENDS):
        selection, changed = WORD_FILTERS[keep], WORD_CHANGES[change]
        solve, mutants = _programs(str.split, {keep: selection, change: changed}, end, WORD_ENDS[end], _on_parts)
        yield StdioProblem(
            name=f"words_{keep}_{change}_{end}",
            statement=_stated(intro, keep, selection, changed, WORD_ENDS[end]),
            solve=solve,
            draw=_draw_words,
            level=1 if change == "same" else 2,
            mutants=mutants,
        )
    intro = "The first line holds the numbers of rows and columns of a grid, the following lines its rows."
    for change, end in _names(GRID_CHANGES, GRID_ENDS):
        solve, mutants = _programs(read_grid, {change: GRID_CHANGES[change]}, end, GRID_ENDS[end])
        yield StdioProblem(
            name=f"grid_{change}_{end}",
            statement=f"{intro} {GRID_CHANGES[change].text} {GRID_ENDS[end].text}",
            solve=solve,
            draw=grid(5),
            level=3 if end == "corner" else 2,
            mutants=mutants,
        )


def _names(*tables: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """Yield the names of steps that can be put together, each of which matters."""
    return (names for names in product(*tables) if not any(idle <= set(names) for idle in _IDLE))


def _stated(
    intro: str, keep: str, selection: Step[GivenT, GivenT], change: Step[GivenT, GivenT], end: Step[GivenT, str]
) -> str:
    """Return the text of a problem, without clauses that never apply after its filter."""
    texts: list[str] = []
    for text, clauses in ((change.text, change.clauses), (end.text, end.clauses)):
        for clause, filters in clauses.items():
            assert clause in text, clause
            text = text.replace(clause, "") if keep in filters else text
        texts.append(text)
    return " ".join(text for text in (intro, f"Keep {selection.text}.", *texts) if text)


def _with_count(solve: Program) -> Program:
    """Return a program on numbers that takes their count for the first of them."""
    return lambda text: solve(f"0\n{text}")


def _on_parts(run: Callable[[list[ItemT]], list[ItemT]]) -> Mapping[str, Callable[[list[ItemT]], list[ItemT]]]:
    return {
        "only the first": lambda values: run(values[:1]) + values[1:],
        "not the first": lambda values: values[:1] + run(values[1:]),
        "not the last": lambda values: run(values[:-1]) + values[-1:],
    }


def _programs(
    read: Callable[[str], GivenT],
    steps: Mapping[str, Step[GivenT, GivenT]],
    end_name: str,
    end: Step[GivenT, str],
    parts: Callable[[Callable[[GivenT], GivenT]], Mapping[str, Callable[[GivenT], GivenT]]] | None = None,
) -> tuple[Program, dict[str, Program]]:
    """Return the reference and its mutants, without the equivalent ones, by name; `parts` makes more of each step."""

    def program(print_values: Callable[[GivenT], str], *runs: Callable[[GivenT], GivenT]) -> Program:
        def solve(text: str) -> str:
            values = read(text)
            for run in runs:
                values = run(values)
            return print_values(values)

        return solve

    all_names = {*steps, end_name}
    steps = {name: step for name, step in steps.items() if step.text}
    names = list(steps)
    runs = [step.run for step in steps.values()]
    mutants = {
        "without the first": program(end.run, lambda values: values[1:], *runs),
        "without the last": program(end.run, lambda values: values[:-1], *runs),
    }
    if len(names) == 2 and names[1] not in _EXCHANGEABLE.get(names[0], ()):
        mutants[f"{names[1]} first"] = program(end.run, *runs[::-1])
    for place, (name, step) in enumerate(steps.items()):
        before, after = runs[:place], runs[place + 1 :]
        mutants[f"without {name}"] = program(end.run, *before, *after)
        for how, run in {**step.mutants, **(parts(step.run) if parts else {})}.items():
            mutants[f"{name}: {how}"] = program(end.run, *before, run, *after)
    mutants |= {f"{end_name}: {how}": program(run, *runs) for how, run in end.mutants.items()}
    equivalent = {name for name in mutants for same in _EQUIVALENT if name in same and same - {name} <= all_names}
    return program(end.run, *runs), {name: mutant for name, mutant in mutants.items() if name not in equivalent}


def _draw_numbers(rng: np.random.Generator) -> str:
    """Draw numbers of which some are an earlier one, its negative, or the limit of a filter."""
    values = read_numbers(numbers(-60, 99, 12)(rng))
    for place in range(len(values)):
        if rng.random() < _REPEATED:
            earlier = values[rng.integers(place + 1)]
            values[place] = int(rng.choice((earlier, -earlier, 0, 50)))
    return f"{len(values)}\n{join_values(values)}"


def _draw_words(rng: np.random.Generator) -> str:
    """Draw words of which some are an earlier one, or it reversed, or it with its first letter twice."""
    values = words(8, "aabcdeeilot", 6)(rng).split()
    for place in range(1, len(values)):
        if rng.random() < _REPEATED:
            earlier = values[rng.integers(place)]
            values[place] = str(rng.choice((earlier, earlier[::-1], earlier[0] + earlier)))
    return join_values(values)
