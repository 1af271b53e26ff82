"""Extraction: where an answer stands, and that two different answers are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.verifiers.extract import Extractor, Tagged, after_hashes, boxed, final, last_line, whole_answer

ALL: list[Extractor] = [whole_answer, last_line, boxed, Tagged(), after_hashes, final]


@pytest.mark.parametrize(
    "extract, text, answer",
    [
        (whole_answer, "  42\n", "42"),
        (last_line, "first\nsecond\n\n", "second"),
        (boxed, r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (boxed, r"\boxed{a \} b}", r"a \} b"),
        (boxed, r"\fbox{7} and again \boxed{ 7 }", "7"),
        (boxed, r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (Tagged(), "<answer> 42 </answer>", "42"),
        (Tagged(), "I write <answer> as told: <answer>42</answer>", "42"),
        (Tagged("x"), "<x>1</x><answer>2</answer>", "1"),
        (after_hashes, "6*7\n#### 42", "42"),
        (final, "all of it", "all of it"),
        (final, "no, not 3\n#### 4", "4"),
        (final, r"<answer>4</answer> \boxed{4}", "4"),
    ],
)
def test_the_answer_is_found(extract: Extractor, text: str, answer: str) -> None:
    assert extract(text).answer == answer


@pytest.mark.parametrize(
    "extract, text, reason",
    [
        (whole_answer, " \n", "the answer is empty"),
        (boxed, "42", r"there is no \boxed{...}"),
        (boxed, r"\boxed{42", r"there is no \boxed{...}"),
        (boxed, r"\boxed{ }", r"the \boxed{...} is empty"),
        (boxed, r"\boxed{1} \boxed{2}", "there are 2 different answers: '1', '2'"),
        (Tagged(), "<answer>1</answer><answer>2</answer>", "there are 2 different answers: '1', '2'"),
        (Tagged(), "<answer>1", "there is no <answer>...</answer>"),
        (after_hashes, "#### 1\n#### 2", "there are 2 different answers: '1', '2'"),
        (final, r"<answer>4</answer> \boxed{5}", "there are 2 different answers: '5', '4'"),
    ],
)
def test_no_answer_or_several_is_none_with_the_reason(extract: Extractor, text: str, reason: str) -> None:
    found = extract(text)
    assert (found.answer, found.reason) == (None, reason)


@given(st.text(), st.text())
def test_any_text_is_read_and_two_different_marked_answers_are_none(first: str, second: str) -> None:
    for extract in ALL:
        found = extract(first)
        assert (found.answer is None) == bool(found.reason)
    pair = Tagged()(f"<answer>{first}</answer> or <answer>{second}</answer>")
    if not {"<", ">"} & {*first, *second} and first.split() != second.split():
        assert pair.answer is None


@pytest.mark.parametrize("unit", ["\\boxed{", "{", "}", "<answer>", "</answer>", "####", "####\n", " ", "\\boxed{1}"])
@pytest.mark.parametrize("extract", ALL)
@pytest.mark.timeout(30)  # were it quadratic, it would take minutes
def test_a_long_text_is_read_without_going_back_and_forth(extract: Extractor, unit: str) -> None:
    found = extract((unit * 200_000)[:200_000])
    assert found.answer is None or len(found.answer) <= 200_000
