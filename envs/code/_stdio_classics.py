"""Well-known small problems, some with a parameter that varies."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from datetime import date

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

_GIVEN_NUMBERS = "The first line holds n, the second n integers."


def classics() -> Iterator[StdioProblem]:
    """Yield all problems."""
    yield from _arithmetic()
    yield from _sequences()
    yield from _texts()
    yield from _searches()


def _arithmetic() -> Iterator[StdioProblem]:
    for base in (2, 3, 5, 7, 8, 9, 12, 16):
        what = f"Print the integer n > 0 in base {base}, with the digits 0 to 9 and then a, b, ..."
        yield _one(f"base_{base}", what, lambda text, base=base: in_base(int(text), base), integers((1, 10**6)))
    for modulus in (10, 97, 1000):
        what = f"The Fibonacci numbers begin 0, 1. Print F(n) modulo {modulus} for the given n, where F(0) = 0."
        yield _one(
            f"fibonacci_{modulus}", what, lambda text, m=modulus: str(fibonacci(int(text)) % m), integers((0, 300))
        )
    yield _one(
        "gcd",
        "Print the greatest common divisor of two integers.",
        lambda text: str(math.gcd(*map(int, text.split()))),
        integers((1, 600), (1, 600)),
        level=1,
    )
    yield _one(
        "lcm",
        "Print the least common multiple of two integers.",
        lambda text: str(math.lcm(*map(int, text.split()))),
        integers((1, 300), (1, 300)),
        level=1,
    )
    yield _one(
        "primes_up_to",
        "Print how many primes there are up to n, n included.",
        lambda text: str(sum(is_prime(x) for x in range(int(text) + 1))),
        integers((1, 2000)),
    )
    yield _one(
        "factors",
        "Print the prime factors of n > 1 in ascending order, each as often as it divides n.",
        lambda text: join_values(factors(int(text))),
        integers((2, 5000)),
    )
    yield _one(
        "collatz",
        "A step takes n to n / 2 where n is even and to 3n + 1 where it is odd. Print how many steps "
        "take the given n > 0 to 1.",
        lambda text: str(collatz(int(text))),
        integers((1, 3000)),
    )
    yield _one(
        "digital_root",
        "Replace n by the sum of its decimal digits until it has one digit; print it.",
        lambda text: str((int(text) - 1) % 9 + 1),
        integers((1, 10**9)),
        level=1,
    )
    yield _one(
        "ones",
        "Print how many ones the binary form of n has.",
        lambda text: str(int(text).bit_count()),
        integers((0, 10**6)),
        level=1,
    )
    yield _one("roman", "Print n in Roman numerals.", lambda text: roman(int(text)), integers((1, 3999)))
    yield _one(
        "day_of_year",
        "Given year, month and day, print which day of its year that is; the first of January is day 1.",
        lambda text: str(date(*map(int, text.split())).timetuple().tm_yday),
        integers((1900, 2100), (1, 12), (1, 28)),
    )
    for step in (2, 3, 4, 5):
        what = f"n people stand in a circle, numbered from 1. Counting from number 1 on, every {nth(step)} leaves, and "
        yield _one(
            f"circle_{step}",
            f"{what}counting goes on with the next. Print the number of the last one left.",
            lambda text, k=step: str(last_left(int(text), k)),
            integers((1, 200)),
            level=3,
        )


def _sequences() -> Iterator[StdioProblem]:
    for place in (1, 3, 4):
        what = f"Move each of the integers {place} places to the left, those at the front to the end, and print them."
        yield _list(
            f"rotate_{place}", what, lambda v, k=place: join_values(v[k % len(v) :] + v[: k % len(v)]), fewest=2
        )
    for rank in (2, 3):
        what = f"Print the {nth(rank)} largest of the different values, or none if there are fewer."
        yield _list(
            f"largest_{rank}",
            what,
            lambda v, k=rank: join_values(sorted(set(v))[-k:][:1]) if len(set(v)) >= k else "none",
        )
    yield _list(
        "best_run",
        "Print the largest sum of one or more of them that stand next to each other.",
        lambda v: str(max(sum(v[i:j]) for i in range(len(v)) for j in range(i + 1, len(v) + 1))),
        level=3,
    )
    yield _list(
        "inversions",
        "Print how many pairs of places hold a larger number before a smaller one.",
        lambda v: str(sum(a > b for i, a in enumerate(v) for b in v[i:])),
    )
    yield _list(
        "rising_length",
        "Cross out some of them, or none, so that those left rise strictly. Print how many can be left.",
        lambda v: str(rising(v)),
        level=3,
    )
    for total in (6, 9, 12):
        what = f"{_GIVEN_NUMBERS} Print how many pairs of places there are whose numbers add up to {total}."
        yield _one(f"pairs_{total}", what, lambda text, t=total: str(pairs(read_numbers(text), t)), numbers(0, 9, 14))
    yield _list(
        "running_maximum",
        "Print for each of them the largest up to it.",
        lambda v: join_values([max(v[: i + 1]) for i in range(len(v))]),
        level=1,
    )
    yield _list(
        "median",
        "Print the median: the middle one of the sorted numbers, of two in the middle the smaller.",
        lambda v: str(sorted(v)[(len(v) - 1) // 2]),
        level=1,
    )
    yield _list(
        "differences",
        "Print each number minus the one before it, from the second on.",
        lambda v: join_values([b - a for a, b in itertools.pairwise(v)]),
        fewest=2,
        level=1,
    )
    for values in ((1, 5, 10), (1, 3, 4), (2, 5, 7)):
        named = ", ".join(map(str, values))
        what = f"Print the smallest number of coins of the values {named} that make up n, or none if they cannot."
        yield _one(f"coins_{values[-1]}", what, lambda text, c=values: coins(int(text), c), integers((1, 90)), level=3)


def _texts() -> Iterator[StdioProblem]:
    for shift in (1, 3, 7, 13):
        what = f"Replace each letter by the one {shift} places further in the alphabet, a following z. Print the line."
        yield _one(f"caesar_{shift}", what, lambda text, k=shift: "".join(moved(c, k) for c in text), draw_words(5))
    yield _one(
        "runs",
        "Write runs of equal characters as the character and the length of the run, as in a3b1.",
        runs,
        draw_words(2, "ab", 9),
    )
    yield _one(
        "depth",
        "The line holds round brackets. Print how deep they nest, or wrong if they do not match.",
        depth,
        brackets,
    )
    yield _one(
        "palindromes",
        "Print how many of the words read the same backwards.",
        lambda text: str(sum(w == w[::-1] for w in text.split())),
        draw_words(9, "ab", 4),
        level=1,
    )
    yield _one(
        "anagrams",
        "Print the size of the largest group of words that consist of the same letters.",
        lambda text: str(max(Counter("".join(sorted(w)) for w in text.split()).values())),
        draw_words(9, "abc", 3),
    )
    yield _one(
        "initials",
        "Print the first letters of the words in upper case, without spaces between them.",
        lambda text: "".join(w[0].upper() for w in text.split()),
        draw_words(6),
        level=1,
    )
    yield _one(
        "distance",
        "Print how many letters must be inserted, deleted or replaced at least to turn the first word into the second.",
        lambda text: str(distance(*text.split())),
        lambda rng: " ".join("".join(rng.choice(list("abc"), rng.integers(2, 8))) for _ in range(2)),
        level=3,
    )
    yield _one(
        "stack",
        "The line holds integers and the operators + - *, each behind its two operands. Print the value.",
        lambda text: str(postfix(text)),
        draw_postfix,
        level=3,
    )


def _searches() -> Iterator[StdioProblem]:
    given = "The first line holds the numbers of rows and columns of a grid, the others its rows, 0 free and 1 wall."
    yield _one(
        "islands",
        f"{given} Print how many groups of walls there are that touch along sides.",
        lambda text: str(islands(read_grid(text))),
        grid(6, 0, 1),
        level=3,
    )
    yield _one(
        "way",
        f"{given} Print how many steps over free cells, along rows and columns, lead from the top left to the "
        "bottom right cell at least, or none if there is no way.",
        lambda text: way(read_grid(text)),
        maze,
        level=3,
    )
    yield _one(
        "diagonals",
        "The first line holds the size of a square grid twice, the others its rows. Print the sums of its "
        "two diagonals, first that from the top left.",
        lambda text: diagonals(read_grid(text)),
        grid(5, square=True),
        level=1,
    )


def _one(name: str, statement: str, solve: "object", draw: Draw, *, level: int = 2) -> StdioProblem:
    assert callable(solve)
    return StdioProblem(name=name, statement=statement, solve=solve, draw=draw, level=level)


def _list(name: str, statement: str, solve: "object", *, level: int = 2, fewest: int = 1) -> StdioProblem:
    assert callable(solve)
    return _one(
        name,
        f"{_GIVEN_NUMBERS} {statement}",
        lambda text: solve(read_numbers(text)),
        numbers(-20, 40, 10, fewest),
        level=level,
    )
