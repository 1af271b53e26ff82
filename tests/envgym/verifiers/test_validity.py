"""Whether a verifier can judge depends on the task alone: any answer is scored, or none is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym import Message, Role, Split, Task
from envgym.conformance.agents import HOSTILE_TEXTS
from envgym.envs.math._judging import WorkedOut
from envgym.envs.search._grading import FactbookMatch
from envgym.envs.search.qa import WordMatch
from envgym.errors import EnvgymError
from envgym.parsing import parse_action
from envgym.party import ScriptedParty
from envgym.verifiers import (
    F1,
    Exact,
    GenerativeVerifier,
    JsonSchema,
    LlmJudge,
    Math,
    MultipleChoice,
    Noisy,
    Numeric,
    Pattern,
    Take,
    ToolCallMatch,
)
from envgym.verifiers.base import Verifier
from envgym.verifiers.extract import final


class Agreeing:
    def reply(self, messages: Any) -> Message:
        return Message(role=Role.ASSISTANT, content="Score: 1")

    def sample(self, messages: Any, *, seed: int) -> Message:
        return Message(role=Role.ASSISTANT, content="It is right.")

    def compute_probabilities(self, messages: Any, texts: Any) -> list[float]:
        return [0.9, 0.1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    verifier: Verifier
    payload: Mapping[str, Any]
    right: str = "5"

    @property
    def task(self) -> Task:
        return Task(id="t", prompt="What is $x+1$?", payload=self.payload, split=Split.TRAIN)


TREE = {
    "$defs": {"n": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}},
    "$ref": "#/$defs/n",
}
CALLS = [{"name": "look_up", "arguments": {"year": 2019, "of": ["a", {"b": 1.5}]}}]
RIGHT_CALL = '<tool_call>{"name": "look_up", "arguments": {"year": 2019, "of": ["a", {"b": 1.5}]}}</tool_call>'
READABLE: dict[str, Case] = {
    "Exact": Case(verifier=Exact(ignore_case=True, ignore_punctuation=True), payload={"answer": ["five", "5"]}),
    "Exact final": Case(verifier=Exact(extract=final, take=Take.LAST), payload={"answer": "five"}, right="five"),
    "F1": Case(verifier=F1(), payload={"answer": "the five"}, right="the five"),
    "F1 article": Case(verifier=F1(extract=final), payload={"answer": "A"}, right="A"),
    "Numeric": Case(verifier=Numeric(), payload={"answer": 5}),
    "Numeric tolerant": Case(
        verifier=Numeric(rel_tol=0.1, percent_is_hundredth=True, units=("m",)),
        payload={"answer": "2.5e3"},
        right="2500",
    ),
    "MultipleChoice": Case(verifier=MultipleChoice(), payload={"answer": "B", "options": ["A dog", "5"]}, right="B"),
    "Math number": Case(verifier=Math(cpu_s=2), payload={"answer": "5"}),
    "Math formula": Case(
        verifier=Math(cpu_s=2, take=Take.LAST), payload={"answer": "\\sqrt{x} + 1"}, right="\\sqrt{x} + 1"
    ),
    "Math word": Case(verifier=Math(), payload={"answer": "\\text{Evelyn}"}, right="Evelyn"),
    "Math interval": Case(verifier=Math(cpu_s=2), payload={"answer": "(-\\infty, 3]"}, right="(-\\infty, 3]"),
    "WorkedOut number": Case(
        verifier=WorkedOut(math=Math(cpu_s=2, worked_out=True)), payload={"answer": "62.5\\%"}, right="62.5\\%"
    ),
    "WorkedOut formula": Case(
        verifier=WorkedOut(math=Math(cpu_s=2, worked_out=True)), payload={"answer": "x^2+1"}, right="x^2+1"
    ),
    "WorkedOut base": Case(verifier=WorkedOut(math=Math(worked_out=True)), payload={"answer": "52_8"}, right="52_8"),
    "WordMatch": Case(verifier=WordMatch(), payload={"answers": ["five"]}, right="five"),
    "Factbook number": Case(verifier=FactbookMatch(), payload={"accepted": [], "answer": 5, "kind": "fact"}),
    "Factbook name": Case(
        verifier=FactbookMatch(text_score="f1"),
        payload={"accepted": ["five"], "answer": "five", "kind": "x"},
        right="five",
    ),
    "Pattern": Case(verifier=Pattern(pattern=r"(a|a)+b|5"), payload={}),
    "Pattern here": Case(verifier=Pattern(pattern=r"\d+", cpu_s=None), payload={}),
    "JsonSchema": Case(verifier=JsonSchema(), payload={"schema": {"type": "number", "multipleOf": 0.1, "minimum": 0}}),
    "JsonSchema tree": Case(verifier=JsonSchema(), payload={"schema": TREE}),
    "JsonSchema costly": Case(verifier=JsonSchema(schema={"uniqueItems": True, "pattern": "^(a+)+$"}), payload={}),
    "ToolCallMatch": Case(verifier=ToolCallMatch(), payload={"answer": CALLS}, right=RIGHT_CALL),
    "ToolCallMatch none": Case(verifier=ToolCallMatch(), payload={"answer": []}),
    "LlmJudge": Case(
        verifier=LlmJudge(judge=ScriptedParty(lambda messages, draws: "Score: 1")), payload={"answer": "5"}
    ),
    "GenerativeVerifier": Case(
        verifier=GenerativeVerifier(judge=Agreeing(), num_rationales=1), payload={"answer": "5"}
    ),
    "Noisy": Case(verifier=Noisy(verifier=Numeric()), payload={"answer": "5"}),
}
UNREADABLE: dict[str, Case] = {
    "Exact": Case(verifier=Exact(), payload={"answer": None}),
    "F1": Case(verifier=F1(), payload={"answer": []}),
    "Numeric": Case(verifier=Numeric(), payload={"answer": "five or six"}),
    "MultipleChoice": Case(verifier=MultipleChoice(), payload={"answer": "5", "options": ["a", "b"]}),
    "Math": Case(verifier=Math(), payload={"answer": "n \\equiv 1 \\pmod 4"}, right="n \\equiv 1 \\pmod 4"),
    "WorkedOut": Case(
        verifier=WorkedOut(math=Math(worked_out=True)), payload={"answer": "A \\cup B"}, right="A \\cup B"
    ),
    "JsonSchema": Case(
        verifier=JsonSchema(), payload={"schema": {"properties": {"a": {"$ref": "#/b"}}}}, right='{"a": 5}'
    ),
    "ToolCallMatch": Case(verifier=ToolCallMatch(), payload={"answer": "look_up"}),
    "LlmJudge": Case(
        verifier=LlmJudge(judge=ScriptedParty(lambda messages, draws: "Score: 1")), payload={"answer": None}
    ),
    "GenerativeVerifier": Case(verifier=GenerativeVerifier(judge=Agreeing()), payload={}),
    "Noisy": Case(verifier=Noisy(verifier=Numeric()), payload={"answer": "?"}),
}
MARKS: tuple[Callable[[str], str], ...] = (
    str, "\\boxed{{{}}}".format, "<answer>{}</answer>".format, "#### {}".format, '{{"name": "{}"}}'.format,
    "<tool_call>{}</tool_call>".format, "<think>{}</think>".format,
)  # fmt: skip
PIECES = (
    "5", "5.", "-", "1e999", "9" * 401 + ".5", "9" * 398 + ".5", "0/0",
    "1/0", "\\frac{1}{0}", "\\frac", "\\boxed{", "}", "{", "[", "<answer>",
    "NaN", "inf", "\u0664", "\ud800", "\x00", "\\infty", "x^x^x", "!", "%", "\\%", "_8", "52_8", "$", "\\text{", "A",
    "B", "(C)", "the", "null", "true", '{"a": 5}', "[[", "1" + "0" * 400, "\\sqrt", "∞", "½", ":", "6:00", "=",
    "<", "\\cup", "\\\\",
)  # fmt: skip
ANSWERS = st.one_of(
    st.text(max_size=30),
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=6).map(" ".join),
    st.floats().map(str),
    st.integers().map(str),
)


def is_valid(case: Case, answer: str) -> bool:
    """Return whether an answer gets a score in [0, 1]."""
    try:
        verdict = case.verifier(parse_action(answer) if isinstance(case.verifier, ToolCallMatch) else answer, case.task)
    except EnvgymError:
        return False
    assert 0.0 <= verdict.score <= 1.0
    return True


@pytest.mark.parametrize("name", READABLE)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=ANSWERS, mark=st.sampled_from(MARKS))
def test_any_answer_is_scored_where_the_key_can_be_read(name: str, text: str, mark: Callable[[str], str]) -> None:
    assert is_valid(READABLE[name], mark(text))


RUNS = tuple(
    f"{before}{part * 50_000}x" for before in ("", "5", "$5$", "**5**", "```") for part in (" ", "~", "\t", "\n")
)
"""Long runs of white space, over which a pattern with two repetitions in a row takes quadratic time."""


@pytest.mark.parametrize("name", READABLE)
def test_right_wrong_empty_and_hostile_answers_are_scored_and_the_right_one_with_1(name: str) -> None:
    case = READABLE[name]
    assert all(is_valid(case, answer) for answer in ("", " ", "no", "\\boxed{no}", "\\boxed{}", case.right))
    assert case.verifier(case.right, case.task).score > 0.85
    check = getattr(case.verifier, "check_key", None)
    if check is not None:
        check(case.task)
    slowest = 0.0
    for text in (*HOSTILE_TEXTS, *RUNS):
        start = time.process_time()
        assert is_valid(case, text), text[:60]
        slowest = max(slowest, time.process_time() - start)
    assert slowest < 5.0


@pytest.mark.parametrize("name", UNREADABLE)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=ANSWERS, mark=st.sampled_from(MARKS))
def test_no_answer_is_scored_where_the_key_cannot_be_read(name: str, text: str, mark: Callable[[str], str]) -> None:
    case = UNREADABLE[name]
    assert not is_valid(case, mark(text))
    assert not any(is_valid(case, answer) for answer in ("", "no", case.right, f"\\boxed{{{case.right}}}"))
    with pytest.raises(EnvgymError):
        case.verifier.check_key(case.task)  # type: ignore[attr-defined]  # those with keys have it


HOSTILE_PATTERNS: tuple[tuple[Verifier, dict[str, Any], str], ...] = (
    (Pattern(pattern="(a+)+b", cpu_s=1), {}, "a" * 5000),
    (JsonSchema(schema={"pattern": "^(a+)+$"}, cpu_s=1), {}, '"' + "a" * 5000 + '!"'),
    (JsonSchema(schema={"uniqueItems": True}, cpu_s=1), {}, "[" + ",".join(f"[{n}]" for n in range(15000)) + ",{}]"),
    (Math(cpu_s=1), {"answer": "4"}, "(1+x)^{9999}(1-x)^{9999}"),
    (Math(cpu_s=1), {"answer": "\\sqrt{x}"}, "\\sqrt{" * 200 + "x" + "}" * 200),
    (WorkedOut(math=Math(cpu_s=1, worked_out=True)), {"answer": "x+1"}, "\\boxed{" + "((((x+1)^{99})^{99})^{9}" + "}"),
    (Math(cpu_s=1), {"answer": "[1,2]"}, "x^{99}+x^{98}+x+1 < 3"),
)


@pytest.mark.parametrize("verifier, payload, answer", HOSTILE_PATTERNS)
def test_a_hostile_answer_is_wrong_within_the_limit(verifier: Verifier, payload: dict[str, Any], answer: str) -> None:
    task = Task(id="t", prompt="", payload=payload, split=Split.TRAIN)
    verifier("4", task)  # the helper process is started
    assert verifier(answer, task).score == 0.0
