"""The form of an answer: a regular expression that the author writes."""

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from envgym.core.json_types import JsonObject
from envgym.core.tasks import Task
from envgym.errors import EnvFailure, InvalidInput
from envgym.verifiers.base import Verdict, right, wrong
from envgym.verifiers.math import MAX_PROCESSES, WALL_FACTOR
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """1 where the pattern matches the whole answer (outer spaces aside), else 0; it judges form, not truth."""

    pattern: str
    """Python's `re` syntax; the dot matches line breaks too."""
    max_chars: int = 20_000
    """A longer answer scores 0."""
    cpu_s: int | None = 1
    """Seconds of CPU time in a helper process, after which an answer scores 0: there are patterns, such as (a+)+b, that
    need exponential time. None: match in this process, for a pattern that is known to be fast on every text."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern, re.DOTALL)
        except re.error as error:
            must, where = "be a regular expression", f"Pattern: {error}"
            raise InvalidInput.of("pattern", must, self.pattern, where=where, do="correct it") from None

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`; the task is not looked at."""
        if len(answer) > self.max_chars:
            return wrong(f"the answer has {len(answer)} characters, more than {self.max_chars}")
        stripped = answer.strip()
        if self.cpu_s is None:
            is_match = re.fullmatch(self.pattern, stripped, re.DOTALL) is not None
        else:
            matched = ask_within(self.cpu_s, {"pattern": self.pattern, "answer": stripped})
            if matched is None:
                return wrong(f"matching the answer took more than {self.cpu_s} s")
            is_match = bool(matched["is_match"])
        return right("the form is correct") if is_match else wrong("the form is not the required one")


def ask_within(cpu_s: int, request: JsonObject) -> Mapping[str, Any] | None:  # Any: decoded JSON
    """Return the answer of the helper process; None if `cpu_s` seconds are not enough.

    Raises: EnvFailure: the process cannot be started, or is lost.
    """

    def job(worker: Worker) -> Mapping[str, Any]:  # Any: decoded JSON
        worker.send({**request, "cpu_s": cpu_s})
        return worker.receive(cpu_s * WALL_FACTOR)

    try:
        return _pool().use(job)
    except WorkerDied as death:
        if death.returncode == -signal.SIGXCPU:
            return None
        raise EnvFailure(f"matching a regular expression failed: {death}") from None
    except WorkerHung as hang:
        raise EnvFailure(f"matching a regular expression was stopped: {hang}") from None


@cache
def _pool() -> WorkerPool:
    return WorkerPool("envgym.verifiers.pattern_worker", min(MAX_PROCESSES, os.cpu_count() or 1))
