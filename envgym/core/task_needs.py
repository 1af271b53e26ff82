"""Inputs that a method or a wrapper reads of tasks, such as a key of their metadata; a run checks them first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Task
from envgym.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNeed:
    """An input of tasks without which a method does nothing."""

    key: str
    """Name of the input, in the sentence of the error."""
    holder: Literal["metadata", "payload"] | None = "metadata"
    """Field of the task that holds the key; None: the method has the input from elsewhere."""
    every: bool = False
    """Whether every task must have it; False: at least one task of the run."""
    read: Callable[[Task], object]
    """Returns something true if a task has it. Raises: InvalidInput: the task has a value that cannot be used."""
    do: str
    """Remedy, which ends the sentence of the error."""

    def keys_of(self, task: Task) -> Mapping[str, JsonValue]:
        """Return the metadata or the payload of a task."""
        return {} if self.holder is None else task.metadata if self.holder == "metadata" else task.payload

    @property
    def rule(self) -> str:
        """The beginning of what must hold for tasks, in the sentence of the error."""
        return "exist for" if self.holder is None else f"be in the {self.holder} of"


@runtime_checkable
class NeedsTaskInputs(Protocol):
    """A plug-in that reads inputs of tasks: a curriculum, allocator, annotator or another method, or a wrapper."""

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the inputs that the tasks of a run must have."""
        ...


def metadata_text(task: Task, key: str) -> str | None:
    """Return a text in the metadata of a task, such as a hint; None: it has none.

    Raises: InvalidInput: the value is no text, or an empty one.
    """
    text = task.metadata.get(key)
    if text is not None and (not isinstance(text, str) or not text):
        where, do = f"task {task.id}", "write a sentence, or leave it out"
        raise InvalidInput.of(f"metadata {key}", "be a text", text, where=where, do=do)
    return text
