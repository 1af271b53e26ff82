"""Extraction: where an answer stands, that a mark inside another is one, and that two different answers are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.verifiers.extract import (
    Extractor,
    Tagged,
    after_hashes,
    boxed,
    final,
    last_line,
    plain_answer,
    whole_answer,
    without_thoughts,
)

ALL: list[Extractor] = [whole_answer, last_line, boxed, Tagged(), after_hashes, final]


@pytest.mark.parametrize(
    "extract, text, answer",
    [
        (whole_answer, "  42\n", "42"),
        (last_line, "first\nsecond\n\n", "second"),
        (boxed, r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (boxed, r"\boxed{a \} b}", r"a \} b"),
        (boxed, r"\fbox{7} and again \boxed{ 7 }", "7"),
        (boxed, r"\boxed{\boxed{3}}", "3"),
        (Tagged(), "<answer> 42 </answer>", "42"),
        (Tagged(), "I write <answer> as told: <answer>42</answer>", "42"),
        (Tagged("x"), "<x>1</x><answer>2</answer>", "1"),
        (after_hashes, "6*7\n#### 42", "42"),
        (final, "all of it", "all of it"),
        (final, "no, not 3\n#### 4", "4"),
        (final, r"<answer>4</answer> \boxed{4}", "4"),
        (final, r"<think>x</think><answer>\boxed{5}</answer>", "5"),
        (final, r"<answer>It is $\boxed{5}$ metres.</answer>", "5"),
        (final, r"\boxed{<answer>5</answer>}", "5"),
        (final, "<answer>\n#### 5\n</answer>", "5"),
        (final, r"#### Final Answer: \boxed{5}", "5"),
        (final, "#### <answer>5</answer>", "5"),
        (Tagged(), r"<answer>\boxed{5}</answer>", "5"),
        (Tagged("x"), r"<answer>1</answer><x>\boxed{\text{2}}</x>", r"\text{2}"),
        (boxed, r"<answer>\fbox{\boxed{ 5 }}</answer>", "5"),
        (final, r"I put it in \boxed{}, or \boxed{...}: \boxed{5}", "5"),
        (final, "The form is <answer></answer>.\n<Answer>5</ANSWER>", "5"),
        (final, r"\boxed{\{1, 2\}} or $\\{x}$", r"\{1, 2\}"),
        (final, "#### Step 1\n6 * 7\n#### Step 2\nso \\boxed{42}", "42"),
        (final, "##### 41\nsome text\n#### 42", "42"),
        (final, "#### 1. Set up\n6 * 7\n#### 42\n", "42"),
        (final, "#### 42\n\nSo she has 42 apples.", "42"),
        (final, "#### Reasoning\n6 * 7\n#### Answer\n\nB\n\n#### Notes\nnone", "B"),
        (final, "### Final Answer\n**42**\n", "**42**"),
        (final, "## **Answer:** 42", "42"),
        (final, "### Answer:\n\n- 42", "### Answer:\n\n- 42"),  # a bullet or a sign
        (final, r"\framebox{42}", "42"),
        (final, "#### Step 1\nAll of it", "#### Step 1\nAll of it"),
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
        (final, r"\boxed{5}. But it should be \boxed{", "the last final answer is cut off"),
        (final, r"\boxed{5", "the last final answer is cut off"),
        (final, r"<answer>5</answer>, or <answer>7", "the last final answer is cut off"),
        (final, r"<answer>5</answer>, or \boxed{7", "the last final answer is cut off"),
        (boxed, r"\boxed{5} \boxed{", r"the last \boxed{...} is cut off"),
        (final, r"\boxed{5} \boxed{}", "the final answer is empty"),
        (final, r"\boxed{" + " " * 40 + "}", "the final answer is empty"),
        (final, r"<answer>\boxed{3}, \boxed{4}</answer>", "there are 2 different answers: '3', '4'"),
        (final, "\\boxed{5}\n#### 7", "there are 2 different answers: '5', '7'"),
        (final, "#### 41\nor\n#### 42", "there are 2 different answers: '41', '42'"),
        (final, r"<answer>4</answer> \boxed{5}", "there are 2 different answers: '4', '5'"),
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
    if not {"<", ">", "."} & {*first, *second} and first.split() and first.split() != second.split():
        assert pair.answer is None


@pytest.mark.parametrize("unit", ["\\boxed{", "{", "}", "<answer>", "</answer>", "####", "####\n", " ", "\\boxed{1}"])
@pytest.mark.parametrize("extract", ALL)
@pytest.mark.timeout(30)  # were it quadratic, it would take minutes
def test_a_long_text_is_read_without_going_back_and_forth(extract: Extractor, unit: str) -> None:
    found = extract((unit * 200_000)[:200_000])
    assert found.answer is None or len(found.answer) <= 200_000


@pytest.mark.parametrize(
    "text, rest",
    [
        ("<think>a</think>b", "b"), ("a</think>b", "b"), ("<think>a", ""), ("x <think>a</think>b", "x b"),
        ("<think>a</think>b<think>c</think>d", "bd"), ("b <think>a", "b "), ("<think></think>b</think>c", "bc"),
        ("<think><think>a</think>b", "b"), ("[THINK]a[/THINK]b", "b"), ("<reasoning>a</reasoning>b", "b"),
        ("<thinking>a</thinking>b", "b"), ("x < y", "x < y"),
    ],
)  # fmt: skip
def test_thoughts_are_no_part_of_an_answer(text: str, rest: str) -> None:
    assert without_thoughts(text) == rest
    assert (whole_answer(text).answer or "") == rest.strip()
    marked = text.replace("a", r"\boxed{1}").replace("b", r"\boxed{2}")
    assert "1" not in final(marked).candidates


@pytest.mark.parametrize(
    "text, answer",
    [
        (r"<answer>UP</answer> \boxed{\text{up}}", "up"), ("**Up  Left**", "up left"), ("`up`.", "up"),
        (r"\boxed{up} \boxed{down}", ""), ("", ""), (r'"up"', "up"), (r"\boxed{\frac12} \boxed{0.5}", r"\frac12"),
        (r"\boxed{1,200} that is <answer>1200</answer>", "1,200"), ("<think>down</think>up", "up"), ("0", "0"),
    ],
)  # fmt: skip
def test_a_plain_answer_has_no_marks_of_type(text: str, answer: str) -> None:
    assert plain_answer(text) == answer
