"""Expressions that make a number of others: reading what somebody wrote, exactly, and finding one."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType

OPERATORS = "+-*/"
MAX_CHARS = 80
_READABLE = re.compile(r"[0-9+\-*/() ]+")
_SIGNS: Mapping[type[ast.operator], str] = MappingProxyType({ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"})
_COMPUTE: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = MappingProxyType(
    {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}
)


class UnreadableExpression(ValueError):
    """What was written is no expression, or divides by zero; the message is for the agent."""


def read_expression(text: str) -> tuple[Fraction, list[int], set[str]]:
    """Return the value of an expression, the numbers in it and its operators.

    Raises: UnreadableExpression: it is none, has a sign before a number, or divides by zero.
    """
    plain = text.replace("\u00d7", "*").replace("\u00f7", "/").partition("=")[0].strip()
    if len(plain) > MAX_CHARS or not _READABLE.fullmatch(plain):
        raise UnreadableExpression("Write one expression of numbers, operators and parentheses.")
    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UnreadableExpression(f"{plain} is no complete expression.") from None
    numbers: list[int] = []
    signs: set[str] = set()
    return _value(tree, numbers, signs), sorted(numbers), signs


def _value(tree: ast.expr, numbers: list[int], signs: set[str]) -> Fraction:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        numbers.append(tree.value)
        return Fraction(tree.value)
    sign = _SIGNS.get(type(tree.op)) if isinstance(tree, ast.BinOp) else None
    if not isinstance(tree, ast.BinOp) or sign is None:
        raise UnreadableExpression("Write one expression of numbers, operators and parentheses.")
    signs.add(sign)
    left, right = _value(tree.left, numbers, signs), _value(tree.right, numbers, signs)
    if sign == "/" and right == 0:
        raise UnreadableExpression("That divides by zero.")
    return _COMPUTE[sign](left, right)


Term = tuple[int, int, str]
"""Numerator, denominator and text: many times faster to search with than fractions."""


@lru_cache(maxsize=20_000)
def find_solution(numbers: tuple[int, ...], target: int, operators: str) -> str | None:
    """Return an expression that makes `target` of all the numbers, or None where there is none."""
    return _search([(number, 1, str(number)) for number in numbers], target, operators)


def _search(terms: list[Term], target: int, operators: str) -> str | None:
    """Join any two terms by any operator, and so on with one term less."""
    if len(terms) == 1:
        top, bottom, text = terms[0]
        return text[1:-1] if top == target * bottom else None
    for first, second in combinations(range(len(terms)), 2):
        rest = [term for place, term in enumerate(terms) if place not in (first, second)]
        for joined in _joined(terms[first], terms[second], operators):
            solution = _search([*rest, joined], target, operators)
            if solution is not None:
                return solution
    return None


def _joined(one: Term, other: Term, operators: str) -> Iterator[Term]:
    (a, b, left), (c, d, right) = one, other
    if "+" in operators:
        yield a * d + b * c, b * d, f"({left} + {right})"
    if "-" in operators:
        yield a * d - b * c, b * d, f"({left} - {right})"
        yield b * c - a * d, b * d, f"({right} - {left})"
    if "*" in operators:
        yield a * c, b * d, f"({left} * {right})"
    if "/" in operators and c:
        yield a * d, b * c, f"({left} / {right})"
    if "/" in operators and a:
        yield b * c, a * d, f"({right} / {left})"
