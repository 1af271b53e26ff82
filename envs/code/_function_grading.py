"""Grades a function against hidden tests that its code never meets; see `_function_guest` for how."""

import json
import re
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envgym.cache import cached_within
from envgym.core.json_types import JsonObject
from envgym.errors import EnvFailure, ToolError, sentence
from envgym.sandbox import Limits, PythonSession, SessionResult

_GUEST_SCRIPT = Path(__file__).with_name("_function_guest.py")
_BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_TRUSTED = Limits(wall_s=60.0, cpu_s=10.0, output=65536)
_CALLS_BYTES = 256 << 20
"""Memory for the calls of problems."""
Data = Any  # decoded JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionProblem:
    """A function to write, and its hidden tests."""

    prompt: str
    """Code up to the function's docstring, with helpers before it."""
    solution: str
    """The reference's body."""
    test: str
    """Code that defines `check(candidate)`."""
    name: str
    """Of the function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionGrade:
    """How a function did."""

    num_passed: int
    num_checks: int
    reason: str = ""
    """What went wrong, in words that tell nothing of the tests; empty where nothing did."""

    @property
    def is_passed(self) -> bool:
        """True where every check holds."""
        return self.num_passed == self.num_checks


def extract_program(text: str, problem: FunctionProblem) -> str | None:
    """Return the code of an answer: its last block, or all of it; None where it has none.

    Code that does not define the function continues the prompt, as a model without instructions does.
    """
    blocks = _BLOCK.findall(text)
    code: str = blocks[-1] if blocks else text
    if re.search(rf"^[ \t]*(?:async )?def {re.escape(problem.name)}\b", code, re.MULTILINE):
        return code
    return problem.prompt + code if code[:1] in " \t" and code.strip() else None


def grade(problem: FunctionProblem, code: str, limits: Limits) -> FunctionGrade:
    """Run an agent's code on the calls of the tests, and the tests on its answers.

    Raises: ToolInfraFailure: a sandbox does not work. EnvFailure: the problem's own tests do not.
    """
    calls, num_checks = _record_calls(problem)
    with PythonSession(limits) as session:
        problems = _define_function(session, problem, code)
        if problems is not None:
            return FunctionGrade(num_passed=0, num_checks=num_checks, reason=problems)
        try:
            session.write_file("calls.json", json.dumps(calls).encode())
            result = session.run(
                f"import _function_guest; _function_guest.answer({problem.name}, 'calls.json', 'answers.json')"
            )
            if result.error is not None:
                return FunctionGrade(num_passed=0, num_checks=num_checks, reason=_failure_reason(result))
            answers = session.read_file("answers.json")
        except ToolError as refusal:
            return FunctionGrade(num_passed=0, num_checks=num_checks, reason=f"The answers cannot be read: {refusal}")
    passed = _grading_session().num_passed(problem, calls, answers)
    reason = "" if passed == num_checks else "The function gives a wrong result, or raises an error."
    return FunctionGrade(num_passed=min(passed, num_checks), num_checks=num_checks, reason=reason)


def _define_function(session: PythonSession, problem: FunctionProblem, code: str) -> str | None:
    """Define the function in an agent's sandbox; return what went wrong."""
    try:
        session.write_file("_function_guest.py", _GUEST_SCRIPT.read_bytes())
    except ToolError as refusal:
        return str(refusal)
    for part in (problem.prompt, code):
        result = session.run(part)
        if result.error is not None:
            return _failure_reason(result)
    return None


def _failure_reason(result: SessionResult) -> str:
    """Return what stopped an agent's code."""
    if result.ending.is_limit:
        return f"The code was stopped by a limit: {result.ending.value}."
    last = result.output.strip().rpartition("\n")[2]
    return f"The code does not run: {last[:300] if result.error != 'SessionEnded' else 'it ended the Python process'}"


@cached_within(_CALLS_BYTES)
def _record_calls(problem: FunctionProblem) -> tuple[Data, int]:
    """Return the calls that the tests make of the reference, and how many checks there are."""
    return _grading_session().calls(problem)


class _GradingSession:
    """A session that sees tests and references, and of agents nothing but plain data; used by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: PythonSession | None = None

    def calls(self, problem: FunctionProblem) -> tuple[Data, int]:
        """Run the tests with the reference. Raises: EnvFailure: it fails them."""
        result, noted = self._do("note_calls", {"problem": list(_fields(problem))}, b"[]")
        if noted is None:
            got, do = result.output[-300:], "take the problem out"
            raise EnvFailure(sentence("tests", "pass with the reference", got, where=problem.name, do=do))
        return noted[0], int(noted[1])

    def num_passed(self, problem: FunctionProblem, calls: Data, answers: bytes) -> int:
        """Run the tests on answers; what breaks them is wrong."""
        _, passed = self._do("num_passed", {"problem": list(_fields(problem)), "calls": calls}, answers)
        return passed if isinstance(passed, int) else 0

    def _do(self, function: str, job: JsonObject, answers: bytes) -> tuple[SessionResult, Data]:
        """Run a function of `_function_guest`; None where it fails. A session that was stopped is replaced."""
        with self._lock:
            if self._session is None:
                self._session = PythonSession(_TRUSTED)
                self._session.write_file("_function_guest.py", _GUEST_SCRIPT.read_bytes())
            session, self._session = self._session, None
            session.write_file("job.json", json.dumps(job).encode())
            session.write_file("answers.json", answers)
            files = "'job.json', 'answers.json', 'result.json'"
            result = session.run(f"import _function_guest; _function_guest.judge('{function}', {files})")
            if result.error is not None:
                session.close()
                return result, None
            value = json.loads(session.read_file("result.json"))
            self._session = session
            return result, value


def _fields(problem: FunctionProblem) -> tuple[str, str, str, str]:
    return problem.prompt, problem.solution, problem.test, problem.name


@cache
def _grading_session() -> _GradingSession:
    return _GradingSession()
