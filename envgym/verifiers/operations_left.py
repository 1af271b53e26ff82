"""Count the operations that an expression leaves to be done, on the tree that math-verify reads: it computes nothing.

A value leaves none: a number (integer, decimal, fraction, percentage, 3 * 10^5), a constant, a root or logarithm that
is no rational number, a multiple or quotient of these, a sum of different kinds of them, and a tuple, set, interval or
matrix of values. So 2 sqrt(3), sqrt(12), 3 pi/4 and 1 + sqrt(2) are values; 1 + 2, sqrt(9), 2^3 and pi + pi are not.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import sympy as sp

_CONTAINERS = (sp.Tuple, sp.FiniteSet, sp.Interval, sp.UnevaluatedExpr)  # the last holds 1/100 for %
_IMAGINARY_UNIT = "i"


def is_value(expression: sp.Basic) -> bool:
    """True where there is no unknown in an expression."""
    return all(map(_is_constant, expression.free_symbols))


def operations_left(node: sp.Basic) -> int:
    """Count the operations; an unknown counts as one, save where it is what a relation is about (x = 3)."""
    if isinstance(node, sp.core.relational.Relational) and isinstance(node.lhs, sp.Symbol):
        return operations_left(node.rhs)
    if isinstance(node, sp.log) and isinstance(node.args[0], sp.Abs):
        inside, *base = node.args
        return operations_left(sp.log(inside.args[0], *base, evaluate=False))  # integrals are written with ln |x|
    if isinstance(node, sp.MatrixBase):
        return sum(map(operations_left, node.flat()))
    below: int = sum(map(operations_left, node.args))
    if not node.args:
        return int(isinstance(node, sp.Symbol) and not _is_constant(node))
    if isinstance(node, _CONTAINERS):
        return below
    if isinstance(node, sp.MatrixExpr):
        return below + 1
    if isinstance(node, sp.Add):
        num_zeros: int = node.args.count(0)
        return below + _num_repeated([_kind_of(term) for term in node.args]) + num_zeros
    if isinstance(node, sp.Mul):
        factors = list(_factors_of(node))
        return 0 if _is_scientific(factors) else below + _left_in_product(factors)
    if isinstance(node, sp.Pow):
        return below + _is_left(node)
    is_left = bool(node.doit().is_Rational) if isinstance(node, sp.exp | sp.log) else True
    return below + is_left


def _is_constant(symbol: sp.Basic) -> bool:
    return str(symbol) == _IMAGINARY_UNIT


def _factors_of(node: sp.Basic) -> Iterator[sp.Basic]:
    """Yield the factors of nested products, without signs."""
    for factor in node.args:
        if isinstance(factor, sp.Mul):
            yield from _factors_of(factor)
        elif factor != -1:
            yield factor


def _is_scientific(factors: Sequence[sp.Basic]) -> bool:
    powers = [factor for factor in factors if isinstance(factor, sp.Pow)]
    return len(factors) == 2 and len(powers) == 1 and powers[0].base == 10 and any(map(_is_number, factors))


def _left_in_product(factors: Sequence[sp.Basic]) -> int:
    """Count the products of two numbers, two divisors, two roots, two sums or twice the same."""
    numbers = [factor for factor in factors if _is_number(factor)]
    others = [factor for factor in factors if not _is_number(factor)]
    divisors = [factor for factor in others if isinstance(factor, sp.Pow) and _is_rational_power(factor)]
    has_fraction = any(number.is_Integer is False for number in numbers)
    roots = sum(_is_root(factor) or (isinstance(factor, sp.Pow) and _is_root(factor.base)) for factor in others)
    sums = sum(isinstance(factor, sp.Add) for factor in others)
    pairs = sum(max(0, count - 1) for count in (len(numbers), len(divisors), roots, sums))
    return pairs + (has_fraction and bool(divisors)) + _num_repeated(others)


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
    """Return what terms have in common that can be added: the factors that are not rational."""
    factors = list(_factors_of(term)) if isinstance(term, sp.Mul) else [term]
    rational = [f for f in factors if _is_number(f) or (isinstance(f, sp.Pow) and _is_rational_power(f))]
    return frozenset(Counter(f for f in factors if f not in rational).items())


def _num_repeated(items: Sequence[Hashable]) -> int:
    return len(items) - len(set(items))
