"""The best of all assignments of a few Boolean variables, by truth tables that are whole numbers.

Bit `a` of a table is the function's value where variable `i` is bit `i` of `a`, so one operation on two numbers handles
all assignments at once.
"""

from collections.abc import Iterable


def variable_tables(num: int) -> list[int]:
    """Return the truth table of each of `num` variables."""
    full = every_assignment(num)
    return [full // ((1 << (2 << index)) - 1) * (((1 << (1 << index)) - 1) << (1 << index)) for index in range(num)]


def every_assignment(num: int) -> int:
    """Return the table of what is always true."""
    return (1 << (1 << num)) - 1


def best_assignment(num: int, terms: Iterable[tuple[int, int]]) -> int:
    """Return an assignment with the highest sum of the weights of terms (weight, table) that are true in it.

    The sums of all assignments are kept as binary numbers, `digits[k]` the table of their k-th digits.
    """
    digits: list[int] = []
    for weight, table in terms:
        for start in range(weight.bit_length()):
            carry, place = table if weight >> start & 1 else 0, start
            while carry:
                digits += [0] * (place + 1 - len(digits))
                digits[place], carry, place = digits[place] ^ carry, digits[place] & carry, place + 1
    best = every_assignment(num)
    for digit in reversed(digits):
        best = best & digit or best
    return (best & -best).bit_length() - 1
