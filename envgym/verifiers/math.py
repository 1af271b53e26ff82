r"""Mathematical equality of expressions, by math-verify in a process that can be killed.

An answer that takes too much time or memory scores 0; a key that cannot be read, or a comparison that cannot be run, is
a failure of the env. math-verify rounds decimals to six places, and takes 50 and 0.5 both for 50%.
"""

import os
import re
import signal
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

from envgym.core.tasks import Task
from envgym.errors import EnvFailure
from envgym.verifiers.base import Verdict, bad_key, right, text_keys_of, wrong
from envgym.verifiers.extract import Extractor, final
from envgym.verifiers.numbers import one_number
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool

MAX_PROCESSES = 4
WALL_FACTOR = 12.0
"""Real seconds allowed per CPU second, so that a busy machine does not make a right answer wrong."""

_TOO_BIG = (
    re.compile(r"[0-9]{400}"),
    re.compile(r"(?:\^|\*\*)\s?[({]{0,2}\s?-?[0-9]{5}"),  # a five-digit exponent
    re.compile(
        r"[0-9)}]\s?(?:\^|\*\*)\s?[({]{0,2}\s?[0-9]{1,9}\s?[)}]{0,2}\s?(?:\^|\*\*)\s?[({]{0,2}\s?[0-9]"
    ),  # 9^9^9
    re.compile(r"[0-9]{4}\s?[)}]?\s?!"),  # a factorial with thousands of digits
)
_INTEGER = re.compile(r"-?[0-9]{1,12}")
"""Short enough that math-verify compares every digit."""
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
_INLINE = re.compile(r"\$([^$]+)\$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    """1 where the answer is mathematically equal to the key, else 0."""

    blocking: ClassVar[bool] = True
    key: str = "answer"
    """Payload field: an expression in LaTeX or plain, or a list of accepted ones."""
    extract: Extractor = final
    cpu_s: int = 5
    """CPU seconds for one comparison."""
    max_chars: int = 1000
    """A longer expression scores 0."""
    worked_out: bool = False
    """Score 0 where the answer leaves more operations on constants to be done than the key (`operations_left`)."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the key cannot be read. EnvFailure: no comparison could be run."""
        keys = [self._expression_key(key, task) for key in text_keys_of(task, self.key)]
        extracted = self.extract(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        latex = expression(extracted.answer)
        if not latex:
            return wrong("there is no expression" if latex is not None else "there are several different expressions")
        if len(latex) > self.max_chars or any(guard.search(latex) for guard in _TOO_BIG):
            return wrong("the expression is too big")
        verdicts = [self._compare(key, latex, task) for key in keys]
        return max(verdicts, key=lambda verdict: verdict.score)

    def _expression_key(self, text: str, task: Task) -> str:
        key = expression(text)
        if not key:
            raise bad_key(task, self.key, "be one expression", text)
        return key

    def _compare(self, key: str, latex: str, task: Task) -> Verdict:
        if latex == key or ((number := one_number(latex)) is not None and number == one_number(key)):
            return right()
        if _INTEGER.fullmatch(latex) and _INTEGER.fullmatch(key):
            return wrong("not equal to the key")  # as math-verify finds, in a thousandth of the time
        verdict = compare(key, latex, self.cpu_s, worked_out=self.worked_out)
        if verdict is None:
            raise bad_key(task, self.key, "be an expression that math-verify reads", key)
        return verdict


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def expression(text: str) -> str | None:
    """Return the one expression of a text, without its delimiters; None where there are different ones."""
    text = text.strip()
    if text.count("$") > 2 or ("$" in text and not text.startswith("$")):
        inline = list(dict.fromkeys(item.strip() for item in _INLINE.findall(text.replace("$$", "$"))))
        if inline:
            return inline[0] if len(inline) == 1 else None
    for left, right_end in _WRAPPERS:
        if text.startswith(left) and text.endswith(right_end) and len(text) > len(left) + len(right_end):
            text = text[len(left) : -len(right_end)].strip()
    return text.rstrip(".").replace("**", "^").strip()


def compare(key: str, latex: str, cpu_s: int, *, worked_out: bool = False) -> Verdict | None:
    """Compare two expressions in a helper process, as `Math` describes; None where the key cannot be read.

    Raises: EnvFailure: no process could be started, or one was lost before or while it worked.
    """

    def job(worker: Worker) -> Verdict | None:
        worker.send({"key": key, "answer": latex, "cpu_s": cpu_s})
        if not worker.receive(cpu_s * WALL_FACTOR)["key"]:
            return None
        has_read_key[0] = True
        result = worker.receive(cpu_s * WALL_FACTOR)
        if result["equal"] and worked_out and result["left"]:
            return wrong(f"operations that are still to be done: {result['left']}")
        if result["equal"]:
            return right()
        if not result["read"]:
            return wrong("the answer cannot be read as an expression")
        return wrong(f"not equal to the key{': ' + result['problem'] if result['problem'] else ''}")

    has_read_key = [False]
    for _ in range(2):  # a process may be lost for reasons of its own; twice in the same place is no accident
        has_read_key[0] = False
        try:
            return _pool().use(job)
        except WorkerDied as death:
            if death.returncode == -signal.SIGXCPU:
                if has_read_key[0]:
                    return wrong(f"comparing the answer took more than {cpu_s} s")
                raise EnvFailure(f"reading the key {key[:60]!r} took more than {cpu_s} s") from None
        except WorkerHung as hang:
            raise EnvFailure(f"math-verify was stopped: {hang}") from None
    if has_read_key[0]:
        return wrong("comparing the answer took too much memory")
    raise EnvFailure("the process of math-verify was lost twice")


@cache
def _pool() -> WorkerPool:
    return WorkerPool("envgym.verifiers.math_worker", min(MAX_PROCESSES, os.cpu_count() or 1))
