"""Splits text into tokens."""

import re
from dataclasses import dataclass


class SyntaxProblem(ValueError):
    """The text is no expression."""

    def __init__(self, message, position):
        """Say what is wrong, and where: the first character has position 0."""
        super().__init__(f"{message} at position {position}")
        self.position = position


@dataclass(frozen=True)
class Token:
    """A number, a name, an operator, or the end."""

    kind: str
    text: str
    position: int


_SPACE = re.compile(r"\s*")
_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>//|<=|>=|==|!=|[-+*/%^(),<>?:])"
)


def tokenize(text):
    """Return the tokens of a text, and one of kind "end" behind them."""
    tokens = []
    position = _SPACE.match(text).end()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise SyntaxProblem(f"unexpected character {text[position]!r}", position)
        tokens.append(Token(match.lastgroup, match.group(), position))
        position = _SPACE.match(text, match.end()).end()
    tokens.append(Token("end", "", len(text)))
    return tokens
