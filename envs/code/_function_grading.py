"""Grades a function against hidden tests that its code never meets; see `_function_guest` for how."""

import json
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envgym.core.json_types import JsonObject
from envgym.errors import EnvFailure, ToolError
from envgym.runtime.cache import cached_within
from envgym.sandbox import Limits, PythonSession, SessionResult

_GUEST_SCRIPT = Path(__file__).with_name("_function_guest.py")
_TRUSTED = Limits(wall_s=60.0, cpu_s=10.0, output=65536)
_AS_MODULE = "__import__('sys').modules['solution'] = __import__('sys').modules[__name__]; __name__ = 'solution'"
"""What comes after `if __name__ == "__main__"` is not run: it reads input, prints examples or leaves."""
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
    num_passed: int
    num_checks: int
    num_trivial: int = 0
    """Checks that a program passes that always returns the same, or its first argument."""
    reason: str = ""
    """What went wrong, in words that tell nothing of the tests; empty where nothing did."""

    @property
    def is_passed(self) -> bool:
        return self.num_passed == self.num_checks

    @property
    def partial_credit(self) -> float:
        """Share of the checks that hold, among those that no trivial program passes."""
        if self.is_passed:
            return 1.0
        return max(0, self.num_passed - self.num_trivial) / max(1, self.num_checks - self.num_trivial)


def grade(problem: FunctionProblem, code: str, limits: Limits) -> FunctionGrade:
    """Run an agent's code on the calls of the tests, and the tests on its answers.

    Raises: ToolInfraFailure: a sandbox does not work. EnvFailure: the problem's own tests do not.
    """
    calls, num_checks, num_trivial = _record_calls(problem)
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
    passed = min(passed, num_checks)
    return FunctionGrade(num_passed=passed, num_checks=num_checks, num_trivial=num_trivial, reason=reason)


def _define_function(session: PythonSession, problem: FunctionProblem, code: str) -> str | None:
    try:
        session.write_file("_function_guest.py", _GUEST_SCRIPT.read_bytes())
    except ToolError as refusal:
        return str(refusal)
    return run_definitions(session, problem, code)


def run_definitions(session: PythonSession, problem: FunctionProblem, code: str) -> str | None:
    """Run the prompt and an agent's code; return what went wrong; code may end with `exit()`."""
    for part in (f"{problem.prompt}\n{_AS_MODULE}", code):
        result = session.run(part)
        if result.error not in (None, "SystemExit"):
            return _failure_reason(result)
    return None


def _failure_reason(result: SessionResult) -> str:
    if result.ending.is_limit:
        return f"The code was stopped by a limit: {result.ending.value}."
    last = result.output.strip().rpartition("\n")[2]
    return f"The code does not run: {last[:300] if result.error != 'SessionEnded' else 'it ended the Python process'}"


@cached_within(_CALLS_BYTES)
def _record_calls(problem: FunctionProblem) -> tuple[Data, int, int]:
    """Return the calls that the tests make of the reference, how many checks there are, and how many are trivial."""
    return _grading_session().calls(problem)


class _GradingSession:
    """A session that sees tests and references, and of agents nothing but plain data; used by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: PythonSession | None = None

    def calls(self, problem: FunctionProblem) -> tuple[Data, int, int]:
        result, noted = self._do("note_calls", {"problem": list(_fields(problem))}, b"[]")
        if noted is None:
            got, do = result.output[-300:], "take the problem out"
            raise EnvFailure.of("tests", "pass with the reference", got, where=problem.name, do=do)
        return noted[0], int(noted[1]), int(noted[2])

    def num_passed(self, problem: FunctionProblem, calls: Data, answers: bytes) -> int:
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
