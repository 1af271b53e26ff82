"""Pattern: the whole answer must have the form."""

import pytest

from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.verifiers import Pattern

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
