"""The limits of one session, held by its supervisor. Standard library only: it runs inside sandboxes."""

import os
import signal
from contextlib import suppress
from typing import Any

from envgym.sandbox._tree import Usage, UsageMeter

Fields = dict[str, Any]  # decoded JSON
_GRACE_CPU_S = 2.0
MAX_CLONES = 16
"""Clones that a session makes of itself for one fork; they count as its own until they are adopted."""


class SessionWatch:
    """Holds a session's limits from the start of one run to the start of the next."""

    def __init__(self, pid: int, limits: Fields) -> None:
        self.limits = limits
        """{"memory", "processes", "cpu_s"}."""
        self.ending = "EXITED"
        """The limit that ended the session."""
        self._pid = pid
        self._meter = UsageMeter(pid, has_own_network=False)
        self._cpu_before = 0.0
        self._is_new = True

    def begin_run(self, limits: Fields) -> None:
        """Take the limits of a run, and count processor time from now on; of the first run from the process' start."""
        self.limits = limits
        if not self._is_new:
            self._cpu_before += self.measure().cpu_s
        self._is_new = False

    def measure(self) -> Usage:
        """Return the session's usage, with the processor time since its last run began."""
        used = self._meter.measure(self.limits["memory"])
        return used._replace(cpu_s=used.cpu_s - self._cpu_before)

    def hold_limits(self) -> None:
        """Kill a session that breaks a limit. The host interrupts a run first, so there is more time here."""
        if self.ending != "EXITED":
            return
        used = self.measure()
        if used.memory > self.limits["memory"]:
            self.ending = "MEMORY"
        elif used.processes > self.limits["processes"] + MAX_CLONES:
            self.ending = "PROCESSES"
        elif used.cpu_s > 2 * self.limits["cpu_s"] + _GRACE_CPU_S:
            self.ending = "CPU_TIME"
        if self.ending != "EXITED":
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
