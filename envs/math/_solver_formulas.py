"""Formulas of linear arithmetic over whole numbers: how they are read, and written for a solver."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

Formula: TypeAlias = "tuple[str | int | Formula, ...]"
"""An operator with its parts, `("number", 3)` or `("variable", "x1")`."""
MAX_TOKENS, MAX_NESTING, MAX_NUMBER = 150, 20, 1_000_000
"""Of a formula: words and signs, parentheses in each other, and the absolute value of a number."""

_TOKEN = re.compile(r"\s*(?:(->|<=|>=|!=|[-+*=<>()])|([a-z][a-z0-9]*)|([0-9]+))")
_POWERS = {
    "->": 1,
    "or": 2,
    "and": 3,
    "=": 5,
    "!=": 5,
    "<": 5,
    "<=": 5,
    ">": 5,
    ">=": 5,
    "+": 6,
    "-": 6,
    "*": 7,
}
_NOT = 4
_NEGATE = 8
_CONNECTIVES = ("->", "or", "and", "not")
_WORDS = frozenset({"or", "and", "not"})


class FormulaRefused(Exception):
    """A text that is no formula of linear arithmetic, and why."""


@dataclass(slots=True)
class _Reader:
    """Tokens of a formula, read by the precedence of operators."""

    tokens: list[str]
    variables: Collection[str]
    place: int = 0
    nesting: int = 0

    @property
    def next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next
        self.place += 1
        return token

    def expression(self, power: int) -> Formula:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise FormulaRefused(f"a formula is nested more than {MAX_NESTING} deep")
        left = self.operand()
        while (strength := _POWERS.get(self.next, 0)) >= power and strength:
            operator = self.take()
            right = self.expression(strength if operator == "->" else strength + 1)
            left = _joined(operator, left, right)
            if strength == 5 and _POWERS.get(self.next) == 5:
                raise FormulaRefused("comparisons cannot be chained; join two with `and`")
        self.nesting -= 1
        return left

    def operand(self) -> Formula:
        token = self.take()
        if token == "(":
            inner = self.expression(1)
            if self.take() != ")":
                raise FormulaRefused("a parenthesis is not closed")
            return inner
        if token == "not":
            return ("not", _wanted(self.expression(_NOT + 1), True, "not"))
        if token == "-":
            part = _wanted(self.expression(_NEGATE), False, "-")
            return ("number", -int(str(part[1]))) if part[0] == "number" else ("*", ("number", -1), part)
        if token.isdigit():
            return ("number", _number(token))
        if token in self.variables:
            return ("variable", token)
        raise FormulaRefused(f"a number, a variable or a formula is missing before {token or 'the end'}")


def read_formula(text: str, variables: Collection[str]) -> Formula:
    """Read a formula about known variables. Raises: FormulaRefused: it is none, or too long."""
    reader = _Reader([*_tokens(text, variables)], variables)
    formula = reader.expression(1)
    if reader.next:
        raise FormulaRefused(f"the formula ends before {reader.next}")
    if not _is_boolean(formula):
        raise FormulaRefused("this is a number, not a statement about numbers")
    return formula


def _tokens(text: str, variables: Collection[str]) -> Iterator[str]:
    text, place, count = text.strip(), 0, 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise FormulaRefused(f"{text[place : place + 20].strip()} cannot be read")
        sign, word, number = match.groups()
        if word and word not in _WORDS and word not in variables:
            raise FormulaRefused(f"{word[:20]} is no variable of the statement")
        count += 1
        if count > MAX_TOKENS:
            raise FormulaRefused(f"a formula has at most {MAX_TOKENS} words and signs")
        yield sign or word or number
        place = match.end()


def _number(digits: str) -> int:
    if len(digits) > 7 or int(digits) > MAX_NUMBER:
        raise FormulaRefused(f"a number is at most {MAX_NUMBER}")
    return int(digits)


def _is_boolean(formula: Formula) -> bool:
    return formula[0] not in ("number", "variable", "+", "-", "*")


def _wanted(formula: Formula, is_boolean: bool, operator: str) -> Formula:
    if _is_boolean(formula) is not is_boolean:
        raise FormulaRefused(f"{operator} stands between {'statements' if is_boolean else 'numbers'}")
    return formula


def _joined(operator: str, left: Formula, right: Formula) -> Formula:
    for part in (left, right):
        _wanted(part, operator in _CONNECTIVES, operator)
    if operator == "*" and "number" not in (left[0], right[0]):
        raise FormulaRefused("a product must have a number as a factor")
    return (operator, left, right)


_NAMES = {"->": "=>", "!=": "distinct"}


def write_smt(formula: Formula) -> str:
    operator, *parts = formula
    if operator == "number":
        number = int(str(parts[0]))
        return str(number) if number >= 0 else f"(- {-number})"
    if operator == "variable":
        return str(parts[0])
    texts = [write_smt(part) for part in parts if isinstance(part, tuple)]
    return f"({_NAMES.get(str(operator), operator)} {' '.join(texts)})"
