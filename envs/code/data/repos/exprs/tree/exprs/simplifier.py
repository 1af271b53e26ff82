"""Makes expressions shorter without changing their value."""

from exprs.evaluator import EvaluationProblem, apply
from exprs.tree import Binary, Call, Choice, Name, Number, Unary


def names(tree):
    """Return the names of all variables, sorted; functions are none."""
    match tree:
        case Name(name):
            return [name]
        case Unary(_, operand):
            return names(operand)
        case Binary(_, left, right):
            return _merged(left, right)
        case Choice(condition, then, otherwise):
            return _merged(condition, then, otherwise)
        case Call(_, arguments):
            return _merged(*arguments)
    return []


def _merged(*parts):
    return sorted({name for part in parts for name in names(part)})


def simplify(tree):
    """Compute what is constant, and drop what changes nothing: x + 0, x - 0, 1 * x, x / 1, x ^ 1."""
    match tree:
        case Unary(symbol, operand):
            inner = simplify(operand)
            return Number(-inner.value) if isinstance(inner, Number) else Unary(symbol, inner)
        case Binary(symbol, left, right):
            return _combined(symbol, simplify(left), simplify(right))
        case Call(function, arguments):
            return Call(function, tuple(simplify(argument) for argument in arguments))
        case Choice(condition, then, otherwise):
            decided = simplify(condition)
            if isinstance(decided, Number):
                return simplify(then if decided.value else otherwise)
            return Choice(decided, simplify(then), simplify(otherwise))
    return tree


def _combined(symbol, left, right):
    if isinstance(left, Number) and isinstance(right, Number):
        try:
            return Number(apply(symbol, left.value, right.value))
        except EvaluationProblem:
            return Binary(symbol, left, right)
    if (symbol in "+-" and right == Number(0)) or (symbol in ("*", "/", "^") and right == Number(1)):
        return left
    if (symbol == "+" and left == Number(0)) or (symbol == "*" and left == Number(1)):
        return right
    return Binary(symbol, left, right)
