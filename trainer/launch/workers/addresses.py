"""Where the rollout workers of a run serve; imports nothing heavy, so that a run is refused at once."""

import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from envgym.runtime.membership import server_url

TOKEN_VARIABLE: Final = "ENVGYM_WORKER_TOKEN"
"""Environment variable with the token of the rollout workers of a run."""


class WorkerAddress(NamedTuple):
    """Where a worker serves."""

    url: str
    number: int
    """How often the worker was started before."""


class WorkerAddresses:
    """The workers that serve, by role; changed from any thread as they die and are started again."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        """Begin with the workers that were started."""
        self._lock = threading.Lock()
        self._all = {role: WorkerAddress(url, 0) for role, url in urls.items()}
        self._down = set[str]()
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change."""

    def __len__(self) -> int:
        """Return how many workers there are, those included that are started again."""
        return len(self._all)

    def note(self, role: str, announced: Mapping[str, object] | None) -> None:
        """Change the address of a worker that has died (None), or serves again as it announced."""
        with self._lock:
            if announced is None:
                self._down.add(role)
            else:
                self._down.discard(role)
                self._all[role] = WorkerAddress(server_url(str(announced["url"])), self._all[role].number + 1)
        self.on_change()

    def up(self) -> dict[str, WorkerAddress]:
        """Return the workers that serve."""
        with self._lock:
            return {role: address for role, address in self._all.items() if role not in self._down}
