"""The health check of the servers that a run starts: one that does not answer is killed, so that its group starts it
again.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, NamedTuple

from envgym.runtime.http.client import get
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.log import log_event
from envgym.runtime.processes.process import StartedProcess

HEALTH: Final = "/health"
"""Path that every server answers with status 200 while it can be used."""
_ANSWER_S = 5.0
"""Longest wait for one answer; the server is asked again until its deadline."""


class Deadlines(NamedTuple):
    """By when a server must answer."""

    health_s: float = 60.0
    """From the first question that it does not answer until it is killed."""
    start_s: float = 300.0
    """From its restart until it is ready."""


@contextmanager
def checking_health(processes: Processes, deadlines: Deadlines, tokens: Mapping[str, str]) -> Iterator[None]:
    """Kill the servers of a group that do not answer during a block, which begins when all are ready.

    Args:
        processes: the group; only the processes that may be started again are asked.
        deadlines: by when they must answer.
        tokens: first part of a role -> environment variable with the token that its servers ask for.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=_watch_health, args=(processes, deadlines, tokens, is_over), name="health")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _watch_health(
    processes: Processes, deadlines: Deadlines, tokens: Mapping[str, str], is_over: threading.Event
) -> None:
    """Ask all servers how they are, one after the other, and kill those whose deadline is over."""
    silent_since: dict[StartedProcess, float] = {}
    pause_s = min(2.0, deadlines.health_s / 4)
    while not is_over.wait(pause_s):
        for own in processes.restartable():
            if own.ready is None:
                _kill_late(own, time.monotonic() - own.started, deadlines.start_s, "was not ready")
                continue
            now = time.monotonic()
            if _is_healthy(own.spec.role, str(own.ready["url"]), tokens, min(_ANSWER_S, deadlines.health_s / 2)):
                silent_since.pop(own, None)
            else:  # since when it was first asked in vain: others that hang take time, too
                first = silent_since.setdefault(own, now)
                _kill_late(own, time.monotonic() - first, deadlines.health_s, "did not answer")


def _is_healthy(role: str, url: str, tokens: Mapping[str, str], within_s: float) -> bool:
    variable = next((name for kind, name in tokens.items() if role.startswith(kind)), "")
    try:
        return get(url, HEALTH, token=os.environ.get(variable), within_s=within_s).status == HTTPStatus.OK
    except OSError:
        return False


def _kill_late(own: StartedProcess, seconds: float, limit_s: float, what: str) -> None:
    if seconds > limit_s:
        log_event("hung", process=own.spec.role, seconds=seconds)
        own.kill(f"it {what} within {limit_s:g} s")
