"""The steps that problems are composed of, each with its mutants: almost the same step."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Generic, TypeVar

from envgym.envs.code._stdio_problems import join_values
from envgym.envs.data_files import read_toml

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
Row = list[int]
Words = list[str]
Grid = list[Row]


@dataclass(frozen=True, slots=True)
class Step(Generic[InputT, OutputT]):
    run: Callable[[InputT], OutputT]
    mutants: Mapping[str, Callable[[InputT], OutputT]] = field(default_factory=dict)
    """Name -> the step done in a slightly other way."""
    clauses: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Part of the text -> filters beside which it never applies, so that it is left out of the problem's text."""
    text: str = ""
    """One sentence of the problem, or what stands after `Keep`; empty for the step that does nothing."""


_TEXTS: Mapping[str, Mapping[str, str]] = read_toml("code/data/stdio_steps.toml")


def _with_texts(table: str, steps: Mapping[str, Step[InputT, OutputT]]) -> Mapping[str, Step[InputT, OutputT]]:
    return {name: replace(step, text=_TEXTS[table][name]) for name, step in steps.items()}


NEVER_EMPTY = ("places", "distinct")
"""Filters that always keep the first value."""


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


NUMBER_FILTERS: Mapping[str, Step[Row, Row]] = _with_texts(
    "number_filters",
    {
        "even": Step(lambda v: [x for x in v if x % 2 == 0]),
        "odd": Step(lambda v: [x for x in v if x % 2], {"above 0": lambda v: [x for x in v if math.fmod(x, 2) == 1]}),
        "positive": Step(lambda v: [x for x in v if x > 0], {"0 too": lambda v: [x for x in v if x >= 0]}),
        "below": Step(lambda v: [x for x in v if x < 50], {"50 too": lambda v: [x for x in v if x <= 50]}),
        "thirds": Step(lambda v: [x for x in v if x % 3 == 0]),
        "places": Step(lambda v: v[::2], {"second, fourth": lambda v: v[1::2]}),
        "rising": Step(
            lambda v: [b for a, b in pairwise(v) if b > a],
            {
                "equal too": lambda v: [b for a, b in pairwise(v) if b >= a],
                "first too": lambda v: [*v[:1], *(b for a, b in pairwise(v) if b > a)],
                "larger than all before": lambda v: [x for place, x in enumerate(v) if place and x > max(v[:place])],
            },
        ),
    },
)
NUMBER_CHANGES: Mapping[str, Step[Row, Row]] = _with_texts(
    "number_changes",
    {
        "same": Step(lambda v: v),
        "square": Step(_each(lambda x: x * x), {"twice": _each(lambda x: 2 * x)}),
        "absolute": Step(_each(abs), {"0 for those below": _each(lambda x: max(x, 0))}),
        "digits": Step(
            _each(_digit_sum),
            {
                "last digit": _each(lambda x: abs(x) % 10),
                "with sign": _each(lambda x: -_digit_sum(x) if x < 0 else _digit_sum(x)),
            },
            {", without its sign": ("positive",)},
        ),
        "double": Step(
            _each(lambda x: 2 * x + 1), {"2x": _each(lambda x: 2 * x), "2x - 1": _each(lambda x: 2 * x - 1)}
        ),
    },
)
NUMBER_ENDS: Mapping[str, Step[Row, str]] = _with_texts(
    "number_ends",
    {
        "sum": Step(
            lambda v: str(sum(v)),
            {"of different ones": lambda v: str(sum(set(v))), "nothing if none": lambda v: str(sum(v)) if v else ""},
            {" (0 if there are none)": NEVER_EMPTY},
        ),
        "largest": Step(
            lambda v: str(max(v)) if v else "none",
            {
                "0 if none": lambda v: str(max(v, default=0)),
                "begun at 0": lambda v: str(max(0, *v)) if v else "none",
                "last": lambda v: str(v[-1]) if v else "none",
            },
            {", or none if there are none": NEVER_EMPTY},
        ),
        "distinct": Step(
            lambda v: str(len(set(v))), {"all": lambda v: str(len(v)), "runs": lambda v: str(len(list(groupby(v))))}
        ),
        "sorted": Step(
            lambda v: join_values(sorted(v)) or "none",
            {
                "in their order": lambda v: join_values(v) or "none",
                "descending": lambda v: join_values(sorted(v, reverse=True)) or "none",
                "as text": lambda v: join_values(sorted(v, key=str)) or "none",
                "each once": lambda v: join_values(sorted(set(v))) or "none",
                "nothing if none": lambda v: join_values(sorted(v)),
            },
            {", or none if there are none": NEVER_EMPTY},
        ),
        "alternating": Step(
            lambda v: str(sum(v[::2]) - sum(v[1::2])),
            {
                "minus first": lambda v: str(sum(v[1::2]) - sum(v[::2])),
                "sum": lambda v: str(sum(v)),
                "four": lambda v: str(sum(v[:4:2]) - sum(v[1:4:2])),
                "nothing if none": lambda v: str(sum(v[::2]) - sum(v[1::2])) if v else "",
            },
            {" (0 if there are none)": NEVER_EMPTY},
        ),
    },
)

WORD_FILTERS: Mapping[str, Step[Words, Words]] = _with_texts(
    "word_filters",
    {
        "long": Step(
            lambda v: [w for w in v if len(w) > 3],
            {"3 too": lambda v: [w for w in v if len(w) >= 3], "not 4": lambda v: [w for w in v if len(w) > 4]},
        ),
        "vowel": Step(
            lambda v: [w for w in v if w[0] in "aeiou"], {"end": lambda v: [w for w in v if w[-1] in "aeiou"]}
        ),
        "with_a": Step(lambda v: [w for w in v if "a" in w], {"begin": lambda v: [w for w in v if w[0] == "a"]}),
        "no_e": Step(lambda v: [w for w in v if "e" not in w], {"begin": lambda v: [w for w in v if w[0] != "e"]}),
        "distinct": Step(
            lambda v: list(dict.fromkeys(v)),
            {
                "last": lambda v: list(dict.fromkeys(v[::-1]))[::-1],
                "runs": lambda v: [w for w, _ in groupby(v)],
                "alone": lambda v: [w for w in v if v.count(w) == 1],
            },
        ),
        "even": Step(
            lambda v: [w for w in v if len(w) % 2 == 0], {"not 2": lambda v: [w for w in v if len(w) in (4, 6)]}
        ),
    },
)
WORD_CHANGES: Mapping[str, Step[Words, Words]] = _with_texts(
    "word_changes",
    {
        "same": Step(lambda v: v),
        "upper": Step(_every(str.upper), {"first letter": _every(str.title)}),
        "reverse": Step(_every(lambda w: w[::-1]), {"words": lambda v: v[::-1]}),
        "ordered": Step(
            _every(lambda w: "".join(sorted(w))), {"descending": _every(lambda w: "".join(sorted(w, reverse=True)))}
        ),
        "squeeze": Step(
            _every(lambda w: "".join(letter for letter, _ in groupby(w))),
            {"each once": _every(lambda w: "".join(dict.fromkeys(w)))},
        ),
    },
)
WORD_ENDS: Mapping[str, Step[Words, str]] = _with_texts(
    "word_ends",
    {
        "joined": Step(
            lambda v: " ".join(v) or "none", {"nothing if none": " ".join}, {", or none if there are none": NEVER_EMPTY}
        ),
        "sorted": Step(
            lambda v: " ".join(sorted(v)) or "none",
            {
                "in their order": lambda v: " ".join(v) or "none",
                "each once": lambda v: " ".join(sorted(set(v))) or "none",
                "nothing if none": lambda v: " ".join(sorted(v)),
            },
            {", or none if there are none": NEVER_EMPTY},
        ),
        "letters": Step(
            lambda v: str(sum(map(len, v))),
            {"words": lambda v: str(len(v)), "different": lambda v: str(len(set("".join(v))))},
        ),
        "longest": Step(
            lambda v: max(v, key=len, default="none"),
            {
                "last of several": lambda v: max(v[::-1], key=len, default="none"),
                "nothing if none": lambda v: max(v, key=len, default=""),
            },
            {", or none if there are none": NEVER_EMPTY},
        ),
        "common": Step(
            lambda v: _commonest(v, lambda n: (-n[1], ord(n[0]))),
            {
                "first seen": lambda v: _commonest(v, lambda n: (-n[1], 0)),
                "nothing if none": lambda v: _commonest(v, lambda n: (-n[1], ord(n[0]))) if v else "",
                "in most words": lambda v: _commonest(
                    ["".join(dict.fromkeys(w)) for w in v], lambda n: (-n[1], ord(n[0]))
                ),
            },
            {", or none": NEVER_EMPTY},
        ),
    },
)

GRID_CHANGES: Mapping[str, Step[Grid, Grid]] = _with_texts(
    "grid_changes",
    {
        "turned": Step(_turned, {"other way": lambda g: _transposed(g)[::-1]}),
        "transposed": Step(_transposed, {"turned": _turned}),
        "mirrored": Step(_mirrored, {"flipped": _flipped}),
        "flipped": Step(_flipped, {"mirrored": _mirrored}),
        "emptied": Step(
            lambda g: [[cell * (cell % 2 == 0) for cell in row] for row in g],
            {"even": lambda g: [[cell * (cell % 2) for cell in row] for row in g]},
        ),
        "summed": Step(
            lambda g: [[sum(row[: place + 1]) for place in range(len(row))] for row in g],
            {"not itself": lambda g: [[sum(row[:place]) for place in range(len(row))] for row in g]},
        ),
    },
)
GRID_ENDS: Mapping[str, Step[Grid, str]] = _with_texts(
    "grid_ends",
    {
        "printed": Step(lambda g: "\n".join(join_values(row) for row in g)),
        "rows": Step(
            lambda g: join_values([sum(row) for row in g]),
            {"column": lambda g: join_values([sum(column) for column in _transposed(g)])},
        ),
        "columns": Step(
            lambda g: join_values([max(column) for column in _transposed(g)]),
            {"row": lambda g: join_values([max(row) for row in g])},
        ),
        "border": Step(
            lambda g: str(_border(g)),
            {
                "all": lambda g: str(sum(map(sum, g))),
                "corners twice": lambda g: str(_border(g) + g[0][0] + g[0][-1] + g[-1][0] + g[-1][-1]),
            },
        ),
        "corner": Step(
            lambda g: _best_way(g, max),
            {"smallest": lambda g: _best_way(g, min), "down first": lambda g: _best_way(g, lambda b: b[0])},
        ),
    },
)
