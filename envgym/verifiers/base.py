"""What a verifier is: an answer and a task in, a score with its reason out.

A verifier that cannot judge raises; it never returns 0 for a fault that is not the answer's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from envgym.config.plugins import PluginKind
from envgym.config.tables import KINDS
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Task
from envgym.core.turns import reaches
from envgym.errors import InvalidInput, check_known
from envgym.verifiers.extract import Extracted, Take

MAX_CANDIDATES = 8
"""A text with more different candidate answers scores 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A score and why."""

    score: float
    """In [0, 1]."""
    reason: str
    """One clause for a person; it may quote the key, so it is not for the agent."""

    def __post_init__(self) -> None:
        """Refuse scores outside [0, 1] and NaN; a sum that is outside by rounding alone becomes 0 or 1."""
        if 0.0 <= self.score <= 1.0:
            return
        if not (reaches(self.score, 0.0) and reaches(1.0, self.score)):
            raise InvalidInput.of("score", "lie in [0, 1]", self.score, where="Verdict", do="scale it in the verifier")
        object.__setattr__(self, "score", min(max(self.score, 0.0), 1.0))


class Verifier(Protocol):
    """Judges the answer to a task, knowing which field of the payload holds the key.

    A verifier that may wait (process, network) has an attribute `blocking = True`. One with a method `check_key(task)`,
    which raises InvalidInput if it cannot read the task's key, lets an env leave such tasks out when they are loaded;
    whether a verifier can judge must not depend on the answer.
    """

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: EnvFailure: the verifier broke. InvalidInput: the payload holds no usable key."""
        ...


class ChecksKey(ABC):
    """A verifier that reads the key of a task before it judges; so judging an empty answer checks the key."""

    @abstractmethod
    def __call__(self, answer: str, task: Task) -> Verdict: ...

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: the payload holds no key that can be read."""
        self("", task)


VERIFIER: Final[PluginKind[Verifier]] = KINDS["verifier"]


def right(reason: str = "equal to the key") -> Verdict:
    """Return the verdict 1."""
    return Verdict(score=1.0, reason=reason)


def wrong(reason: str) -> Verdict:
    """Return the verdict 0."""
    return Verdict(score=0.0, reason=reason)


def judge_candidates(extracted: Extracted, judge: Callable[[str], Verdict], take: Take = Take.ONLY) -> Verdict:
    r"""Score the answer of a text; several candidates score 1 if each of them does, else 0.

    So candidates that a verifier finds equal, such as `\frac12` and `0.5`, are one answer, and naming several different
    ones never scores more than naming one. With `Take.LAST` only the last candidate is scored.
    """
    candidates = extracted.candidates
    if len(candidates) == 1 or (candidates and take == Take.LAST):
        return judge(candidates[-1])
    different = dict.fromkeys(candidates)
    if not 0 < len(different) <= MAX_CANDIDATES:
        return wrong(extracted.reason)
    for candidate in reversed(different):
        verdict = judge(candidate)
        if verdict.score < 1.0:
            return wrong(extracted.reason)
    return verdict


def key_of(task: Task, field: str) -> JsonValue:
    """Return the key that the payload holds. Raises: UnknownName: no such field; near names are listed."""
    check_known("payload field", field, task.payload, where=f"verifier on task {task.id}")
    return task.payload[field]


def text_keys_of(task: Task, field: str) -> tuple[str, ...]:
    """Return the accepted answers: one text, or a list of texts. Numbers are read as they are written in JSON.

    Blank texts are left out: no answer could be one, and to a verifier an answer of marks alone would be.

    Raises: InvalidInput: the field holds something else, or nothing but blanks.
    """
    value = key_of(task, field)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise bad_key(task, field, "be a text, a number, or a list of them", value)
    keys = tuple(text for item in values if (text := str(item)) and not text.isspace())
    if not keys:
        raise bad_key(task, field, "hold a text that is not blank", value)
    return keys


def bad_key(task: Task, field: str, must: str, value: object) -> InvalidInput:
    """Build the error for a payload field that is no usable key."""
    where, do = f"task {task.id}", "correct the task source"
    return InvalidInput.of(f"payload field {field!r}", must, value, where=where, do=do)
