"""Tasks whose keys the verifiers of an env can read.

A key that cannot be read would make rewards invalid. Such rows of a file are left out and counted in the log. A list
that holds such a task, and a generator that draws one, is refused with the reason.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from envgym.authoring.files import FileTasks
from envgym.authoring.sources import check_index
from envgym.core.tasks import Split, Task, TaskSource
from envgym.errors import InvalidInput

KeyCheck = Callable[[Task], None]
"""Raises InvalidInput if the key of a task cannot be read."""
NUM_THREADS = 4
"""Of verifiers that ask helper processes."""
_MIN_IN_THREADS = 64
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Readable:
    """Which tasks of a source have keys that can be read, found out once for all envs that share it."""

    size: dict[Split, int] = field(default_factory=dict)
    """Of each split of the source when it was checked."""
    indices: dict[Split, Sequence[int]] = field(default_factory=dict)


_readable_tasks: WeakKeyDictionary[Any, dict[object, _Readable]] = (
    WeakKeyDictionary()
)  # any task source that can be a key
_lock = Lock()


class CheckedTasks:
    """The tasks of a source whose keys pass a check; they keep their ids."""

    def __init__(self, source: TaskSource, checks: Sequence[KeyCheck], *, blocking: bool, shared: _Readable) -> None:
        """Prepare to check; tasks are read, and checked, when the first one is requested."""
        self.source = source
        self._checks, self._blocking, self._readable = tuple(checks), blocking, shared

    def size(self, split: Split) -> int | None:
        """Return the number of tasks in `split`, those with unreadable keys not counted. Raises: InvalidInput."""
        size = self.source.size(split)
        return None if size is None else len(self._indices(split, size))

    def task(self, split: Split, index: int) -> Task:
        """Return a task. Raises: InvalidInput: beyond the end, or its key cannot be read."""
        size = self.source.size(split)
        if size is None:
            task = self.source.task(split, index)
            self._check(task)
            return task
        indices = self._indices(split, size)
        return self.source.task(split, indices[check_index(index, len(indices), f"{split} of the tasks")])

    def num_left_out(self, split: Split) -> int:
        """Return the number of tasks of `split` whose keys cannot be read."""
        size = self.source.size(split)
        return 0 if size is None else size - len(self._indices(split, size))

    def _indices(self, split: Split, size: int) -> Sequence[int]:
        readable = self._readable
        if readable.size.get(split) != size:
            with _lock:
                if readable.size.get(split) != size:
                    readable.indices[split] = self._check_all(split, size)
                    readable.size[split] = size
        return readable.indices[split]

    def _check_all(self, split: Split, size: int) -> Sequence[int]:
        """Return the indices of readable tasks. Raises: InvalidInput: one of a list is not, or none of a file is."""
        problems = dict(self._problems([self.source.task(split, index) for index in range(size)]))
        if not problems:
            return range(size)
        first = next(iter(problems.values()))
        if not isinstance(self.source, FileTasks):
            raise first
        if len(problems) == size:
            must, got = f"hold a {split} task whose key can be read", f"none: all {size} are left out"
            where, do = (
                f"the first: {str(first).removesuffix('.')}",
                "correct the keys, or name another column or preset",
            )
            raise InvalidInput.of(self.source.name, must, got, where=where, do=do) from first
        counts, where = f"{len(problems)} of {size} {split} tasks", self.source.name
        _log.warning("%s of %s are left out, because their key cannot be read; the first: %s", counts, where, first)
        return [index for index in range(size) if index not in problems]

    def _problems(self, tasks: Sequence[Task]) -> Iterator[tuple[int, InvalidInput]]:
        """Yield index and reason for each task whose key cannot be read."""
        if self._blocking and len(tasks) >= _MIN_IN_THREADS:
            with ThreadPoolExecutor(NUM_THREADS) as threads:
                results = list(threads.map(self._problem, tasks, chunksize=1))
        else:
            results = list(map(self._problem, tasks))
        return ((index, problem) for index, problem in enumerate(results) if problem is not None)

    def _problem(self, task: Task) -> InvalidInput | None:
        try:
            self._check(task)
        except InvalidInput as error:
            return error
        return None

    def _check(self, task: Task) -> None:
        for check in self._checks:
            check(task)


def checked_tasks(source: TaskSource, verifiers: Sequence[object]) -> TaskSource:
    """Return the tasks of a source whose keys some verifiers can read; the source itself if none of them checks keys.

    Args:
        source: of the tasks; what is found out about it is kept for as long as it lives.
        verifiers: those with a method `check_key(task)` count.
    """
    checking = [item for item in verifiers if hasattr(item, "check_key")]
    if not checking or isinstance(source, CheckedTasks):
        return source
    checks: list[KeyCheck] = [item.check_key for item in checking]
    blocking = any(getattr(item, "blocking", False) for item in checking)
    try:
        shared = _readable_tasks.setdefault(source, {}).setdefault(tuple(checking), _Readable())
    except TypeError:  # the source or a verifier cannot be the key of a table
        shared = _Readable()
    return CheckedTasks(source, checks, blocking=blocking, shared=shared)
