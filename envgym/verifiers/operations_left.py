"""Count the operations that an expression leaves to be done, on the tree that math-verify reads: it computes nothing.

A value leaves none: a number (integer, decimal, fraction, percentage, 3 * 10^5), a constant, a root or logarithm that
is no rational number, a multiple or quotient of these, a sum of different kinds of them, and a tuple, set, interval or
matrix of values. So 2 sqrt(3), sqrt(12), 3 pi/4 and 1 + sqrt(2) are values; 1 + 2, sqrt(9), 2^3 and pi + pi are not.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import sympy as sp

_CONTAINERS = (sp.Tuple, sp.FiniteSet, sp.Interval, sp.MatrixBase, sp.UnevaluatedExpr)  # the last holds the % of 5 %
_IMAGINARY_UNIT = "i"


def operations_left_beyond(answer: sp.Basic, key: sp.Basic) -> int:
    """Return how many more operations an answer leaves than the key; beside a value each unknown counts as one."""
    unknown = int(_is_constant(key))
    return max(0, operations_left(answer, unknown) - operations_left(key, unknown))


def operations_left(node: sp.Basic, unknown: int) -> int:
    """Count the operations on constants; an unknown adds `unknown`, except in a relation about it (x = 3, 1 < x)."""
    if isinstance(node, sp.core.relational.Relational) and any(isinstance(side, sp.Symbol) for side in node.args):
        return sum(operations_left(side, unknown) for side in node.args if not isinstance(side, sp.Symbol))
    if isinstance(node, sp.log) and isinstance(node.args[0], sp.Abs):
        inside, *base = node.args
        return operations_left(sp.log(inside.args[0], *base, evaluate=False), unknown)  # integrals: ln |x|
    parts = node.flat() if isinstance(node, sp.MatrixBase) else node.args
    if not parts:
        return 0 if _is_constant(node) else unknown
    return sum(operations_left(part, unknown) for part in parts) + _left_at(node)


def _left_at(node: sp.Basic) -> int:
    """Count the operations on constants that a node itself leaves."""
    if isinstance(node, _CONTAINERS):
        return 0
    if isinstance(node, sp.MatrixExpr):
        return 1
    if isinstance(node, sp.Add):
        terms = list(filter(_is_constant, node.args))
        return _num_repeated([_kind_of(term) for term in terms]) + terms.count(0)
    if isinstance(node, sp.Mul):
        return _left_in_product(list(filter(_is_constant, _factors_of(node))))
    if not _is_constant(node):
        return 0
    if isinstance(node, sp.Pow):
        return int(_is_left(node))
    return int(node.doit().is_Rational) if isinstance(node, sp.exp | sp.log) else 1


def _is_constant(node: sp.Basic) -> bool:
    """True where there is no unknown in an expression; the imaginary unit is none."""
    return all(str(symbol) == _IMAGINARY_UNIT for symbol in node.free_symbols)


def _factors_of(node: sp.Basic) -> Iterator[sp.Basic]:
    """Yield the factors of nested products, without signs."""
    for factor in node.args:
        if isinstance(factor, sp.Mul):
            yield from _factors_of(factor)
        elif factor != -1:
            yield factor


def _left_in_product(factors: Sequence[sp.Basic]) -> int:
    """Count the products by 1, of two numbers, two divisors, two roots, two sums or twice the same."""
    numbers = [factor for factor in factors if _is_number(factor)]
    powers = [factor for factor in factors if isinstance(factor, sp.Pow)]
    divisors = [power for power in powers if _is_rational_power(power)]
    if len(factors) == 2 and len(numbers) == len(divisors) == 1 and divisors[0].base == 10:
        return -_is_left(divisors[0])  # 3 * 10^5 is written so
    roots = [power for power in powers if _is_root(power) or _is_root(power.base)]
    sums = [factor for factor in factors if isinstance(factor, sp.Add)]
    has_fraction_over = bool(divisors) and any(number.is_Integer is False for number in numbers)
    is_times_1 = 1 in numbers and all(power.exp != -1 for power in powers)
    others = [factor for factor in factors if factor not in numbers]
    pairs = sum(max(0, len(kind) - 1) for kind in (numbers, divisors, roots, sums))
    return pairs + has_fraction_over + is_times_1 + _num_repeated(others)


def _is_left(power: sp.Pow) -> bool:
    """True where a power can be worked out: 2^3, sqrt(9), i^2, (1 + sqrt(2))^2, but not 1/4, sqrt(3) or pi^2."""
    if isinstance(power.base, sp.MatrixBase):
        return True
    if not power.exp.is_Integer:
        return bool(power.doit().is_Rational)
    return power.exp != -1 and not isinstance(power.base, sp.NumberSymbol)


def _is_number(node: sp.Basic) -> bool:
    return isinstance(node, sp.Rational | sp.Float)


def _is_rational_power(node: sp.Pow) -> bool:
    return _is_number(node.base) and bool(node.exp.is_Integer)


def _is_root(node: sp.Basic) -> bool:
    return isinstance(node, sp.Pow) and isinstance(node.exp, sp.Rational) and not node.exp.is_Integer


def _kind_of(term: sp.Basic) -> Hashable:
    """Return the common part of terms that can be added: the factors that are not rational."""
    factors = list(_factors_of(term)) if isinstance(term, sp.Mul) else [term]
    rational = [f for f in factors if _is_number(f) or (isinstance(f, sp.Pow) and _is_rational_power(f))]
    return frozenset(Counter(f for f in factors if f not in rational).items())


def _num_repeated(items: Sequence[Hashable]) -> int:
    return len(items) - len(set(items))
