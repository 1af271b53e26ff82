"""Pattern: the whole answer must have the form."""

import pytest

from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.verifiers import Pattern, wrong

TASK = Task(id="t", prompt="", payload={}, split=Split.TRAIN)


def test_the_whole_answer_must_match() -> None:
    verifier = Pattern(pattern=r"<answer>[0-9]+</answer>")
    assert verifier(" <answer>42</answer>\n", TASK).score == 1.0
    assert verifier("so <answer>42</answer>", TASK).score == 0.0
    assert verifier("", TASK).score == 0.0


def test_the_dot_matches_line_breaks() -> None:
    assert Pattern(pattern="a.b")("a\nb", TASK).score == 1.0


def test_a_longer_answer_than_allowed_scores_zero() -> None:
    assert Pattern(pattern="a*", max_chars=3)("aaaa", TASK).score == 0.0


def test_a_pattern_that_does_not_compile_is_refused() -> None:
    with pytest.raises(InvalidInput, match="pattern must be a regular expression"):
        Pattern(pattern="(")


def test_an_answer_that_makes_a_pattern_run_for_ever_scores_0() -> None:
    verifier = Pattern(pattern="(a+)+b")
    assert verifier("a" * 60, TASK) == wrong("matching the answer took more than 1 s")  # 2^60 ways to part 60 letters
    assert verifier("a" * 60 + "b", TASK).score == 1.0
    assert Pattern(pattern=r"-?\d+", cpu_s=None)("-7", TASK).score == 1.0
