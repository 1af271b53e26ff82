"""How often processes of a run may be started again, and what failures a run has survived, counted by name.

`RestartBudget` is a pure table: it is told the time. The counts are of this process and only grow; whoever reports them
for a while takes the difference of two.
"""

import threading
from collections import Counter, deque
from typing import Final, NamedTuple

from envgym.runtime.backoff import Backoff

RESTARTS: Final = "processes/restarts"
"""Processes that died and were started again."""
RETRIED: Final = "requests/retried"
"""Requests of a policy server that failed and were sent again."""
REISSUED: Final = "rollout/reissued"
"""Trees (for a chain: episodes) that were begun again, as their env server or rollout worker was gone."""


class RestartPolicy(NamedTuple):
    """How often one process may be started again."""

    restarts: int = 3
    """Most restarts within the window; 0: none."""
    window_s: float = 600.0
    """Seconds after which a restart is not counted any more."""
    first_delay_s: float = 0.5
    """From a death to the first restart; it doubles with each that is counted."""

    def describe_spent(self) -> str:
        """Return how an error names the restarts of a process that may have no more; empty: it may have none."""
        count = f"{self.restarts} restart{'s' if self.restarts > 1 else ''}"
        return f" and {count} within {self.window_s:g} s" if self.restarts else ""


NO_RESTARTS: Final = RestartPolicy(restarts=0)
"""A death ends the run."""


class RestartBudget:
    """The restarts of each process within the window."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._times: dict[str, deque[float]] = {}

    def take(self, role: str, *, now: float) -> float | None:
        """Take a restart of a process from its budget, and return the seconds to wait before; None: none is left."""
        times = self._times.setdefault(role, deque())
        while times and times[0] <= now - self.policy.window_s:
            times.popleft()
        if len(times) >= self.policy.restarts:
            return None
        times.append(now)
        return Backoff(self.policy.first_delay_s).pause_s(len(times) - 1)


_counts: Counter[str] = Counter()
_lock = threading.Lock()


def count_failure(name: str, count: int = 1) -> None:
    """Count failures that the run has survived, by one of the names of this module; from any thread."""
    with _lock:
        _counts[name] += count


def failure_counts() -> Counter[str]:
    """Return how often each was counted in this process."""
    with _lock:
        return _counts.copy()
