"""The calculator of the tool: exact, small, and unable to run anything but arithmetic."""

import re
from fractions import Fraction

from envgym.errors import ToolError

MAX_CHARS = 200
MAX_DEPTH = 50
"""Nested parentheses and signs."""
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|([-+*/()]))", re.ASCII)
_SPELLINGS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})
_FORM = "Write numbers with + - * / and parentheses, as in (12 + 7) * 3"


def calculate(text: str) -> str:
    """Return the exact value of an arithmetic expression as text. Raises: ToolError: what is wrong with it."""
    if len(text) > MAX_CHARS:
        raise ToolError(f"The expression has {len(text)} characters, at most {MAX_CHARS} are read. Send it in parts.")
    parser = _Parser(_tokens(text.translate(_SPELLINGS)))
    value = parser.sum(0)
    if parser.peek():
        raise ToolError(f"The expression cannot go on with {parser.peek()!r} after a number. {_FORM}.")
    return show(Fraction(value))


def show(value: Fraction) -> str:
    """Write a number exactly: `224`, `0.125`, or `1/3` where the decimals would not end."""
    rest, places = value.denominator, 0
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        places += 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ToolError(f"The calculator cannot read {text[position:].strip()[:20]!r}. {_FORM}.")
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


class _Parser:
    """Reads and evaluates at once, from left to right.

    sum = product (("+" | "-") product)*;  product = factor (("*" | "/") factor)*
    factor = ("+" | "-") factor | "(" sum ")" | number
    """

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        token = self.peek()
        self._position += 1
        return token

    def sum(self, depth: int) -> int | Fraction:
        value = self._product(depth)
        while self.peek() in ("+", "-"):
            value = value + self._product(depth) if self._take() == "+" else value - self._product(depth)
        return value

    def _product(self, depth: int) -> int | Fraction:
        value = self._factor(depth)
        while self.peek() in ("*", "/"):
            if self._take() == "*":
                value *= self._factor(depth)
            elif (divisor := self._factor(depth)) == 0:
                raise ToolError("The expression divides by 0.")
            else:
                value = Fraction(value) / divisor
        return value

    def _factor(self, depth: int) -> int | Fraction:
        if depth > MAX_DEPTH:
            raise ToolError(f"The expression is nested more than {MAX_DEPTH} deep. Send it in parts.")
        token = self._take()
        if token in ("+", "-"):
            value = self._factor(depth + 1)
            return value if token == "+" else -value
        if token == "(":
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ToolError("A parenthesis is not closed. Add the missing ).")
            return value
        if not token or not (token[0].isdigit() or token[0] == "."):
            position = f"before {token!r}" if token else "at the end"
            raise ToolError(f"A number is missing {position}. {_FORM}.")
        return int(token) if token.isdecimal() else Fraction(token)
