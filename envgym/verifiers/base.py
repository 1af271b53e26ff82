"""What a verifier is: an answer and a task in, a score with its reason out.

A verifier that cannot judge raises; it never returns 0 for a fault that is not the answer's.
"""

from dataclasses import dataclass
from typing import Protocol

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Task
from envgym.errors import InvalidInput, check_known


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A score and why."""

    score: float
    """In [0, 1]."""
    reason: str
    """One clause for a person; it may quote the key, so it is not for the agent."""

    def __post_init__(self) -> None:
        """Refuse scores outside [0, 1], NaN among them."""
        if not 0.0 <= self.score <= 1.0:
            raise InvalidInput.of("score", "lie in [0, 1]", self.score, where="Verdict", do="scale it in the verifier")


class Verifier(Protocol):
    """Judges the answer to a task, knowing which field of the payload holds the key.

    A verifier that may wait (process, network) has an attribute `blocking = True`.
    """

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: EnvFailure: the verifier broke. InvalidInput: the payload holds no usable key."""
        ...


def right(reason: str = "equal to the key") -> Verdict:
    """Return the verdict 1."""
    return Verdict(score=1.0, reason=reason)


def wrong(reason: str) -> Verdict:
    """Return the verdict 0."""
    return Verdict(score=0.0, reason=reason)


def key_of(task: Task, field: str) -> JsonValue:
    """Return the key that the payload holds. Raises: UnknownName: no such field; near names are listed."""
    check_known("payload field", field, task.payload, where=f"verifier on task {task.id}")
    return task.payload[field]


def text_keys_of(task: Task, field: str) -> tuple[str, ...]:
    """Return the accepted answers: one text, or a list of texts. Numbers are read as they are written in JSON.

    Raises: InvalidInput: the field holds something else, or nothing.
    """
    value = key_of(task, field)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise bad_key(task, field, "be a text, a number, or a list of them", value)
    return tuple(str(item) for item in values)


def bad_key(task: Task, field: str, must: str, value: object) -> InvalidInput:
    """Build the error for a payload field that is no usable key."""
    return InvalidInput.of(
        f"payload field {field!r}", must, value, where=f"task {task.id}", do="correct the task source"
    )
