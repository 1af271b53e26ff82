"""Numeric: how numbers are written, tolerances, and answers that are no one number."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.verifiers import Numeric, Take
from envgym.verifiers.numbers import one_number, read_numbers


def score(answer: str, key: JsonValue, verifier: Numeric | None = None) -> float:
    return (verifier or Numeric())(answer, Task(id="t", prompt="", payload={"answer": key}, split=Split.TRAIN)).score


@pytest.mark.parametrize(
    "answer, key",
    [
        ("42", 42), ("42.0", "42"), ("$1,234.50", 1234.5), ("-$3", -3), ("$-3", -3), ("\u22123", -3), ("x = -5", -5),
        ("x = - 5", -5), ("The answer is 42.", 42), (r"\boxed{42}", 42), ("#### 1,000", 1000), ("3/4", 0.75),
        ("2 1/2", 2.5), (r"$\frac{3}{4}$", "3/4"), (r"2\frac{1}{2}", 2.5), (r"-\frac{1}{2}", "-1/2"),
        (r"x = -2\frac{1}{2}", -2.5), ("1.5e-3", 0.0015), ("1.5 x 10^3", 1500),
        (r"1.5 \times 10^{3}", 1500), ("50%", 50), ("50 \\%", 50), ("5 km/h", 5), (r"5\text{ km}", 5),
        (r"1{,}234", 1234), (r"30^\circ", 30), ("**42**", 42), ("42 (42)", 42), ("42! I am sure: 42", 42),
        ("0.3", 0.1 + 0.2), ("1/3", 1 / 3), ("\u7b54\u6848\u662f42", 42), ("- 5", -5),
    ],
)  # fmt: skip
def test_a_number_is_read_however_it_is_written(answer: str, key: JsonValue) -> None:
    assert score(answer, key) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "", "nan", "NaN", "inf", "-inf", "forty-two", "41", "42.0001", "4 2", "1 2 3 42", "42, 43", "41 or 42", "42-0",
        "6*7", "21+21", "42^1", "42**1", "10^10^10", "1e400", "1e999999999", "0x2A", "x42", "42.0.0",
        r"\sqrt{42}", "f(42)", "42/0", "84/2/1", "\u0664\u0662", "\uff14\uff12", "4\u00b2", "42\u00bd", "\u06f4\u06f2",
        "9" * 5000, "<answer>41</answer><answer>42</answer>",
        r"\boxed{42} \boxed{43}", "42 " * 10_000, "a" * 200_000 + " 42",
    ],
)  # fmt: skip
def test_an_answer_that_is_not_one_number_equal_to_the_key_scores_zero(answer: str) -> None:
    assert score(answer, 42) == 0.0


def test_all_candidates_at_once_score_zero_for_every_key() -> None:
    candidates = " ".join(str(n) for n in range(100))
    assert [score(candidates, key) for key in range(100)] == [0.0] * 100
    boxes = " ".join(f"\\boxed{{{n}}}" for n in range(100))
    assert [score(boxes, key) for key in range(100)] == [0.0] * 100


def test_take_last_looks_at_the_last_number_alone() -> None:
    last = Numeric(take=Take.LAST)
    assert score("2 apples and 3 apples: 2 + 3 = 5", 5, last) == 1.0
    assert score("5 because 2 and 3", 5, last) == 0.0
    assert score("it is 2 + 3", 3, last) == 0.0  # an operand is no answer


@pytest.mark.parametrize(
    "answer, expected",
    [("100", 1.0), ("105", 1.0), ("95", 1.0), ("105.01", 0.0), ("94.99", 0.0)],
)
def test_tolerances_are_inclusive(answer: str, expected: float) -> None:
    assert score(answer, 100, Numeric(abs_tol=5)) == expected
    assert score(answer, 100, Numeric(rel_tol=0.0625, abs_tol=1)) == (1.0 if abs(float(answer) - 100) <= 6.25 else 0.0)


def test_whole_keys_are_compared_exactly_however_large() -> None:
    assert score("12345678901234567890", 12345678901234567890) == 1.0
    assert score("12345678901234567891", 12345678901234567890) == 0.0  # equal as floats
    assert score("1e399", "1" + "0" * 399) == 1.0


def test_a_percentage_is_a_unit_or_a_hundredth() -> None:
    assert score("50%", 0.5, Numeric(percent_is_hundredth=True)) == 1.0
    assert score("0.5", 0.5, Numeric(percent_is_hundredth=True)) == 1.0
    assert score("50%", 50, Numeric(percent_is_hundredth=True)) == 0.0
    assert score("50%", 0.5) == 0.0


def test_units_may_be_required() -> None:
    metres = Numeric(units=("m", "metres"))
    assert [score(f"5{unit}", 5, metres) for unit in ("", " m", " Metres", " km", r"\text{ m}")] == [1, 1, 1, 0, 1]


@pytest.mark.parametrize("key", ["nan", "inf", "", "many", True, None, "1 2", float("inf")])
def test_a_key_that_is_no_number_is_an_error(key: JsonValue) -> None:
    with pytest.raises(InvalidInput, match="hold one finite number"):
        score("1", key)


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_that_is_none_is_refused(tolerance: float) -> None:
    with pytest.raises(InvalidInput, match="abs_tol must be at least 0"):
        Numeric(abs_tol=tolerance)


@given(st.fractions(max_denominator=10**6), st.booleans())
def test_a_written_fraction_is_read_back_exactly(value: Fraction, dollars: bool) -> None:
    text = f"{value.numerator}/{value.denominator}" if value.denominator > 1 else f"{value.numerator:,}"
    assert one_number(f"${text}$" if dollars else text) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_a_written_decimal_is_read_back_exactly(value: object) -> None:
    assert one_number(str(value)) == Fraction(str(value))
    assert one_number(f"{value:,}") == Fraction(str(value))


@given(st.text(st.sampled_from("0123456789 .,/-+*^eE$%x(){}\\fracsqt\n")))
def test_any_text_is_read(text: str) -> None:
    for number in read_numbers(text):
        assert (number.value is None) == bool(number.problem)


@pytest.mark.parametrize(
    "unit", ["1,111", "1.1", "1 ", "1/", "1e", "-", "$", "\\frac{1}{", "9", "1x", "x 10^", "1 1/1", "{,}"]
)
@pytest.mark.timeout(30)  # it takes a second; were it quadratic, minutes
def test_a_long_text_is_read_without_going_back_and_forth(unit: str) -> None:
    found = read_numbers((unit * 100_000)[:100_000] + "x1")
    assert len(found) <= 100_001
