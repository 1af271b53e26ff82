"""A lock in which a writer comes first."""

import threading

import pytest

from envgym.agents.policies._locks import WriterPriorityLock


def test_a_writer_comes_before_a_reader_that_returns_again_and_again() -> None:
    lock, used, ends = WriterPriorityLock(), threading.Event(), threading.Event()
    uses = reads_before_writer = 0

    def use() -> None:
        nonlocal uses, reads_before_writer
        while not ends.is_set():
            with lock.read():
                uses += 1
                reads_before_writer += lock.has_writer
                used.set()

    worker = threading.Thread(target=use)
    worker.start()
    assert used.wait(10)
    for _ in range(20):
        with lock.write():
            held = uses
            assert lock.has_writer
            threading.Event().wait(0.002)
            assert uses == held  # nobody uses it meanwhile
    ends.set()
    worker.join(10)
    assert not lock.has_writer
    assert reads_before_writer <= 2 * 20  # the one under way, and one that was through the door already


def test_a_failed_write_lets_readers_in() -> None:
    lock = WriterPriorityLock()
    with pytest.raises(RuntimeError), lock.write():
        raise RuntimeError
    with lock.read():
        assert not lock.has_writer
