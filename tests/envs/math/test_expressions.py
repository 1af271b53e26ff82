"""Expressions: written as read, one form for all orders, harder by level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.envs.math._calculator import calculate, show
from envgym.envs.math._expressions import (
    Expression,
    Operation,
    canonical,
    draw_expression,
    draw_number,
    evaluate,
    num_operations,
    solution_steps,
    write,
)

EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(
    st.integers(1, 99), lambda part: st.builds(Operation, st.sampled_from("+-*/"), part, part), max_leaves=8
)


@pytest.mark.parametrize(
    "expression, written, canon",
    [
        (Operation("-", Operation("*", 47, 6), 58), "47 * 6 - 58", "47*6-58"),
        (Operation("*", 6, Operation("+", 20, 3)), "6 * (20 + 3)", "(20+3)*6"),
        (Operation("-", 9, Operation("-", 4, 2)), "9 - (4 - 2)", "2+9-4"),
        (Operation("/", 9, Operation("/", 6, 2)), "9 / (6 / 2)", "2*9/6"),
        (Operation("+", 1, Operation("+", 2, 3)), "1 + 2 + 3", "1+2+3"),
        (7, "7", "7"),
    ],
)
def test_hand_cases(expression: Expression, written: str, canon: str) -> None:
    assert (write(expression), canonical(expression)) == (written, canon)


@given(EXPRESSIONS)
def test_both_forms_have_the_value_of_the_expression(expression: Expression) -> None:
    try:
        value = show(evaluate(expression))
    except ZeroDivisionError:
        return
    assert calculate(write(expression)) == value
    assert calculate(canonical(expression)) == value


@given(EXPRESSIONS)
def test_order_of_sums_and_products_does_not_change_the_canonical_form(expression: Expression) -> None:
    def swapped(part: Expression) -> Expression:
        if isinstance(part, int):
            return part
        left, right = swapped(part.left), swapped(part.right)
        return Operation(part.op, right, left) if part.op in "+*" else Operation(part.op, left, right)

    assert canonical(swapped(expression)) == canonical(expression)


def test_different_problems_have_different_canonical_forms() -> None:
    # 9 - 4 - 2, 9 - (4 - 2) and 9 + 2 - 4: the last two are one problem.
    assert canonical(Operation("-", Operation("-", 9, 4), 2)) == "9-2-4"
    assert canonical(Operation("-", 9, Operation("-", 4, 2))) == canonical(Operation("-", Operation("+", 9, 2), 4))


@pytest.mark.parametrize("level", range(1, 6))
def test_level_is_the_number_of_operations_and_pairs_of_parentheses_grow(level: int) -> None:
    rng = np.random.default_rng(level)
    drawn = [draw_expression(rng, level, 2) for _ in range(200)]
    pairs = {write(expression).count("(") for expression in drawn}
    assert {num_operations(expression) for expression in drawn} == {level}
    assert pairs == {0} if level <= 2 else min(pairs) >= (2 if level == 5 else 1)
    assert all(value > 0 and value.denominator == 1 for value in map(evaluate, drawn))
    assert len({canonical(expression) for expression in drawn}) > 150


@pytest.mark.parametrize("digits", range(1, 7))
def test_operands_have_the_digits_asked_for(digits: int) -> None:
    rng = np.random.default_rng(0)
    numbers = [draw_number(rng, digits) for _ in range(100)]
    assert {len(str(number)) for number in numbers} == {digits}
    assert min(numbers) >= 2


def test_steps_of_a_solution_do_not_tell_the_value() -> None:
    expression = Operation("-", Operation("*", Operation("+", 2, 5), 3), 4)  # (2 + 5) * 3 - 4 = 17
    assert solution_steps(expression) == ["2 + 5 = 7", "7 * 3 = 21", "21 - 4 = ?"]
    assert solution_steps(Operation("/", 12, 4)) == ["12 / 4 = ?"]
    assert solution_steps(7) == []
