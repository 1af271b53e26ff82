"""Computes the value of an expression."""

import math
import operator

from exprs.parser import parse
from exprs.tree import Binary, Call, Choice, Name, Number, Unary

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "^": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
COMPARISONS = {"<", "<=", ">", ">=", "==", "!="}
FUNCTIONS = {"abs": abs, "max": max, "min": min, "sqrt": math.sqrt}


class EvaluationProblem(ValueError):
    """The expression has no value."""


def evaluate(expression, variables=None):
    """Return the value of an expression, given as text or as a tree. Raises EvaluationProblem, SyntaxProblem."""
    tree = parse(expression) if isinstance(expression, str) else expression
    return _value(tree, variables or {})


def _value(tree, variables):
    match tree:
        case Number(value):
            return value
        case Name(name):
            if name not in variables:
                raise EvaluationProblem(f"unknown variable {name}")
            return variables[name]
        case Unary("-", operand):
            return -_value(operand, variables)
        case Binary(symbol, left, right):
            return apply(symbol, _value(left, variables), _value(right, variables))
        case Choice(condition, then, otherwise):
            return _value(then if _value(condition, variables) else otherwise, variables)
        case Call(function, arguments):
            return _called(function, [_value(argument, variables) for argument in arguments])
    raise TypeError(f"{tree!r} is no expression")


def apply(symbol, left, right):
    """Return the value of an operator between two values. Raises EvaluationProblem."""
    try:
        value = OPERATORS[symbol](left, right)
    except ZeroDivisionError:
        raise EvaluationProblem("division by zero") from None
    return int(value) if symbol in COMPARISONS else value


def _called(function, arguments):
    if function not in FUNCTIONS:
        raise EvaluationProblem(f"unknown function {function}")
    try:
        return FUNCTIONS[function](*arguments)
    except (TypeError, ValueError) as error:
        raise EvaluationProblem(f"{function}: {error}") from None
