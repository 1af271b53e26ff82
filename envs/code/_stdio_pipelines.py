"""Problems composed of steps: keep some of what is given, change each, and say something about what is left."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise, product

from envgym.envs.code._stdio_problems import StdioProblem, grid, join_values, numbers, read_grid, read_numbers, words

Row = list[int]
Grid = list[Row]

_NUMBER_FILTERS: dict[str, tuple[str, Callable[[Row], Row]]] = {
    "even": ("the even ones", lambda v: [x for x in v if x % 2 == 0]),
    "odd": ("the odd ones", lambda v: [x for x in v if x % 2]),
    "positive": ("those above 0", lambda v: [x for x in v if x > 0]),
    "thirds": ("the multiples of 3", lambda v: [x for x in v if x % 3 == 0]),
    "places": ("the first, third, fifth ... of them", lambda v: v[::2]),
    "rising": ("those that are larger than the one before them (the first has none)",
               lambda v: [b for a, b in pairwise(v) if b > a]),
}  # fmt: skip
_NUMBER_MAPS: dict[str, tuple[str, Callable[[int], int]]] = {
    "same": ("", lambda x: x),
    "square": ("Square each.", lambda x: x * x),
    "absolute": ("Take the absolute value of each.", abs),
    "digits": (
        "Replace each by the sum of its decimal digits, without its sign.",
        lambda x: sum(map(int, str(abs(x)))),
    ),
    "double": ("Replace each x by 2x + 1.", lambda x: 2 * x + 1),
}
_NUMBER_ENDS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "sum": ("Print their sum (0 if there are none).", lambda v: str(sum(v))),
    "largest": ("Print the largest, or none if there are none.", lambda v: str(max(v)) if v else "none"),
    "distinct": ("Print how many different values there are.", lambda v: str(len(set(v)))),
    "sorted": ("Print them in ascending order on one line, or none if there are none.",
               lambda v: join_values(sorted(v)) or "none"),
    "alternating": ("Print the first minus the second plus the third minus the fourth and so on (0 if there are none).",
                    lambda v: str(sum(v[::2]) - sum(v[1::2]))),
}  # fmt: skip

_WORD_FILTERS: dict[str, tuple[str, Callable[[list[str]], list[str]]]] = {
    "long": ("the words of more than 3 letters", lambda v: [w for w in v if len(w) > 3]),
    "vowel": ("the words that begin with a vowel (a, e, i, o, u)", lambda v: [w for w in v if w[0] in "aeiou"]),
    "with_a": ("the words that contain the letter a", lambda v: [w for w in v if "a" in w]),
    "distinct": ("each word once, where it first stands", lambda v: list(dict.fromkeys(v))),
    "even": ("the words with an even number of letters", lambda v: [w for w in v if len(w) % 2 == 0]),
}
_WORD_MAPS: dict[str, tuple[str, Callable[[str], str]]] = {
    "same": ("", lambda w: w),
    "upper": ("Write each in upper case.", str.upper),
    "reverse": ("Reverse the letters of each.", lambda w: w[::-1]),
    "sorted": ("Sort the letters of each alphabetically.", lambda w: "".join(sorted(w))),
    "squeeze": ("In each, replace letters that repeat next to each other by one.",
                lambda w: "".join(b for a, b in zip(" " + w, w, strict=False) if a != b)),
}  # fmt: skip
_WORD_ENDS: dict[str, tuple[str, Callable[[list[str]], str]]] = {
    "joined": ("Print them in their order, or none if there are none.", lambda v: " ".join(v) or "none"),
    "sorted": ("Print them in alphabetical order, or none if there are none.", lambda v: " ".join(sorted(v)) or "none"),
    "letters": ("Print how many letters they have in all.", lambda v: str(sum(map(len, v)))),
    "longest": ("Print the longest, the first of several, or none if there are none.",
                lambda v: max(v, key=len, default="none")),
    "common": ("Print the letter that is most often in them, the alphabetically first of several, or none.",
               lambda v: min(Counter("".join(v)).items(), key=lambda n: (-n[1], n[0]), default=("none", 0))[0]),
}  # fmt: skip

_GRID_MAPS: dict[str, tuple[str, Callable[[Grid], Grid]]] = {
    "turned": ("Turn it by 90 degrees clockwise.", lambda g: [list(row) for row in zip(*g[::-1], strict=True)]),
    "transposed": ("Exchange its rows and columns.", lambda g: [list(row) for row in zip(*g, strict=True)]),
    "mirrored": ("Mirror it, left and right exchanged.", lambda g: [row[::-1] for row in g]),
    "flipped": ("Mirror it, top and bottom exchanged.", lambda g: g[::-1]),
    "summed": ("Replace each cell by the sum of all cells of its row up to it.",
               lambda g: [[sum(row[: i + 1]) for i in range(len(row))] for row in g]),
}  # fmt: skip
_GRID_ENDS: dict[str, tuple[str, Callable[[Grid], str]]] = {
    "printed": ("Print its rows, one per line.", lambda g: "\n".join(join_values(row) for row in g)),
    "rows": ("Print the sum of each row on one line.", lambda g: join_values([sum(row) for row in g])),
    "columns": ("Print the largest number of each column on one line.",
                lambda g: join_values([max(column) for column in zip(*g, strict=True)])),
    "border": ("Print the sum of the cells on its border.",
               lambda g: str(sum(sum(r) if i in (0, len(g) - 1) else r[0] + r[-1] for i, r in enumerate(g)))),
    "corner": ("Print the largest sum of the cells on a way from the top left to the bottom right cell, going right or "
               "down.", lambda g: str(_best_way(g))),
}  # fmt: skip


def pipelines() -> Iterator[StdioProblem]:
    """Yield all problems."""
    yield from _number_problems()
    yield from _word_problems()
    yield from _grid_problems()


def _number_problems() -> Iterator[StdioProblem]:
    for (f, (keep, kept)), (m, (change, changed)), (e, (end, said)) in product(
        _NUMBER_FILTERS.items(), _NUMBER_MAPS.items(), _NUMBER_ENDS.items()
    ):
        yield StdioProblem(
            name=f"numbers_{f}_{m}_{e}",
            statement=_joined("The first line holds n, the second n integers.", f"Keep {keep}.", change, end),
            solve=lambda text, kept=kept, changed=changed, said=said: said(  # type: ignore[misc]  # bound now
                [changed(x) for x in kept(read_numbers(text))]
            ),
            draw=numbers(-60, 99, 12),
            level=1 if m == "same" else 2,
        )


def _word_problems() -> Iterator[StdioProblem]:
    for (f, (keep, kept)), (m, (change, changed)), (e, (end, said)) in product(
        _WORD_FILTERS.items(), _WORD_MAPS.items(), _WORD_ENDS.items()
    ):
        yield StdioProblem(
            name=f"words_{f}_{m}_{e}",
            statement=_joined("The only line holds words of small letters.", f"Keep {keep}.", change, end),
            solve=lambda text, kept=kept, changed=changed, said=said: said(  # type: ignore[misc]  # bound now
                [changed(w) for w in kept(text.split())]
            ),
            draw=words(8, "aabcdeeilot", 6),
            level=1 if m == "same" else 2,
        )


def _grid_problems() -> Iterator[StdioProblem]:
    for (m, (change, changed)), (e, (end, said)) in product(_GRID_MAPS.items(), _GRID_ENDS.items()):
        given = "The first line holds the numbers of rows and columns of a grid, the following lines its rows."
        yield StdioProblem(
            name=f"grid_{m}_{e}",
            statement=_joined(given, change, end),
            solve=lambda text, changed=changed, said=said: said(changed(read_grid(text))),  # type: ignore[misc]  # bound now
            draw=grid(5),
            level=3 if e == "corner" else 2,
        )


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _best_way(cells: Grid) -> int:
    best = [0] * len(cells[0])
    for number, row in enumerate(cells):
        for place, cell in enumerate(row):
            before = [*best[place : place + 1]] if number else []
            before += [best[place - 1]] if place else []
            best[place] = cell + max(before, default=0)
    return best[-1]
