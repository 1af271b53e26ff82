"""Arithmetic expressions over non-negative integers: drawn, written, evaluated, and brought to one form."""

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

Expression: TypeAlias = "int | Operation"

SMALL_FACTORS = range(2, 10)
"""What products multiply by and quotients divide by."""
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True, slots=True)
class Operation:
    op: str
    """One of + - * /"""
    left: Expression
    right: Expression


def evaluate(expression: Expression) -> Fraction:
    """Return the exact value. Raises: ZeroDivisionError."""
    if isinstance(expression, int):
        return Fraction(expression)
    left, right = evaluate(expression.left), evaluate(expression.right)
    match expression.op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right


def num_operations(expression: Expression) -> int:
    if isinstance(expression, int):
        return 0
    return 1 + num_operations(expression.left) + num_operations(expression.right)


def solution_steps(expression: Expression) -> list[str]:
    """Write one operation after the other, each with its result, but the last, whose result is the value: `7 - 5 = ?`.

    Results of earlier operations stand in later ones: `(2 + 5) * 3 - 4` gives `2 + 5 = 7`, `7 * 3 = 21`, `21 - 4 = ?`.
    """
    steps: list[str] = []
    _solve(expression, steps)
    return [*steps[:-1], f"{steps[-1].partition(' = ')[0]} = ?"] if steps else []


def _solve(expression: Expression, steps: list[str]) -> Fraction:
    """Return the value, and append the operations that lead to it."""
    if isinstance(expression, int):
        return Fraction(expression)
    left, right = _solve(expression.left, steps), _solve(expression.right, steps)
    value = evaluate(Operation(expression.op, int(left), int(right)))
    steps.append(f"{left} {expression.op} {right} = {value}")
    return value


def write(expression: Expression) -> str:
    """Write the expression with no more parentheses than its value needs: `(12 + 7) * 3 - 5`."""
    if isinstance(expression, int):
        return str(expression)
    strength = _PRECEDENCE[expression.op]
    left = _wrapped(expression.left, strength)
    right = _wrapped(expression.right, strength + (expression.op in "-/"))
    return f"{left} {expression.op} {right}"


def _wrapped(part: Expression, strength: int) -> str:
    """Write an operand, in parentheses where it binds more weakly than `strength`."""
    text = write(part)
    return text if isinstance(part, int) or _PRECEDENCE[part.op] >= strength else f"({text})"


def canonical(expression: Expression) -> str:
    """Write the form that all orders and groupings of the same sums and products share.

    `3 + 5`, `5 + 3` and, in `9 - (4 - x)`, the grouping make no difference: terms and factors are sorted.
    """
    if isinstance(expression, int):
        return str(expression)
    if expression.op in "+-":
        added, subtracted = _chain(expression, "+", "-")
        return "+".join(added) + "".join(f"-{term}" for term in subtracted)
    factors, divisors = _chain(expression, "*", "/")
    return "*".join(factors) + "".join(f"/{divisor}" for divisor in divisors)


def _chain(expression: Expression, direct: str, inverse: str) -> tuple[list[str], list[str]]:
    """Return the sorted operands of a chain of `direct` and `inverse`: those that join, those that are undone."""
    if isinstance(expression, int) or expression.op not in (direct, inverse):
        text = canonical(expression)
        is_sum = not isinstance(expression, int) and direct == "*"
        return [f"({text})" if is_sum else text], []
    joined, undone = _chain(expression.left, direct, inverse)
    more, less = _chain(expression.right, direct, inverse)
    if expression.op == inverse:
        more, less = less, more
    return sorted(joined + more), sorted(undone + less)


def draw_number(rng: np.random.Generator, digits: int) -> int:
    """Draw an operand of exactly `digits` digits, at least 2."""
    return int(rng.integers(max(2, 10 ** (digits - 1)), 10**digits))


def draw_factor(rng: np.random.Generator) -> int:
    return int(rng.choice(SMALL_FACTORS))


def draw_divisor(rng: np.random.Generator, value: int) -> int:
    """Draw a small factor that divides `value`, 0 where there is none."""
    fitting = [factor for factor in SMALL_FACTORS if value % factor == 0]
    return int(rng.choice(fitting)) if fitting else 0


def draw_expression(rng: np.random.Generator, level: int, digits: int) -> Expression:
    """Draw an expression of `level` operations whose intermediate values are positive integers.

    Levels 1 and 2 need no parentheses; 3 and 4 have a pair, and may divide; 5 has two pairs.
    """
    pairs = (0, 0, 0, 1, 1, 2)[level]
    while True:
        candidate = _draw(rng, level, digits, "+-*" if level <= 2 else "+-*/")
        if candidate is not None:
            written = write(candidate[0]).count("(")
            if written == 0 if pairs == 0 else written >= pairs:
                return candidate[0]


def _draw(rng: np.random.Generator, operations: int, digits: int, ops: str) -> tuple[Expression, int] | None:
    """Draw (expression, value), or None where the draw led to a value that is no positive integer."""
    if operations == 0:
        number = draw_number(rng, digits)
        return number, number
    op = ops[rng.integers(len(ops))]
    on_the_left = int(rng.integers(operations)) if op in "+-" else operations - 1
    left = _draw(rng, on_the_left, digits, ops)
    if left is None:
        return None
    if op == "/":
        divisor = draw_divisor(rng, left[1])
        return (Operation(op, left[0], divisor), left[1] // divisor) if divisor else None
    if op == "*":
        factor = draw_factor(rng)
        sides = (left[0], factor) if rng.integers(2) else (factor, left[0])
        return Operation(op, *sides), left[1] * factor
    right = _draw(rng, operations - 1 - on_the_left, digits, ops)
    if right is None or (op == "-" and left[1] <= right[1]):
        return None
    return Operation(op, left[0], right[0]), left[1] + right[1] if op == "+" else left[1] - right[1]
