"""Garbage collections that run less often while many records are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 500_000
"""New objects before a garbage collection; at Python's default of 700 it takes a third of the time of a turn."""
_MAX_POSTPONED = 2_000_000
"""Objects left out before all are looked at, which takes a fifth of a second where torch is imported."""


class _Postponed:
    """Objects that outlived a run and were not looked at since; garbage in cycles among them waits for a collection."""

    num_objects = 0
    _full_collections = 0
    _has_caller_frozen = False
    """Whether the caller has ever frozen objects; to count them is to pass over all of them."""

    def collect_if_many(self) -> None:
        """Look at all objects, where many were left out since the last time; most records are gone by now."""
        if gc.get_stats()[2]["collections"] != self._full_collections:
            self.num_objects = 0
        if self.num_objects >= _MAX_POSTPONED:
            gc.collect()
            self.num_objects = 0

    def add_young(self) -> None:
        """Count the young objects, and move them to the oldest generation without looking at them.

        `freeze` moves all objects out of the generations, and `unfreeze` moves them into the oldest. Where the caller
        has frozen some, they would be let go: the next collection looks at the young ones then, and after every later
        run too.
        """
        self._has_caller_frozen = self._has_caller_frozen or gc.get_freeze_count() > 0
        if not self._has_caller_frozen:
            self.num_objects += gc.get_count()[0]
            self._full_collections = gc.get_stats()[2]["collections"]
            gc.freeze()
            gc.unfreeze()


_postponed = _Postponed()


@contextmanager
def rare_collections(*, leaves_cycles: bool = False) -> Iterator[None]:
    """Let the garbage collector run less often: what episodes keep is reachable, so it would find little.

    Nothing changes for episodes that leave cycles of objects. Agent programs do: a client of an HTTP library is one,
    and holds a megabyte of certificates outside Python.

    At most `_NEW_OBJECTS` are left out within the block, and `_MAX_POSTPONED` of those that outlive blocks, and then
    those of one more: otherwise the collection that follows a block would look at all records of its episodes.

    A caller who has switched it off, or set a higher threshold, keeps that. Pools may overlap: only the one that
    raised the threshold sets it back.
    """
    young, *older = gc.get_threshold()
    if leaves_cycles or not 0 < young < _NEW_OBJECTS:
        yield
        return
    _postponed.collect_if_many()
    gc.set_threshold(_NEW_OBJECTS, *older)
    try:
        yield
    finally:
        _postponed.add_young()  # first: a new object would be enough for a collection
        gc.set_threshold(young, *older)
