"""Freed memory is used again without the system's help, and goes back to the system afterwards."""

import ctypes
import resource
import sys
from pathlib import Path

import pytest
import torch

from envgym.trainer.learner.allocator import freed_memory_kept

PAGE = resource.getpagesize()
SIZES = (11 * 2**20, 64 * 2**20, 200 * 2**20)
"""Bytes of buffers that a step frees: below and above what glibc maps by itself."""


def page_faults() -> int:
    """Return how many pages the system had to give to three rounds of filling and freeing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        buffers = [torch.ones(size // 4) for size in SIZES]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc"
)
def test_freed_buffers_are_used_again_and_returned_at_the_end() -> None:
    once = sum(SIZES) // PAGE
    page_faults()  # whatever is made at the first use
    assert page_faults() > once
    before = resident()
    with freed_memory_kept():
        assert min(page_faults() for _ in range(4)) < once / 10  # a small object may move the buffers once or twice
        assert resident() > before + sum(SIZES) / 2
    assert resident() < before + sum(SIZES) / 10
    assert page_faults() > once


def test_an_error_inside_is_passed_on() -> None:
    with pytest.raises(KeyError), freed_memory_kept():
        raise KeyError
