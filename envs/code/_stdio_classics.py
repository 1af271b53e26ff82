"""Well-known small problems, some with a parameter that varies."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from envgym.envs.code._stdio_problems import (
    Draw,
    StdioProblem,
    grid,
    integers,
    join_values,
    numbers,
    read_grid,
    read_numbers,
)
from envgym.envs.code._stdio_problems import words as draw_words
from envgym.envs.code._stdio_references import (
    brackets,
    coins,
    collatz,
    depth,
    diagonals,
    distance,
    draw_postfix,
    factors,
    fibonacci,
    in_base,
    is_prime,
    islands,
    last_left,
    maze,
    moved,
    nth,
    pairs,
    postfix,
    rising,
    roman,
    runs,
    way,
)
from envgym.envs.data_files import read_toml

_STATEMENTS: Mapping[str, Mapping[str, Any]] = read_toml("code/data/stdio_classics.toml")
"""Name -> the statement of a problem, and its level if that is not 2."""


def classics() -> Iterator[StdioProblem]:
    yield from _arithmetic()
    yield from _sequences()
    yield from _texts()
    yield from _searches()


def _arithmetic() -> Iterator[StdioProblem]:
    for base in (2, 3, 5, 7, 8, 9, 12, 16):
        yield _one("base", lambda text, base=base: in_base(int(text), base), integers((1, 10**6)), base)
    for modulus in (10, 97, 1000):
        yield _one("fibonacci", lambda text, m=modulus: str(fibonacci(int(text)) % m), integers((0, 300)), modulus)
    yield _one("gcd", lambda text: str(math.gcd(*map(int, text.split()))), integers((1, 600), (1, 600)))
    yield _one("lcm", lambda text: str(math.lcm(*map(int, text.split()))), integers((1, 300), (1, 300)))
    yield _one("primes_up_to", lambda text: str(sum(is_prime(x) for x in range(int(text) + 1))), integers((1, 2000)))
    yield _one("factors", lambda text: join_values(factors(int(text))), integers((2, 5000)))
    yield _one("collatz", lambda text: str(collatz(int(text))), integers((1, 3000)))
    yield _one("digital_root", lambda text: str((int(text) - 1) % 9 + 1), integers((1, 10**9)))
    yield _one("ones", lambda text: str(int(text).bit_count()), integers((0, 10**6)))
    yield _one("roman", lambda text: roman(int(text)), integers((1, 3999)))
    yield _one(
        "day_of_year",
        lambda text: str(date(*map(int, text.split())).timetuple().tm_yday),
        integers((1900, 2100), (1, 12), (1, 28)),
    )
    for step in (2, 3, 4, 5):
        yield _one("circle", lambda text, k=step: str(last_left(int(text), k)), integers((1, 200)), step)


def _sequences() -> Iterator[StdioProblem]:
    for place in (1, 3, 4):
        yield _list("rotate", lambda v, k=place: join_values(v[k % len(v) :] + v[: k % len(v)]), place, fewest=2)
    for rank in (2, 3):
        yield _list(
            "largest", lambda v, k=rank: join_values(sorted(set(v))[-k:][:1]) if len(set(v)) >= k else "none", rank
        )
    yield _list("best_run", lambda v: str(max(sum(v[i:j]) for i in range(len(v)) for j in range(i + 1, len(v) + 1))))
    yield _list("inversions", lambda v: str(sum(a > b for i, a in enumerate(v) for b in v[i:])))
    yield _list("rising_length", lambda v: str(rising(v)))
    for total in (6, 9, 12):
        yield _one("pairs", lambda text, t=total: str(pairs(read_numbers(text), t)), numbers(0, 9, 14), total)
    yield _list("running_maximum", lambda v: join_values([max(v[: i + 1]) for i in range(len(v))]))
    yield _list("median", lambda v: str(sorted(v)[(len(v) - 1) // 2]))
    yield _list("differences", lambda v: join_values([b - a for a, b in itertools.pairwise(v)]), fewest=2)
    for values in ((1, 5, 10), (1, 3, 4), (2, 5, 7)):
        named = ", ".join(map(str, values))
        yield _one("coins", lambda text, c=values: coins(int(text), c), integers((1, 90)), values[-1], named=named)


def _texts() -> Iterator[StdioProblem]:
    for shift in (1, 3, 7, 13):
        yield _one("caesar", lambda text, k=shift: "".join(moved(c, k) for c in text), draw_words(5), shift)
    yield _one("runs", runs, draw_words(2, "ab", 9))
    yield _one("depth", depth, brackets)
    yield _one("palindromes", lambda text: str(sum(w == w[::-1] for w in text.split())), draw_words(9, "ab", 4))
    yield _one(
        "anagrams",
        lambda text: str(max(Counter("".join(sorted(w)) for w in text.split()).values())),
        draw_words(9, "abc", 3),
    )
    yield _one("initials", lambda text: "".join(w[0].upper() for w in text.split()), draw_words(6))
    yield _one(
        "distance",
        lambda text: str(distance(*text.split())),
        lambda rng: " ".join("".join(rng.choice(list("abc"), rng.integers(2, 8))) for _ in range(2)),
    )
    yield _one("stack", lambda text: str(postfix(text)), draw_postfix)


def _searches() -> Iterator[StdioProblem]:
    yield _one("islands", lambda text: str(islands(read_grid(text))), grid(6, 0, 1))
    yield _one("way", lambda text: way(read_grid(text)), maze)
    yield _one("diagonals", lambda text: diagonals(read_grid(text)), grid(5, square=True))


def _one(kind: str, solve: "object", draw: Draw, number: int | None = None, *, named: str = "") -> StdioProblem:
    assert callable(solve)
    facts = _STATEMENTS[kind]
    values = {"number": number, "ordinal": "" if number is None else nth(number), "named": named}
    return StdioProblem(
        name=kind if number is None else f"{kind}_{number}",
        statement=facts["statement"].format(**values),
        solve=solve,
        draw=draw,
        level=facts.get("level", 2),
    )


def _list(kind: str, solve: "object", number: int | None = None, *, fewest: int = 1) -> StdioProblem:
    assert callable(solve)
    return _one(kind, lambda text: solve(read_numbers(text)), numbers(-20, 40, 10, fewest), number)
