"""What the C library does with freed memory while a model trains on the CPU."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
"""Parameters of glibc's mallopt(3)."""
_DEFAULTS: Final = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Have the process keep the memory that it frees, and use it again, until this ends.

    By default, glibc returns large buffers to the system as they are freed. A training step frees and allocates
    gigabytes, and the system has to clear every page of them again, which takes about a tenth of the step. The peak is
    the same. Other C libraries are left as they are.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        yield
        return
    libc.mallopt(_TRIM_THRESHOLD, -1)  # never
    libc.mallopt(_MMAP_MAX, 0)
    try:
        yield
    finally:
        for parameter, value in _DEFAULTS.items():
            libc.mallopt(parameter, value)
        libc.malloc_trim(0)
