"""The steps that problems are composed of, each with its mutants: almost the same step."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Generic, TypeVar

from envgym.envs.code._stdio_problems import join_values

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
Row = list[int]
Words = list[str]
Grid = list[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[InputT, OutputT]):
    """One step of a problem."""

    text: str
    """One sentence of the problem, or what stands after `Keep`; empty for the step that does nothing."""
    run: Callable[[InputT], OutputT]
    mutants: Mapping[str, Callable[[InputT], OutputT]] = field(default_factory=dict)
    """Name -> the step done in a slightly other way."""


def _each(change: Callable[[int], int]) -> Callable[[Row], Row]:
    return lambda values: [change(value) for value in values]


def _every(change: Callable[[str], str]) -> Callable[[Words], Words]:
    return lambda values: [change(value) for value in values]


def _digit_sum(number: int) -> int:
    return sum(map(int, str(abs(number))))


def _commonest(values: Words, rank: Callable[[tuple[str, int]], tuple[int, int]]) -> str:
    return min(Counter("".join(values)).items(), key=rank, default=("none", 0))[0]


def _best_way(cells: Grid, choose: Callable[[list[int]], int]) -> str:
    best = [0] * len(cells[0])
    for number, row in enumerate(cells):
        for place, cell in enumerate(row):
            before = [*best[place : place + 1]] if number else []
            before += [best[place - 1]] if place else []
            best[place] = cell + (choose(before) if before else 0)
    return str(best[-1])


def _turned(cells: Grid) -> Grid:
    return [list(row) for row in zip(*cells[::-1], strict=True)]


def _transposed(cells: Grid) -> Grid:
    return [list(column) for column in zip(*cells, strict=True)]


def _mirrored(cells: Grid) -> Grid:
    return [row[::-1] for row in cells]


def _flipped(cells: Grid) -> Grid:
    return cells[::-1]


def _border(cells: Grid) -> int:
    return sum(sum(row) if place in (0, len(cells) - 1) else row[0] + row[-1] for place, row in enumerate(cells))


NUMBER_FILTERS: Mapping[str, Step[Row, Row]] = {
    "even": Step(text="the even ones", run=lambda v: [x for x in v if x % 2 == 0]),
    "odd": Step(
        text="the odd ones",
        run=lambda v: [x for x in v if x % 2],
        mutants={"above 0": lambda v: [x for x in v if math.fmod(x, 2) == 1]},
    ),
    "positive": Step(
        text="those above 0",
        run=lambda v: [x for x in v if x > 0],
        mutants={"0 too": lambda v: [x for x in v if x >= 0]},
    ),
    "below": Step(
        text="those below 50",
        run=lambda v: [x for x in v if x < 50],
        mutants={"50 too": lambda v: [x for x in v if x <= 50]},
    ),
    "thirds": Step(text="the multiples of 3", run=lambda v: [x for x in v if x % 3 == 0]),
    "places": Step(
        text="the first, third, fifth ... of them",
        run=lambda v: v[::2],
        mutants={"second, fourth": lambda v: v[1::2]},
    ),
    "rising": Step(
        text="those that are larger than the one before them (the first has none)",
        run=lambda v: [b for a, b in pairwise(v) if b > a],
        mutants={
            "equal too": lambda v: [b for a, b in pairwise(v) if b >= a],
            "first too": lambda v: [*v[:1], *(b for a, b in pairwise(v) if b > a)],
            "larger than all before": lambda v: [x for place, x in enumerate(v) if place and x > max(v[:place])],
        },
    ),
}
NUMBER_CHANGES: Mapping[str, Step[Row, Row]] = {
    "same": Step(text="", run=lambda v: v),
    "square": Step(
        text="Square each.",
        run=_each(lambda x: x * x),
        mutants={"twice": _each(lambda x: 2 * x)},
    ),
    "absolute": Step(
        text="Take the absolute value of each.",
        run=_each(abs),
        mutants={"0 for those below": _each(lambda x: max(x, 0))},
    ),
    "digits": Step(
        text="Replace each by the sum of its decimal digits, without its sign.",
        run=_each(_digit_sum),
        mutants={
            "last digit": _each(lambda x: abs(x) % 10),
            "with sign": _each(lambda x: -_digit_sum(x) if x < 0 else _digit_sum(x)),
        },
    ),
    "double": Step(
        text="Replace each x by 2x + 1.",
        run=_each(lambda x: 2 * x + 1),
        mutants={"2x": _each(lambda x: 2 * x), "2x - 1": _each(lambda x: 2 * x - 1)},
    ),
}
NUMBER_ENDS: Mapping[str, Step[Row, str]] = {
    "sum": Step(
        text="Print their sum (0 if there are none).",
        run=lambda v: str(sum(v)),
        mutants={"of different ones": lambda v: str(sum(set(v)))},
    ),
    "largest": Step(
        text="Print the largest, or none if there are none.",
        run=lambda v: str(max(v)) if v else "none",
        mutants={
            "0 if none": lambda v: str(max(v, default=0)),
            "begun at 0": lambda v: str(max(0, *v)) if v else "none",
            "last": lambda v: str(v[-1]) if v else "none",
        },
    ),
    "distinct": Step(
        text="Print how many different values there are.",
        run=lambda v: str(len(set(v))),
        mutants={"all": lambda v: str(len(v)), "runs": lambda v: str(len(list(groupby(v))))},
    ),
    "sorted": Step(
        text="Print them in ascending order on one line, or none if there are none.",
        run=lambda v: join_values(sorted(v)) or "none",
        mutants={
            "in their order": lambda v: join_values(v) or "none",
            "descending": lambda v: join_values(sorted(v, reverse=True)) or "none",
            "as text": lambda v: join_values(sorted(v, key=str)) or "none",
            "each once": lambda v: join_values(sorted(set(v))) or "none",
            "nothing if none": lambda v: join_values(sorted(v)),
        },
    ),
    "alternating": Step(
        text="Print the first minus the second plus the third minus the fourth and so on (0 if there are none).",
        run=lambda v: str(sum(v[::2]) - sum(v[1::2])),
        mutants={"minus first": lambda v: str(sum(v[1::2]) - sum(v[::2])), "sum": lambda v: str(sum(v))},
    ),
}

WORD_FILTERS: Mapping[str, Step[Words, Words]] = {
    "long": Step(
        text="the words of more than 3 letters",
        run=lambda v: [w for w in v if len(w) > 3],
        mutants={"3 too": lambda v: [w for w in v if len(w) >= 3], "not 4": lambda v: [w for w in v if len(w) > 4]},
    ),
    "vowel": Step(
        text="the words that begin with a vowel (a, e, i, o, u)",
        run=lambda v: [w for w in v if w[0] in "aeiou"],
        mutants={"end": lambda v: [w for w in v if w[-1] in "aeiou"]},
    ),
    "with_a": Step(
        text="the words that contain the letter a",
        run=lambda v: [w for w in v if "a" in w],
        mutants={"begin": lambda v: [w for w in v if w[0] == "a"]},
    ),
    "no_e": Step(
        text="the words without the letter e",
        run=lambda v: [w for w in v if "e" not in w],
        mutants={"begin": lambda v: [w for w in v if w[0] != "e"]},
    ),
    "distinct": Step(
        text="each word once, where it first stands",
        run=lambda v: list(dict.fromkeys(v)),
        mutants={
            "last": lambda v: list(dict.fromkeys(v[::-1]))[::-1],
            "runs": lambda v: [w for w, _ in groupby(v)],
            "alone": lambda v: [w for w in v if v.count(w) == 1],
        },
    ),
    "even": Step(
        text="the words with an even number of letters",
        run=lambda v: [w for w in v if len(w) % 2 == 0],
        mutants={"not 2": lambda v: [w for w in v if len(w) in (4, 6)]},
    ),
}
WORD_CHANGES: Mapping[str, Step[Words, Words]] = {
    "same": Step(text="", run=lambda v: v),
    "upper": Step(text="Write each in upper case.", run=_every(str.upper), mutants={"first letter": _every(str.title)}),
    "reverse": Step(
        text="Reverse the letters of each.",
        run=_every(lambda w: w[::-1]),
        mutants={"words": lambda v: v[::-1]},
    ),
    "ordered": Step(
        text="Sort the letters of each alphabetically.",
        run=_every(lambda w: "".join(sorted(w))),
        mutants={"descending": _every(lambda w: "".join(sorted(w, reverse=True)))},
    ),
    "squeeze": Step(
        text="In each, replace letters that repeat next to each other by one.",
        run=_every(lambda w: "".join(letter for letter, _ in groupby(w))),
        mutants={"each once": _every(lambda w: "".join(dict.fromkeys(w)))},
    ),
}
WORD_ENDS: Mapping[str, Step[Words, str]] = {
    "joined": Step(
        text="Print them in their order, or none if there are none.",
        run=lambda v: " ".join(v) or "none",
        mutants={"nothing if none": " ".join},
    ),
    "sorted": Step(
        text="Print them in alphabetical order, or none if there are none.",
        run=lambda v: " ".join(sorted(v)) or "none",
        mutants={
            "in their order": lambda v: " ".join(v) or "none",
            "each once": lambda v: " ".join(sorted(set(v))) or "none",
            "nothing if none": lambda v: " ".join(sorted(v)),
        },
    ),
    "letters": Step(
        text="Print how many letters they have in all.",
        run=lambda v: str(sum(map(len, v))),
        mutants={"words": lambda v: str(len(v)), "different": lambda v: str(len(set("".join(v))))},
    ),
    "longest": Step(
        text="Print the longest, the first of several, or none if there are none.",
        run=lambda v: max(v, key=len, default="none"),
        mutants={
            "last of several": lambda v: max(v[::-1], key=len, default="none"),
            "nothing if none": lambda v: max(v, key=len, default=""),
        },
    ),
    "common": Step(
        text="Print the letter that is most often in them, the alphabetically first of several, or none.",
        run=lambda v: _commonest(v, lambda n: (-n[1], ord(n[0]))),
        mutants={
            "first seen": lambda v: _commonest(v, lambda n: (-n[1], 0)),
            "in most words": lambda v: _commonest(["".join(dict.fromkeys(w)) for w in v], lambda n: (-n[1], ord(n[0]))),
        },
    ),
}

GRID_CHANGES: Mapping[str, Step[Grid, Grid]] = {
    "turned": Step(
        text="Turn it by 90 degrees clockwise.",
        run=_turned,
        mutants={"other way": lambda g: _transposed(g)[::-1]},
    ),
    "transposed": Step(text="Exchange its rows and columns.", run=_transposed, mutants={"turned": _turned}),
    "mirrored": Step(text="Mirror it, left and right exchanged.", run=_mirrored, mutants={"flipped": _flipped}),
    "flipped": Step(text="Mirror it, top and bottom exchanged.", run=_flipped, mutants={"mirrored": _mirrored}),
    "emptied": Step(
        text="Replace each odd number by 0.",
        run=lambda g: [[cell * (cell % 2 == 0) for cell in row] for row in g],
        mutants={"even": lambda g: [[cell * (cell % 2) for cell in row] for row in g]},
    ),
    "summed": Step(
        text="Replace each cell by the sum of all cells of its row up to it.",
        run=lambda g: [[sum(row[: place + 1]) for place in range(len(row))] for row in g],
        mutants={"not itself": lambda g: [[sum(row[:place]) for place in range(len(row))] for row in g]},
    ),
}
GRID_ENDS: Mapping[str, Step[Grid, str]] = {
    "printed": Step(text="Print its rows, one per line.", run=lambda g: "\n".join(join_values(row) for row in g)),
    "rows": Step(
        text="Print the sum of each row on one line.",
        run=lambda g: join_values([sum(row) for row in g]),
        mutants={"column": lambda g: join_values([sum(column) for column in _transposed(g)])},
    ),
    "columns": Step(
        text="Print the largest number of each column on one line.",
        run=lambda g: join_values([max(column) for column in _transposed(g)]),
        mutants={"row": lambda g: join_values([max(row) for row in g])},
    ),
    "border": Step(
        text="Print the sum of the cells on its border.",
        run=lambda g: str(_border(g)),
        mutants={
            "all": lambda g: str(sum(map(sum, g))),
            "corners twice": lambda g: str(_border(g) + g[0][0] + g[0][-1] + g[-1][0] + g[-1][-1]),
        },
    ),
    "corner": Step(
        text="Print the largest sum of the cells on a way from the top left to the bottom right cell, going right or "
        "down.",
        run=lambda g: _best_way(g, max),
        mutants={"smallest": lambda g: _best_way(g, min), "down first": lambda g: _best_way(g, lambda b: b[0])},
    ),
}
