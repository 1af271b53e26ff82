r"""Mathematical equality of expressions, by math-verify in a process that can be killed.

An answer that takes too much time or memory scores 0. A key that cannot be read is refused before any answer is judged.
Numbers are compared here: integers and fractions exactly, decimals to six places and six digits; 50% is 50 and 0.5.
Words and numerals of a base are compared as texts (`notation`); everything else as `math_equality` says.
"""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

from envgym.core.tasks import Task
from envgym.errors import EnvFailure
from envgym.verifiers.base import Verdict, bad_key, judge_candidates, right, text_keys_of, wrong
from envgym.verifiers.extract import Extractor, Take, final, unwrapped
from envgym.verifiers.notation import (
    equal_numbers,
    is_same_time,
    is_usual,
    named_bases,
    numeral,
    plain_number,
    rewritten,
    with_last_symbols,
    word,
)
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool
from envgym.verifiers.units import units_differ, without_unit

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
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
_INLINE = re.compile(r"\$([^$]+)\$")
_QUOTED = re.compile(r"\$\$?([^$]{3,300})\$|\\\((.{3,300}?)\\\)|\\\[(.{3,300}?)\\\]", re.DOTALL)
_MAX_QUOTED = 12
_TO_SIMPLIFY = re.compile(
    r"simpl|reduce|lowest terms|rationali|combine|condense|single (?:log|frac|root)", re.IGNORECASE
)
"""Questions whose answer is another form of a number that they hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    """1 where the answer is mathematically equal to the key, else 0."""

    blocking: ClassVar[bool] = True
    key: str = "answer"
    """Payload field: an expression in LaTeX or plain, or a list of accepted ones."""
    extract: Extractor = final
    take: Take = Take.ONLY
    """Which of several candidate answers counts."""
    cpu_s: int = 5
    """CPU seconds for one comparison."""
    max_chars: int = 1000
    """A longer expression scores 0."""
    worked_out: bool = False
    """Score 0 where the answer leaves more operations on constants to be done than the key (`operations_left`), or is a
    formula of the question (`math_equality.is_said_again`)."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the key cannot be read. EnvFailure: no comparison could be run."""
        keys = self.read_keys(text_keys_of(task, self.key), task)
        return judge_candidates(self.extract(answer), lambda text: self.judge(text, keys, task), self.take)

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: a key of the task cannot be read. EnvFailure: no process could be started."""
        self.read_keys(text_keys_of(task, self.key), task)

    def read_keys(self, texts: Sequence[str], task: Task) -> list[str]:
        """Return the expressions of keys. Raises: InvalidInput: one cannot be read, or is not equal to itself."""
        keys = []
        for text in texts:
            key, problem = _read_key(text, self.cpu_s)
            if problem:
                raise bad_key(task, self.key, problem, text)
            keys.append(key)
        return keys

    def judge(self, text: str, keys: Sequence[str], task: Task) -> Verdict:
        """Compare one candidate answer with keys that `read_keys` returned. Raises: EnvFailure: as `__call__`."""
        latex = expression(text)
        if not latex:
            return wrong("there is no expression" if latex is not None else "there are several different expressions")
        if latex in keys:
            return right()
        if len(latex) > self.max_chars or any(guard.search(latex) for guard in _TOO_BIG):
            return wrong("the expression is too big")
        verdict = self._compare(keys[0], latex, text, task)
        for key in keys[1:]:
            if verdict.score == 1.0:
                break
            verdict = self._compare(key, latex, text, task)
        return verdict

    def _compare(self, key: str, latex: str, text: str, task: Task) -> Verdict:
        if not (text.isdecimal() and key.isdecimal()):
            if units_differ(key, text):
                return wrong("the unit is not that of the key")
            key, latex = without_unit(key), without_unit(latex)
        is_same = _compared_as_text(key, latex, task.prompt)
        question = task.prompt if self.worked_out else ""
        if is_same is None:
            quoted = _quoted(question) if question else ()
            verdict = compare(key, latex, self.cpu_s, worked_out=self.worked_out, question=quoted)
            assert verdict is not None, "keys are read before"
        else:
            verdict = right() if is_same else wrong("not equal to the key")
        if verdict.score == 1.0 and question and _stands_in(latex, key, question):
            return wrong("it is an expression of the question")
        return verdict


@lru_cache(maxsize=65536)
def _read_key(text: str, cpu_s: int) -> tuple[str, str]:
    """Return the expression of a key, and what must hold that does not; empty: it can be used."""
    key = expression(text)
    if not key:
        return "", "be one expression"
    if plain_number(key) is not None or word(key) is not None or _has_base(key) or is_usual(key):
        return key, ""
    try:
        verdict = compare(key, key, cpu_s)
    except SlowKey as slow:
        return "", str(slow)
    if verdict is None:
        return "", "be an expression that math-verify reads"
    return key, "" if verdict.score == 1.0 else f"be equal to itself ({verdict.reason})"


def _has_base(key: str) -> bool:
    key_numeral = numeral(key)
    return key_numeral is not None and key_numeral.base is not None


@lru_cache(maxsize=4096)
def _compared_as_text(key: str, latex: str, prompt: str) -> bool | None:
    """Tell whether an answer is the key, if both are numbers, or one is a word or a numeral of a base; else None."""
    answer_number, key_number = plain_number(latex), plain_number(key)
    if answer_number is not None and key_number is not None:
        return equal_numbers(key_number, answer_number)
    answer_word, key_word = word(latex), word(key)
    if answer_word is not None or key_word is not None:
        if answer_word is not None and is_same_time(key, answer_word):
            return True
        return (answer_word or _letter(latex)) == (key_word or _letter(key))
    answer_numeral, key_numeral = numeral(latex), numeral(key)
    if answer_numeral is None or key_numeral is None:
        return False if (_has_base(key) or _has_base(latex)) else None
    if answer_numeral.base is None and key_numeral.base is None:
        return None
    if answer_numeral.digits != key_numeral.digits:
        return False
    if answer_numeral.base is not None and key_numeral.base is not None:
        return answer_numeral.base == key_numeral.base
    return (answer_numeral.base or key_numeral.base) in {10, *named_bases(prompt)}


def _letter(text: str) -> str:
    """Return the name of an option without marks, as (C)."""
    return text.strip("(). ").lower()


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def expression(text: str) -> str | None:
    """Return the one expression of a text in the notation of math-verify; None: there are different ones."""
    text = text.strip()
    if text.count("$") > 2 or ("$" in text and not text.startswith("$")):
        inline = list(dict.fromkeys(item.strip() for item in _INLINE.findall(text.replace("$$", "$"))))
        if inline:
            return (rewritten(inline[0]) if word(inline[0]) is None else inline[0]) if len(inline) == 1 else None
    for left, right_end in _WRAPPERS:
        if text.startswith(left) and text.endswith(right_end) and len(text) > len(left) + len(right_end):
            text = text[len(left) : -len(right_end)].strip()
    text = text.rstrip(".").replace("**", "^").strip()
    return rewritten(unwrapped(text)) if word(text) is None else text


@lru_cache(maxsize=4096)
def _quoted(question: str) -> tuple[str, ...]:
    parts = (next(filter(None, match.groups())) for match in _QUOTED.finditer(question[:8000]))
    expressions = dict.fromkeys(expression(part) or "" for part in parts)
    if not _TO_SIMPLIFY.search(question):  # a number that stands in another question may be its answer
        expressions = dict.fromkeys(
            part for part in expressions if re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", part)
        )
    return tuple(part for part in expressions if part)[:_MAX_QUOTED]


def _stands_in(latex: str, key: str, question: str) -> bool:
    """Tell whether an answer stands in a question as it is, and the key does not; it must be a formula."""
    if not re.search(r"[-+*/^_{ (]", latex) or re.match(r"[\[(]|\\[{b]", latex):
        return False
    has_unknown = re.search(r"(?<![\\A-Za-z])[a-zA-Z](?![A-Za-z])", latex) is not None
    if not has_unknown and not _TO_SIMPLIFY.search(question):
        return False
    return _is_in(latex, question) and not _is_in(key, question)


def _is_in(latex: str, question: str) -> bool:
    """Tell whether an expression stands in a text, white space aside, and is no part of a longer one."""
    parts = [re.escape(part) for part in latex.replace(" ", "")]
    pattern = r"(?<![A-Za-z0-9^+\-*/_({\\.])" + r"\s?".join(parts) + r"(?![A-Za-z0-9^*/_)}(]|\.[0-9]|\s?[-+*/^=])"
    return re.search(pattern, question[:8000].replace("\\left", "").replace("\\right", "")) is not None


class SlowKey(EnvFailure):
    """Reading a key takes more than its time."""


def compare(
    key: str, latex: str, cpu_s: int, *, worked_out: bool = False, question: Sequence[str] = ()
) -> Verdict | None:
    """Compare two expressions in a helper process, as `Math` describes; None where the key cannot be read.

    Args:
        key: an expression.
        latex: another one.
        cpu_s: CPU seconds for the key, and again for the comparison.
        worked_out: as in `Math`.
        question: expressions that are no answer.

    Raises: EnvFailure: no process could be started, or one was lost before or while it worked.
    """

    key, latex = with_last_symbols(key, latex)

    def job(worker: Worker) -> Verdict | None:
        worker.send({"key": key, "answer": latex, "cpu_s": cpu_s, "worked_out": worked_out, "question": list(question)})
        if not worker.receive(cpu_s * WALL_FACTOR)["key"]:
            return None
        has_read_key[0] = True
        result = worker.receive(cpu_s * WALL_FACTOR)
        if result["equal"] and result["left"]:
            return wrong(f"operations that are still to be done: {result['left']}")
        if result["equal"] and result["said_again"]:
            return wrong("it is an expression of the question")
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
                raise SlowKey(f"be read within {cpu_s} s") from None
        except WorkerHung as hang:
            raise EnvFailure(f"math-verify was stopped: {hang}") from None
    if has_read_key[0]:
        return wrong("comparing the answer took too much memory")
    raise EnvFailure("the process of math-verify was lost twice")


@cache
def _pool() -> WorkerPool:
    return WorkerPool("envgym.verifiers.math_worker", min(MAX_PROCESSES, os.cpu_count() or 1))
