"""Every shipped problem, solved a second time by sympy, from its numbers alone."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, cast

import pytest
import sympy as sp

from envgym.core.tasks import Split, Task
from envgym.envs.families import LEVELS
from envgym.envs.math._problem import FAMILIES
from envgym.envs.math._problem_sets import ProblemSelection, shipped
from envgym.verifiers.base import text_keys_of
from envgym.verifiers.math import compare
from envgym.verifiers.numbers import one_number

x, y, z, t = sp.symbols("x y z t")
R = sp.Rational
Answer = Any  # sympy has no types: a number, an expression, a set, a matrix, or a tuple of numbers


def linear(*equations: sp.Expr) -> tuple[sp.Expr, ...]:
    """Solve linear equations, each an expression that is to be 0, for x, y, z as far as they occur."""
    names = sorted({name for equation in equations for name in equation.free_symbols}, key=str)
    (solution,) = sp.linsolve(equations, names)
    return tuple(solution)


def positive_root(expression: sp.Expr) -> sp.Expr:
    (root,) = [value for value in sp.roots(sp.Poly(expression, x)) if value > 0]
    return root


def area_of(*corners: tuple[int, int]) -> sp.Expr:
    return sp.Abs(sp.Matrix([[*corner, 1] for corner in corners]).det()) / 2


def largest(expression: sp.Expr, variable: sp.Symbol = x) -> sp.Expr:
    """Return where the slope of a quadratic is 0."""
    (place,) = linear(sp.diff(expression, variable))
    return place


def mean(**values: int) -> sp.Expr:
    return sp.Add(*values.values()) / len(values)


def julian(year: int, month: int, day: int) -> sp.Expr:
    """Number a day as astronomers do (the Gregorian calendar, integer divisions only)."""
    a = (14 - month) // 12
    u, v = year + 4800 - a, month + 12 * a - 3
    return sp.Integer(day + (153 * v + 2) // 5 + 365 * u + u // 4 - u // 100 + u // 400 - 32045)


def sundays(y1: int, m1: int, d1: int, y2: int, m2: int, d2: int) -> int:
    return sum(number % 7 == 6 for number in range(julian(y1, m1, d1), julian(y2, m2, d2) + 1))


def digits_of(number: int) -> list[int]:
    return [int(digit) for digit in str(number)]


def in_base_10(n: int, b: int) -> sp.Expr:
    return sp.Poly(digits_of(n), t).eval(b)


def in_base(number: int, base: int) -> int:
    return int("".join(map(str, sp.ntheory.digits(number, base)[1:])))


def committees(m: int, n: int, k: int, a: int) -> sp.Expr:
    women, men = sp.Poly((1 + x) ** m, x), sp.Poly((1 + x) ** n, x)
    return sum(women.coeff_monomial(x**w) * men.coeff_monomial(x ** (k - w)) for w in range(a, k))


def two_dice(m: int, n: int, s: int) -> sp.Expr:
    sums = sp.Poly(sum(x**a for a in range(1, m + 1)) * sum(x**b for b in range(1, n + 1)), x)
    return R(sum(count for (power,), count in sums.terms() if power >= s), m * n)


def two_alike(r: int, b: int, g: int) -> sp.Expr:
    pairs = sum(sp.binomial(k, 2) * (r + b + g - k) for k in (r, b, g))
    return sp.Rational(pairs, sp.binomial(r + b + g, 3))


def square(**facts: int) -> sp.Matrix:
    return sp.Matrix(2, 2, [facts[name] for name in "abcd"])


SYMPY: Mapping[str, Callable[..., Answer]] = {
    "rates/1": lambda v, t: linear(x / R(t, 60) - v),
    "rates/2": lambda d, v, w: linear(v * x / 60 + w * x / 60 - d),
    "rates/3": lambda v, t, w: linear(x / v - x / w - R(t, 60)),
    "percentages/1": lambda n, p: n - n * R(p, 100),
    "percentages/2": lambda n, p, q: n * (1 + R(p, 100)) * (1 - R(q, 100)),
    "percentages/3": lambda n, p, q: linear(x * (1 - R(p, 100)) * (1 + R(q, 100)) - n),
    "mixtures/1": lambda a, p, b, q: linear(a * R(p, 100) + b * R(q, 100) - (a + b) * x / 100),
    "mixtures/2": lambda a, p, q: linear(a * R(p, 100) - (a + x) * R(q, 100)),
    "mixtures/3": lambda n, p, q, r: linear(x + y - n, x * p + y * q - n * r)[:1],
    "ages/1": lambda d, s: linear(x - y - d, x + y - s)[:1],
    "ages/2": lambda t, k, d: linear(x + t - k * (y + t), x - y - d)[1:],
    "ages/3": lambda p, s, t, k, w: linear(x + y - 2 * p - s, k * (x + t) + y + t - w)[:1],
    "shared_work/1": lambda a, b: linear(x / a + x / b - 1),
    "shared_work/2": lambda a, b, c: linear(x / a + x / b - x / c - 1),
    "shared_work/3": lambda a, b, h: linear(x / a + (x - h) / b - 1),
    "tickets/1": lambda n, a, m, b: sp.Matrix([n, m]).dot(sp.Matrix([a, b])),
    "tickets/2": lambda n, a, b, s: linear(x + y - n, a * x + b * y - s)[1:],
    "tickets/3": lambda n, m, s, d, k: k * sum(linear(n * x + m * y - s, y - x - d)),
    "averages/1": mean,
    "averages/2": lambda n, m, w: linear((n * m + x) / (n + 1) - w),
    "averages/3": lambda n, m, a, b, k, c: linear(x * (n + m - k) + k * c - n * a - m * b),
    "interest/1": lambda n, p, t: n * R(p, 100) * R(t, 12),
    "interest/2": lambda n, p: sp.expand(n * (1 + x) ** 2).subs(x, R(p, 100)),
    "interest/3": lambda n, p: sp.summation(n * (1 + R(p, 100)) ** x, (x, 1, 3)),
    "units/1": lambda d, t: R(d, 1000) / R(t, 3600),
    "units/2": lambda a, b, c, s: linear(x * R(s, 100) ** 2 - (a + R(b, 100)) * c),
    "units/3": lambda r, a, b, c: R(r * 1000) * a * R(b, 100) * R(c, 1000),
    "days/1": lambda h, m, i, n: (R(24) - (h + R(m, 60)) + (i + R(n, 60))) * 60,
    "days/2": lambda y1, m1, d1, y2, m2, d2: julian(y2, m2, d2) - julian(y1, m1, d1),
    "days/3": sundays,
    "shares/1": lambda s, a, b: sp.Abs(sp.Matrix(linear(x + y - s, b * x - a * y)).dot(sp.Matrix([1, -1]))),
    "shares/2": lambda n, k, h, m, t: linear(x / (m * t) - R(k, n * h)),
    "shares/3": lambda a, b, c, p, s: linear(
        x - (1 - R(p, 100)) * a * R(s, c), y - b * R(s, c) - R(p, 100) * a * R(s, c)
    ),
    "common_divisors/1": lambda a, b: sp.igcd(b, a),
    "common_divisors/2": lambda a, b, c: sp.ilcm(c, b, a),
    "common_divisors/3": lambda a, b, c, r: sp.ilcm(a, b, c) + r,
    "remainders/1": lambda a, b, m: sp.Mod(sp.Integer(a) * b, m),
    "remainders/2": lambda a, n, m: sp.Mod(sp.Integer(a) ** n, m),
    "remainders/3": lambda a, m, b, n: sp.ntheory.modular.crt([m, n], [a, b])[0],
    "divisors/1": lambda n: sp.divisor_sigma(n, 1),
    "divisors/2": lambda n: sp.totient(n).doit(),
    "divisors/3": lambda n: min(sp.primefactors(n)) * sp.divisor_sigma(n // min(sp.primefactors(n))),
    "bases/1": in_base_10,
    "bases/2": lambda n, b: sum(sp.ntheory.digits(n, b)[1:]),
    "bases/3": lambda m, n, b: in_base(int(in_base_10(m, b) * in_base_10(n, b)), b),
    "counting/1": lambda n, k: n * sp.binomial(n - 1, k - 1),
    "counting/2": lambda a, b, c: sp.binomial(a + b + c, a) * sp.binomial(b + c, b),
    "counting/3": committees,
    "chances/1": lambda r, b: sp.binomial(r, 2) / sp.binomial(r + b, 2),
    "chances/2": two_dice,
    "chances/3": two_alike,
    "sequences/1": lambda a, b, c, n: sp.interpolate([a, b, c], x).subs(x, n),
    "sequences/2": lambda a, q, n: sp.Poly([a] * n, x).eval(q),
    "sequences/3": lambda a, b, p, q: (sp.Matrix([[p, q], [1, 0]]) ** 5 * sp.Matrix([b, a]))[0],
    "sums/1": lambda a, b: sp.summation(x, (x, a, b)),
    "sums/2": lambda a, b, k: k * sp.summation(x, (x, -(-a // k), b // k)),
    "sums/3": lambda n, a, b, c: (
        n // a + n // b - n // sp.ilcm(a, b) - n // sp.ilcm(a, c) - n // sp.ilcm(b, c) + n // sp.ilcm(a, b, c)
    ),
    "equations/1": lambda a, b, c, d: linear(a * x + b - c * x - d),
    "equations/2": lambda a, b, c, d, e: linear((x + a) / b - (x - c) / d - e),
    "equations/3": lambda a, b, c: positive_root((x + c) ** 2 - a * x - b),
    "linear_systems/1": lambda a, b, p, c, d, q: linear(a * x + b * y - p, c * x + d * y - q),
    "linear_systems/2": lambda a, b, p, c, d, q: linear(a * x + b * y - p, c * x + d * y - q),
    "linear_systems/3": lambda a, b, i, p, c, d, j, q, e, f, k, r: linear(
        a * x + b * y + i * z - p, c * x + d * y + j * z - q, e * x + f * y + k * z - r
    ),
    "roots/1": lambda b, c: sp.FiniteSet(*sp.roots(sp.Poly([1, b, c], x))),
    "roots/2": lambda b, c, d: sp.FiniteSet(*sp.roots(sp.Poly([1, b, c, d], x))),
    "roots/3": lambda a, b, c: sp.expand(sum(root**2 for root in sp.roots(sp.Poly([a, b, c], x), multiple=True))),
    "inequalities/1": lambda a, b, c, d: sp.solveset(a * x + b < c * x + d, x, sp.S.Reals),
    "inequalities/2": lambda b, c: sp.solveset(x**2 + b * x + c <= 0, x, sp.S.Reals),
    "inequalities/3": lambda a, b, m: sp.Union(
        sp.solveset(a * x + b >= m, x, sp.S.Reals), sp.solveset(a * x + b <= -m, x, sp.S.Reals)
    ),
    "logarithms/1": lambda b, m, n, k, c: sp.log(sp.Integer(b) ** m * sp.Integer(c) ** n) / sp.log(b),
    "logarithms/2": lambda i, j, a, c, p, q: linear(
        (x + a) * sp.multiplicity(sp.primefactors(p)[0], p) - (x - c) * sp.multiplicity(sp.primefactors(q)[0], q)
    ),
    "logarithms/3": lambda a, m: positive_root(x * (x + a) - m),
    "complex_numbers/1": lambda a, b, c, d: sp.expand((a + b * sp.I) * (c + d * sp.I)).as_real_imag(),
    "complex_numbers/2": lambda a, b, c, d: sp.simplify((a + b * sp.I) / (c + d * sp.I)).as_real_imag(),
    "complex_numbers/3": lambda a, b, c, d, n: sp.Abs(sp.expand((a + b * sp.I) ** n)) ** 2 + sp.Abs(c + d * sp.I) ** 2,
    "parabolas/1": lambda a, b, c: (a * x**2 + b * x + c).subs(x, largest(a * x**2 + b * x + c)),
    "parabolas/2": lambda n: (x * (n - 3 * x)).subs(x, largest(x * (n - 3 * x))),
    "parabolas/3": lambda p, n, k, c: largest((x - c) * (n - k * (x - p))),
    "functions/1": lambda a, b, c, d, n: (a * x + b).subs(x, (x**2 + c * x + d).subs(x, n)),
    "functions/2": lambda a, b, c, d, n: linear((a * x + b).subs(x, c * x + d) - n),
    "functions/3": lambda u, v, w, n: sp.interpolate([(0, u), (1, v), (2, w)], x).subs(x, n),
    "derivatives/1": lambda a, b, c, x: sp.diff(a * y**3 + b * y**2 + c * y, y).subs(y, x),
    "derivatives/2": lambda a, b, n, x: sp.diff(y**2 * (a * y + b) ** n, y).subs(y, x),
    "derivatives/3": lambda a, b, c, k: sp.diff((a * x**2 + b * x + c) * sp.exp(k * x), x),
    "integrals/1": lambda a, b, c, l, h: sp.integrate(sp.Poly([a, b, c], x).as_expr(), (x, l, h)),  # noqa: E741
    "integrals/2": lambda m, k: sp.integrate(m * x + k - x**2, (x, *sorted(sp.roots(sp.Poly([1, -m, -k], x))))),
    "integrals/3": lambda k, a, b: sp.integrate(k / (x + a), (x, 0, b)),
    "determinants/1": lambda a, b, c, d: square(a=a, b=b, c=c, d=d).det(),
    "determinants/2": lambda **facts: sp.Matrix(3, 3, [facts[name] for name in "abcdefghi"]).det(),
    "determinants/3": lambda **facts: linear(sp.expand(sp.Matrix(3, 3, [*(facts[n] for n in "abcdefgh"), x]).det())),
    "matrices/1": lambda a, b, c, d, e, f, g, h: square(a=a, b=b, c=c, d=d) * sp.Matrix(2, 2, [e, f, g, h]),
    "matrices/2": lambda **facts: sum(square(**facts).inv()),
    "matrices/3": lambda n, **facts: (square(**facts) ** n).trace(),
    "areas/1": lambda a, b, h: area_of((0, 0), (a, 0), (0, h)) + area_of((a, 0), (0, h), (b, h)),
    "areas/2": lambda r, q, w: sp.integrate(x, (x, q, r)) * R(w, 180) * sp.pi,
    "areas/3": lambda a, b, c, d, e, f: area_of((a, b), (c, d), (e, f)),
    "solids/1": lambda a, b, c: 2 * (a * b + b * c + c * a) - a * b,
    "solids/2": lambda r, h, k: sp.integrate(sp.pi * (r * x / h) ** 2, (x, 0, h)) + sp.pi * r**2 * k,
    "solids/3": lambda r, s: linear(2 * sp.integrate(r**2 - y**2, (y, 0, r)) - s**2 * x),
    "distances/1": lambda a, b: sp.Point(a, 0).distance(sp.Point(0, b)),
    "distances/2": lambda a, b, c, d, e, f: sp.Point(a, b, c).distance(sp.Point(d, e, f)),
    "distances/3": lambda a, b, w: sp.sqrt(a**2 + b**2 - 2 * a * b * sp.cos(sp.pi * w / 180)),
    "vectors/1": lambda a, b, c, d, e, f: sp.Matrix([a, b, c]).dot(sp.Matrix([d, e, f])),
    "vectors/2": lambda a, b, c, d, e: linear(sp.Matrix([a, b, c]).dot(sp.Matrix([d, e, x]))),
    "vectors/3": lambda a, b, c, d, e, f: sp.Matrix([a, b, c]).cross(sp.Matrix([d, e, f])).norm() ** 2,
}


def test_there_are_over_a_thousand_problems_of_35_families_and_each_kind_has_a_second_way() -> None:
    tasks = every(20)
    assert len(tasks) == 35 * 3 * 20 == 2100
    assert len({task.key for task in tasks}) == len({task.prompt for task in tasks}) == 2100
    assert {task.payload["problem"] for task in tasks} == set(SYMPY)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first, end", [(0, 3), pytest.param(3, 20, marks=pytest.mark.slow)])
def test_sympy_finds_the_same_answer(family: str, first: int, end: int) -> None:
    earlier = {task.key for task in every(first, family)}
    tasks = [task for task in every(end, family) if task.key not in earlier]
    assert len(tasks) == 3 * (end - first)
    for task in tasks:
        facts = cast(Mapping[str, int], task.payload["facts"])
        found = SYMPY[str(task.payload["problem"])](**facts)
        values = [sp.sympify(value) for value in (found if isinstance(found, tuple) else (found,))]
        key = text_keys_of(task, "answer")[0]
        numbers = [one_number(part) for part in key.strip("()").split(", ")]
        if None not in numbers and all(getattr(value, "is_Rational", False) for value in values):
            assert [Fraction(int(value.p), int(value.q)) for value in values] == numbers, task.prompt
        else:  # another form of the same, which the verifier must take
            verdict = compare(key, sp.latex(found, ln_notation=True, mat_delim="(", mat_str="matrix"), cpu_s=30)
            assert verdict is not None, key
            assert verdict.score == 1.0, (task.prompt, key, found, verdict.reason)


def every(count: int, *families: str) -> list[Task]:
    source = shipped(ProblemSelection(families or tuple(FAMILIES), LEVELS, (), count))
    return [source.task(split, index) for split in Split for index in range(source.size(split))]
