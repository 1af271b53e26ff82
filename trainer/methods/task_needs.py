"""Inputs that a method reads of tasks, such as a key of their metadata; a run checks them before it starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Task


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
    """A plug-in that reads inputs of tasks; any curriculum, allocator or annotator may be one."""

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the inputs that the tasks of a run must have."""
        ...
