"""How answers and formulas of `math/problems-v0` are written: LaTeX, polynomials, dates."""

import math
from calendar import month_name
from collections.abc import Sequence
from datetime import date
from fractions import Fraction


def latex(value: int | Fraction) -> str:
    r"""Write a number: `-7`, or `-\frac{1}{2}`."""
    number = Fraction(value)
    if number.denominator == 1:
        return str(number.numerator)
    return f"{'-' * (number < 0)}\\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"


def times(value: int | Fraction, unit: str) -> str:
    r"""Write a multiple of a unit: `3\pi`, `\pi`, `-\pi`, `0`."""
    size = "" if abs(value) == 1 else latex(Fraction(value)).lstrip("-")
    return "0" if value == 0 else f"{'-' * (value < 0)}{size}{unit}"


def root(square: int) -> str:
    r"""Write a square root with the squares drawn out: `5`, `\sqrt{7}`, `2\sqrt{3}`."""
    outside = max(k for k in range(1, math.isqrt(square) + 1) if square % k**2 == 0)
    inside = square // outside**2
    return str(outside) if inside == 1 else f"{'' if outside == 1 else outside}\\sqrt{{{inside}}}"


def listed(values: Sequence[int | Fraction]) -> str:
    """Write numbers in a row: `3, -2`."""
    return ", ".join(map(latex, values))


def tupled(values: Sequence[int | Fraction]) -> str:
    """Write a tuple: `(3, -2)`."""
    return f"({listed(values)})"


def polynomial(coefficients: Sequence[int], variable: str = "x") -> str:
    """Write a polynomial, the highest power first: `2x^3 - x + 5`."""
    degree = len(coefficients) - 1
    parts: list[str] = []
    for index, coefficient in enumerate(coefficients):
        power = degree - index
        if coefficient == 0:
            continue
        body = "" if power == 0 else variable if power == 1 else f"{variable}^{power}"
        size = "" if abs(coefficient) == 1 and body else str(abs(coefficient))
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(f"{sign}{size}{body}")
    return "".join(parts) or "0"


def set_of(values: Sequence[int | Fraction]) -> str:
    r"""Write a set: `\{-2, 3\}`."""
    return f"\\{{{listed(values)}\\}}"


def matrix(rows: Sequence[Sequence[int]]) -> str:
    """Write a matrix, row by row."""
    return "\\begin{pmatrix}" + "\\\\".join("&".join(map(str, row)) for row in rows) + "\\end{pmatrix}"


def linear_sum(*coefficients: int) -> str:
    """Write `2x - y + 3z`; no coefficient is 0."""
    text = ""
    for coefficient, name in zip(coefficients, "xyz", strict=False):
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        text += f"{sign}{'' if abs(coefficient) == 1 else abs(coefficient)}{name}"
    return text


def complex_number(real: int, imaginary: int) -> str:
    """Write `3 - 2i`; the imaginary part is not 0."""
    return f"{real} {'-' if imaginary < 0 else '+'} {'' if abs(imaginary) == 1 else abs(imaginary)}i"


def numeral(number: int, base: int) -> str:
    """Write a number in a base of at most 10."""
    return (numeral(number // base, base) if number >= base else "") + str(number % base)


def date_words(day: date) -> str:
    """Write `March 5, 2021`."""
    return f"{month_name[day.month]} {day.day}, {day.year}"
