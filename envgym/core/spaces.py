"""The Gymnasium space of texts, and what Gymnasium's vector envs need to carry them between processes.

Through `AsyncVectorEnv(shared_memory=True)` an observation arrives as a plain `str`; its messages are in the record.
"""

import copy
import multiprocessing
from collections.abc import Sequence
from ctypes import c_uint8
from types import ModuleType
from typing import Any, overload

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import (
    batch_differing_spaces,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from envgym.errors import InvalidInput

MAX_TEXT_CHARS = 1_000_000
"""Default bound of a text: far above what a model reads, and 4 MB of shared memory at worst."""

_SAMPLE_CHARS = 64
_SAMPLE_RANGES = (
    (0x20, 0x7F),
    (0x20, 0x7F),
    (0x09, 0x0B),
    (0xA1, 0x250),
    (0x391, 0x3CA),
    (0x4E00, 0x4F00),
    (0x1F600, 0x1F650),
)
"""Where sampled characters come from: mostly ASCII, then Latin, Greek, Han and emoji."""
_BYTES_PER_CHAR = 4
_HEADER = 8
"""Bytes before each text in shared memory; they hold its length."""


class UnicodeText(spaces.Space[str]):
    """Every text of at most `max_length` characters, the empty one too."""

    def __init__(self, max_length: int = MAX_TEXT_CHARS, *, seed: int | np.random.Generator | None = None) -> None:
        """Bound the texts. Raises: InvalidInput: `max_length` is below 1."""
        if max_length < 1:
            raise InvalidInput.of("max_length", "be at least 1", max_length, where="UnicodeText", do="pass a bound")
        self.max_length = max_length
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """A text has no fixed number of entries."""
        return False

    def sample(self, mask: object = None, probability: object = None) -> str:
        """Return a random text of at most 64 characters. Raises: InvalidInput: a mask is given."""
        if mask is not None or probability is not None:
            raise InvalidInput.of("mask", "be None", (mask, probability), where="UnicodeText", do="drop it")
        size = int(self.np_random.integers(min(self.max_length, _SAMPLE_CHARS) + 1))
        ranges = [_SAMPLE_RANGES[i] for i in self.np_random.integers(len(_SAMPLE_RANGES), size=size)]
        return "".join(chr(self.np_random.integers(low, high)) for low, high in ranges)

    def contains(self, x: object) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


def _batch(texts: Sequence[UnicodeText]) -> spaces.Tuple[str]:
    return spaces.Tuple([copy.deepcopy(space) for space in texts])


class SharedTexts(Sequence[str]):
    """A live view of the texts in shared memory: each read decodes what lies there now; a deep copy is a tuple.

    Gymnasium asks for the view once and copies it after every step, as it does with arrays.
    """

    def __init__(self, memory: memoryview, num_texts: int, slot: int) -> None:
        self._memory, self._num_texts, self._slot = memory, num_texts, slot

    def __len__(self) -> int:
        return self._num_texts

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        body = (index % len(self)) * self._slot + _HEADER
        size = int.from_bytes(self._memory[body - _HEADER : body], "little")
        return bytes(self._memory[body : body + size]).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, object]) -> tuple[str, ...]:
        """Return the texts as they are now."""
        return tuple(self)


def _slot(space: UnicodeText) -> int:
    return _HEADER + _BYTES_PER_CHAR * space.max_length


def _create(space: UnicodeText, n: int = 1, ctx: ModuleType = multiprocessing) -> Any:  # a ctypes array, untyped
    return ctx.Array(c_uint8, n * _slot(space))


def _write(space: UnicodeText, index: int, value: str, shared_memory: Any) -> None:  # the array of `_create`
    if value not in space:
        where, do = "shared memory", "widen observation_space or pass shared_memory=False"
        raise InvalidInput.of(
            "observation", f"have at most {space.max_length} characters", len(value), where=where, do=do
        )
    text = value.encode("utf-8", "surrogatepass")
    body = index * _slot(space) + _HEADER
    memory = memoryview(shared_memory.get_obj()).cast("B")
    memory[body : body + len(text)] = text
    memory[body - _HEADER : body] = len(text).to_bytes(_HEADER, "little")


def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> SharedTexts:  # the array of `_create`
    return SharedTexts(memoryview(shared_memory.get_obj()).cast("B"), n, _slot(space))


batch_differing_spaces.register(UnicodeText, _batch)
create_shared_memory.register(UnicodeText, _create)
write_to_shared_memory.register(UnicodeText, _write)
read_from_shared_memory.register(UnicodeText, _read)  # type: ignore[arg-type]  # a live view, not a copy
