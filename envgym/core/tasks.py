"""Tasks, and splits that are disjoint by construction.

The split of a task is a hash of what the task *is* (its payload), not of its wording or its seed, so the same
problem cannot be in `train` and in `test`, whatever generator, seed or index it came from.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from envgym.core.json_types import JsonObject, JsonValue, content_hash, is_well_formed
from envgym.errors import InvalidInput, unknown_name

TEST_FRACTION = 0.2
"""Share of the hash space that is `test` where no official split exists."""


class Split(StrEnum):
    """Split of a task: train or held-out."""

    TRAIN = "train"
    TEST = "test"

    @classmethod
    def parse(cls, name: str, *, where: str) -> "Split":
        try:
            return cls(name)
        except ValueError:
            raise unknown_name("split", name, [split.value for split in cls], where=where) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenPayload(Mapping[str, JsonValue]):
    """The payload of a task whose answers stay in another process: empty to read, and known by its content hash."""

    key: str
    """Content hash of the payload itself."""
    index: int | None = field(default=None, compare=False)
    """Of the task in its split; None: its holder knows it by the hash alone."""

    def __getitem__(self, name: str) -> JsonValue:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An immutable problem with its hidden key."""

    id: str
    """Names the task inside its env: `<split>/<index>` for generated tasks, the data set's own id elsewhere."""
    prompt: str
    """Text of the task, as the agent reads it."""
    payload: JsonObject
    """The semantic content, answer included; never shown to the agent. Its hash is the task's identity."""
    split: Split
    metadata: JsonObject = field(default_factory=dict)
    """Difficulty, source, licence ...; no meaning for identity."""

    @property
    def key(self) -> str:
        """Content hash of the payload, 64 hex digits: equal for the same problem in other words."""
        return self.payload.key if isinstance(self.payload, HiddenPayload) else content_hash(self.payload)


def split_of(payload: JsonObject, test_fraction: float = TEST_FRACTION) -> Split:
    """Assign a payload to a split by its content hash."""
    return split_of_key(content_hash(payload), test_fraction)


def split_of_key(key: str, test_fraction: float = TEST_FRACTION, seed: int = 0) -> Split:
    """Assign a content hash to a split; another `seed` draws another split."""
    if not 0.0 <= test_fraction <= 1.0:
        raise InvalidInput.of("test_fraction", "lie in [0, 1]", test_fraction, where="split_of", do="pass e.g. 0.2")
    digits = (content_hash({"key": key, "split_seed": seed}) if seed else key)[:13]
    return Split.TEST if int(digits, 16) / 16**13 < test_fraction else Split.TRAIN


@runtime_checkable
class TaskSource(Protocol):
    """An indexed supply of tasks for each split; the same index gives the same task on every machine."""

    def size(self, split: Split) -> int | None:
        """Return the number of tasks in `split`, or None where the supply does not end."""
        ...

    def task(self, split: Split, index: int) -> Task:
        """Return task number `index` >= 0 of `split`. Raises: InvalidInput: beyond the end of the split."""
        ...


def check_ids(tasks: Iterable[Task], *, where: str, do: str) -> None:
    """See that each task of a split has an id of its own: results are kept by it, in files.

    Raises: InvalidInput: two share one, or one is no UTF-8 text.
    """
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise InvalidInput.of("task id", "be unique in its split", f"{task.id!r} twice", where=where, do=do)
        if not is_well_formed(task.id):
            raise InvalidInput.of("task id", "be UTF-8 text", ascii(task.id), where=where, do=do)
        seen.add(task.id)


def distinct_tasks(source: TaskSource, split: Split, count: int, *, start: int = 0) -> Iterator[Task]:
    """Yield `count` tasks of pairwise different content, in index order from `start`.

    Raises: InvalidInput: the split holds fewer (or, for a generator, 100 draws in a row gave nothing new).
    """
    seen: set[str] = set()
    size = source.size(split)
    index, dry = start, 0
    while len(seen) < count:
        if dry >= 100 or (size is not None and index >= size):
            raise InvalidInput.of(
                "number of distinct tasks",
                f"be at most what the {split} split holds ({len(seen)} found)",
                count,
                where="distinct_tasks",
                do="request fewer tasks",
            )
        task = source.task(split, index)
        index += 1
        if task.key in seen:
            dry += 1
            continue
        dry = 0
        seen.add(task.key)
        yield task
