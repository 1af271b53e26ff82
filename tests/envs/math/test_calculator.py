"""The calculator: exact values, one sentence for everything else."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.envs.math._calculator import MAX_CHARS, MAX_DEPTH, calculate, show
from envgym.errors import ToolError


@pytest.mark.parametrize(
    "text, expected",
    [
        ("47 * 6 - 58", "224"),  # 282 - 58
        ("58 - 47 * 6", "-224"),
        ("(12 + 7) * 3", "57"),
        ("100 - 10 - 1", "89"),  # from the left
        ("100 / 10 / 2", "5"),
        ("2 * -3", "-6"),
        ("--4", "4"),
        ("-(2 + 3) * 2", "-10"),
        ("1 / 8", "0.125"),
        ("-1 / 8", "-0.125"),
        ("0.1 + 0.2", "0.3"),  # not 0.30000000000000004
        ("1.50 * 4", "6"),
        (".5 + 5.", "5.5"),
        ("1 / 3", "1/3"),
        ("2 / 6 * 3", "1"),
        ("6\u00d77 \u2212 2\u00f74", "41.5"),
        ("99999999999 * 99999999999", "9999999999800000000001"),
    ],
)
def test_value_is_exact(text: str, expected: str) -> None:
    assert calculate(text) == expected


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "A number is missing at the end."),
        ("47 +", "A number is missing at the end."),
        ("* 3", "A number is missing before '*'."),
        ("(1 + 2", "A parenthesis is not closed. Add the missing )."),
        ("1 + 2)", "cannot go on with ')'"),
        ("2 (3)", "cannot go on with '('"),
        ("1 / (2 - 2)", "The expression divides by 0."),
        ("2 ^ 3", "cannot read '^ 3'"),
        ("1,000 + 1", "cannot read ',000 + 1'"),
        ("x + 1", "cannot read 'x + 1'"),
        ("__import__('os')", "cannot read"),
        ("\u0663 + 1", "cannot read"),
        ("9" * (MAX_CHARS + 1), f"at most {MAX_CHARS} are read"),
        ("(" * 90 + "1" + ")" * 90, f"nested more than {MAX_DEPTH} deep"),
        ("-" * 150 + "1", f"nested more than {MAX_DEPTH} deep"),
    ],
)
def test_what_is_no_arithmetic_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ToolError) as caught:
        calculate(text)
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


@given(st.text(max_size=60))
def test_any_text_is_answered_with_a_number_or_refused_with_a_sentence(text: str) -> None:
    try:
        said = calculate(text)
    except ToolError as refusal:
        said = str(refusal)
    assert said.endswith(".") or show(Fraction(said)) == said


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_what_is_shown_is_the_value(top: int, bottom: int) -> None:
    value = Fraction(top, bottom)
    assert Fraction(show(value)) == value
    assert Fraction(calculate(f"({top}) / {bottom}")) == value
