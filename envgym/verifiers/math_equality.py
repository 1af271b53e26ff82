"""Equality of two expressions: what math-verify finds, told apart by size, and also regions and real functions.

math-verify rounds to six places, so that 1/20! is 1/21! to it; it takes the right side of `6 = 5`; it compares no
inequality with an interval key, and does not see that sqrt(1/n) is 1/sqrt(n). It runs in `math_worker` alone.
"""

import random
from collections.abc import Sequence
from typing import Any, cast

import sympy as sp
from math_verify import verify
from sympy.core.relational import Relational

Parsed = Sequence[Any]  # sympy has no types: what math-verify reads in one text
NUM_POINTS = 12
"""Points at which two functions must agree."""
_DIGITS = 30
_EXACT, _ROUNDED = sp.Float("1e-22", _DIGITS), sp.Float("5e-6", _DIGITS)
"""Largest relative differences: of exact numbers (they are evaluated to 30 digits), and of decimals (six digits)."""


def are_equal(key: Parsed, answer: Parsed) -> bool:
    """Tell whether an answer equals a key. Raises: what sympy raises on strange expressions."""
    if not key or not answer:
        return False
    first, second = key[0], answer[0]
    if isinstance(first, str) or isinstance(second, str):
        return bool(verify(list(key), list(answer), timeout_seconds=None, raise_on_error=True))
    if not _is_consistent(first, second):
        return False
    regions = _as_region(first), _as_region(second)
    if None not in regions and regions != (first, second):
        return _same_region(cast(sp.Set, regions[0]), cast(sp.Set, regions[1]))
    if verify(list(key), list(answer), timeout_seconds=None, raise_on_error=True):
        return _same_size(_side(first, second), _side(second, first))
    return _same_function(_side(first, second), _side(second, first))


def _is_consistent(key: sp.Basic, answer: sp.Basic) -> bool:
    """Return False for an equation between numbers that is false, such as 6 = 5, unless the key is a relation too."""
    if isinstance(key, Relational) or not isinstance(answer, sp.Eq):
        return True
    sides = answer.lhs, answer.rhs
    if not all(isinstance(side, sp.Expr) and not side.free_symbols for side in sides):
        return True
    return _same_size(*sides)


def _side(node: sp.Basic, other: sp.Basic) -> sp.Basic:
    """Return the right side of an equation that is compared with an expression, as x = 5 with 5."""
    return node.rhs if isinstance(node, sp.Eq) and not isinstance(other, Relational) else node


# ---- sizes ----------------------------------------------------------------------------------------------------------


def _same_size(first: sp.Basic, second: sp.Basic) -> bool:
    """Compare the numbers in two equal things with 30 digits; what holds no numbers to compare counts as equal."""
    if isinstance(first, Relational) and isinstance(second, Relational) and type(first) is type(second):
        return not _alike(first, second) or _same_size(first.rhs, second.rhs)
    if not (isinstance(first, sp.Expr) and isinstance(second, sp.Expr)):
        return _same_parts(_parts(first), _parts(second))
    if first.free_symbols or second.free_symbols:
        return True
    tolerance = _ROUNDED if first.has(sp.Float) or second.has(sp.Float) else _EXACT
    left, right = _evaluated(first), _evaluated(second)
    if left is None or right is None:
        return True
    factors = (1, 100, sp.Rational(1, 100)) if first.has(sp.UnevaluatedExpr) or second.has(sp.UnevaluatedExpr) else (1,)
    return any(abs(left - right * factor) <= tolerance * max(abs(left), abs(right * factor)) for factor in factors)


def _alike(first: Relational, second: Relational) -> bool:
    return not any(side.free_symbols for side in (first.rhs, second.rhs)) and first.lhs == second.lhs


def _parts(node: sp.Basic) -> list[sp.Basic]:
    if isinstance(node, sp.MatrixBase):
        return list(node.flat())
    if isinstance(node, sp.FiniteSet):
        values = [(value, part) for part in node.args if (value := _evaluated(part)) is not None and value.is_real]
        return [part for _, part in sorted(values, key=lambda pair: pair[0])] if len(values) == len(node.args) else []
    return list(node.args) if isinstance(node, sp.Tuple | sp.Interval) else []


def _same_parts(first: Sequence[sp.Basic], second: Sequence[sp.Basic]) -> bool:
    if len(first) != len(second):
        return True
    return all(
        _same_size(*pair) for pair in zip(first, second, strict=True) if all(isinstance(x, sp.Expr) for x in pair)
    )


def _evaluated(node: sp.Basic) -> sp.Expr | None:
    """Return a finite number with 30 digits, exactly 0 where it cannot be told from 0; None: it is no number."""
    if not isinstance(node, sp.Expr) or node.free_symbols:
        return None
    value = node.doit().evalf(_DIGITS, maxn=400)
    if value.is_number is not True or value.is_finite is not True or not (value.is_Number or value.is_complex):
        return None
    return sp.Integer(0) if getattr(value, "_prec", 2) == 1 else value


# ---- regions --------------------------------------------------------------------------------------------------------


def _as_region(node: sp.Basic) -> sp.Set | None:
    """Return the set that an inequality in one unknown describes, or that a set is; None: it is something else."""
    if isinstance(node, sp.Interval | sp.Union | sp.Complement):
        return cast(sp.Set, node.xreplace(_rationals(node)))
    if isinstance(node, sp.Eq) and isinstance(node.lhs, sp.Symbol) and isinstance(node.rhs, sp.Set):
        return _as_region(node.rhs)  # x in [1, 2]
    if (
        isinstance(node, sp.FiniteSet)
        and node.args
        and all(isinstance(part, sp.logic.boolalg.Boolean) for part in node.args)
    ):
        return _solved(sp.Or(*node.args))
    if isinstance(node, Relational) and not isinstance(node, sp.Eq):
        return _solved(node)
    return _solved(node) if isinstance(node, sp.And | sp.Or) and not node.has(sp.Eq) else None


def _solved(condition: sp.Basic) -> sp.Set | None:
    if len(condition.free_symbols) != 1:
        return None
    real = sp.Symbol("t", real=True)
    (symbol,) = condition.free_symbols
    return cast(sp.Set, condition.xreplace({**_rationals(condition), symbol: real}).as_set())


def _rationals(node: sp.Basic) -> dict[sp.Float, sp.Rational]:
    """Return the decimals of an expression as they are written, as fractions."""
    return {number: sp.Rational(str(number)) for number in node.atoms(sp.Float)}


def _same_region(first: sp.Set, second: sp.Set) -> bool:
    first, second = first.doit(), second.doit()
    if first == second:
        return True
    if first.has(sp.Complement):
        first = first.intersect(sp.S.Reals)
    if second.has(sp.Complement):
        second = second.intersect(sp.S.Reals)
    if first.is_subset(second) is True and second.is_subset(first) is True:
        return True
    if not (isinstance(first, sp.Interval) and isinstance(second, sp.Interval)):
        return False
    is_open_alike = (first.left_open, first.right_open) == (second.left_open, second.right_open)
    return is_open_alike and all(
        one == other or sp.simplify(one - other) == 0
        for one, other in ((first.start, second.start), (first.end, second.end))
    )


# ---- functions ------------------------------------------------------------------------------------------------------


def _same_function(first: sp.Basic, second: sp.Basic) -> bool:
    """Tell whether two expressions with roots or logarithms of unknowns agree at real points where both are real.

    math-verify simplifies over the complex numbers, where sqrt(1/n) and 1/sqrt(n) differ.
    """
    if not (isinstance(first, sp.Expr) and isinstance(second, sp.Expr)):
        return False
    symbols = sorted(first.free_symbols, key=str)
    if not symbols or set(symbols) != second.free_symbols or len(symbols) > 4 or sp.Symbol("i") in symbols:
        return False
    if not any(_branches(node) for node in (first, second)):
        return False
    draws, num_agreed = random.Random(0), 0
    for number in range(4 * NUM_POINTS):
        low = 0.1 if number < 2 * NUM_POINTS else -4.0
        point = {symbol: sp.Rational(draws.uniform(low, 4.0)).limit_denominator(97) for symbol in symbols}
        left, right = (_evaluated(node.subs(point)) for node in (first, second))
        is_real = left is not None and left.is_real is True, right is not None and right.is_real is True
        if is_real[0] != is_real[1] and len(symbols) == 1:
            return False  # of several unknowns, as in sqrt(x y), where both are real is enough
        if left is None or right is None or not all(is_real) or not _is_real_inside(first, second, at=point):
            continue
        if abs(left - right) > sp.Float("1e-20") * max(1, abs(left), abs(right)):
            return False
        num_agreed += 1
    return num_agreed >= NUM_POINTS


def _is_real_inside(*nodes: sp.Expr, at: dict[sp.Symbol, sp.Rational]) -> bool:
    """Return True if every root and logarithm of some expressions is real at a point."""
    inner = {part.subs(at) for node in nodes for part in (*node.atoms(sp.Pow), *node.atoms(sp.log))}
    return all((value := _evaluated(part)) is not None and value.is_real for part in inner)


def _branches(node: sp.Expr) -> bool:
    roots = (power for power in node.atoms(sp.Pow) if power.exp.is_Integer is not True)
    return any(part.free_symbols for part in (*roots, *node.atoms(sp.log), *node.atoms(sp.Abs)))


# ---- forms ----------------------------------------------------------------------------------------------------------


def is_said_again(answer: Parsed, key: Parsed, question: Sequence[Parsed]) -> bool:
    """Tell whether an answer is an expression of the question, save the order of terms, and the key is not.

    Only formulas count: a number, a name, a tuple or a set that stands in a question may be its answer.
    """
    form = _form(answer[0])
    if form is None or form == _form(key[0]):
        return False
    forms = {_form(item[0]) for item in question if item and not isinstance(item[0], str)}
    return form in forms and _form(key[0]) not in forms


def _form(node: Any) -> str | None:  # Any: as math-verify reads it
    """Return an expression as it is written, with terms and factors in one order; None: it is no formula."""
    if isinstance(node, sp.Eq):
        node = node.rhs
    if not isinstance(node, sp.Expr) or not node.args or node.is_Rational:
        return None
    if not node.free_symbols and not node.has(sp.log, sp.Pow, sp.exp):
        return None
    return _written(node)


def _written(node: sp.Basic) -> str:
    if not node.args:
        return str(node)
    parts = [_written(part) for part in _operands(node)]
    if isinstance(node, sp.Add | sp.Mul):
        parts.sort()
    return f"{type(node).__name__}({', '.join(parts)})"


def _operands(node: sp.Basic) -> list[sp.Basic]:
    """Return the operands, those of nested sums and products in one list."""
    if not isinstance(node, sp.Add | sp.Mul):
        return list(node.args)
    nested = type(node)
    return [inner for part in node.args for inner in (_operands(part) if isinstance(part, nested) else [part])]
