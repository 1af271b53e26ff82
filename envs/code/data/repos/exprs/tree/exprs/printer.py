"""Writes an expression with as few parentheses as possible."""

from exprs.parser import FROM_THE_RIGHT, PRECEDENCE, UNARY
from exprs.tree import Binary, Call, Choice, Name, Number, Unary

_STRONGEST = 9


def show(tree):
    """Return the text of an expression; `parse` gives the same expression back."""
    return _text(tree, 0)


def _text(tree, around):
    """Write a part; in parentheses where it binds less strongly than what is around it."""
    text, strength = _bare(tree)
    return f"({text})" if strength < around else text


def _bare(tree):
    match tree:
        case Number(value):
            return f"{value:g}" if isinstance(value, float) else str(value), _STRONGEST if value >= 0 else UNARY
        case Name(name):
            return name, _STRONGEST
        case Unary(symbol, operand):
            return f"{symbol}{_text(operand, UNARY)}", UNARY
        case Binary(symbol, left, right):
            strength = PRECEDENCE[symbol]
            is_right = symbol in FROM_THE_RIGHT
            first = _text(left, strength + 1 if is_right else strength)
            second = _text(right, strength if is_right else strength + 1)
            return f"{first} {symbol} {second}", strength
        case Call(function, arguments):
            return f"{function}({', '.join(show(argument) for argument in arguments)})", _STRONGEST
        case Choice(condition, then, otherwise):
            return f"{_text(condition, 1)} ? {show(then)} : {show(otherwise)}", 0
    raise TypeError(f"{tree!r} is no expression")
