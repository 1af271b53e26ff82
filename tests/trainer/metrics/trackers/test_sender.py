"""Rows that are sent in a thread."""

from threading import Event

import pytest

from envgym.trainer.metrics.trackers.sender import Sender
from envgym.trainer.metrics.update import Metrics


def test_rows_are_sent_in_order_without_waiting() -> None:
    is_open, sent = Event(), list[int]()

    def send(step: int, metrics: Metrics) -> None:
        assert is_open.wait(60)
        sent.append(step)

    sender = Sender(send, name="slow")
    for step in range(5):
        sender.put(step, {})
    assert sent == []
    is_open.set()
    sender.close()
    assert sent == [0, 1, 2, 3, 4]


def test_failure_reaches_who_sends_next_and_who_closes() -> None:
    has_failed = Event()

    def send(step: int, metrics: Metrics) -> None:
        has_failed.set()
        raise OSError("no route")

    sender = Sender(send, name="gone")
    sender.put(1, {})
    assert has_failed.wait(60)
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            sender.close()
    with pytest.raises(OSError, match="no route"):
        sender.put(2, {})
