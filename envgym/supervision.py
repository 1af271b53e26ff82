"""Servers that a run starts, supervised: one that dies is started again, one that does not answer is killed first.

How often is bounded by `RestartBudget`; a process that has spent it ends the run, as every process does that dies
before all were ready once.
"""

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from envgym.errors import RunError
from envgym.process_log import log_event
from envgym.processes import Processes, _Process
from envgym.restarts import RESTARTS, RestartBudget, RestartRules, count_failure

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


OnServing = Callable[[str, Mapping[str, object] | None], None]
"""Is told from any thread what a process announced that was started again; None: it has died, and will be."""


class _Supervision(NamedTuple):
    """How deaths are followed by restarts."""

    budget: RestartBudget
    on_serving: OnServing


class SupervisedProcesses(Processes):
    """Processes of which some are started again where they die."""

    _supervision: _Supervision | None = None
    """None: a death ends the run."""

    @contextmanager
    def supervised(
        self,
        deadlines: Deadlines,
        tokens: Mapping[str, str],
        *,
        rules: RestartRules | None = None,
        on_serving: OnServing = lambda role, announced: None,
    ) -> Iterator[None]:
        """Start processes again that die during a block, when all are ready, and kill those that do not answer.

        Args:
            deadlines: by when they must.
            tokens: first part of a role -> environment variable with the token that its servers ask for.
            rules: how often one is started again; None: as they are by default.
            on_serving: is told of each death that is followed by a restart, and where the process serves then.
        """
        self._supervision = _Supervision(RestartBudget(rules or RestartRules()), on_serving)
        is_over = threading.Event()
        thread = threading.Thread(target=self._watch_health, args=(deadlines, tokens, is_over), name="health")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._supervision = None

    def _take(self, own: _Process, line: bytes) -> None:
        before, supervision = own.ready, self._supervision
        super()._take(own, line)
        if own.ready is not before and own.ready is not None and supervision is not None:
            supervision.on_serving(own.spec.role, own.ready)

    def _note_death(self, own: _Process, restarts: str = "") -> None:
        supervision = self._supervision
        if supervision is None or not own.spec.is_restarted:
            super()._note_death(own)
            return
        rules, delay_s = supervision.budget.rules, supervision.budget.take(own.spec.role, now=time.monotonic())
        if delay_s is not None:
            self._restart(own, delay_s, supervision.on_serving)
        elif rules.restarts:
            count = f"{rules.restarts} restart{'s' if rules.restarts > 1 else ''}"
            super()._note_death(own, f" and {count} within {rules.window_s:g} s")
        else:
            super()._note_death(own)

    def _restart(self, own: _Process, delay_s: float, on_serving: OnServing) -> None:
        """Start a process again that has died, unless the run ends meanwhile."""
        with self._changed:
            if self._ending.is_set() or self._failure is not None:
                return
        log_event("died", process=own.spec.role, ending=own.ending)
        own.handle.send_signal(signal.SIGKILL)  # what it started may go on
        on_serving(own.spec.role, None)
        if self._ending.wait(delay_s):
            return
        with self._changed:  # `end` waits for this, and then ends the new one too
            if self._ending.is_set() or self._failure is not None:
                return
            place = self._processes.index(own)
            try:
                self._start(own.spec)
                self._processes[place] = self._processes.pop()
                is_started = True
            except (OSError, RunError):  # its node does not answer, or this machine has no room for a process
                is_started = False
        if not is_started:
            super()._note_death(own, ", and it could not be started again")
            return
        count_failure(RESTARTS)
        log_event("restart", process=own.spec.role, delay_s=delay_s)

    # ---- health ------------------------------------------------------------------------------------------------------

    def _watch_health(self, deadlines: Deadlines, tokens: Mapping[str, str], is_over: threading.Event) -> None:
        """Ask all servers how they are, one after the other, and kill those whose deadline is over."""
        silent_since: dict[_Process, float] = {}
        pause_s = min(2.0, deadlines.health_s / 4)
        while not is_over.wait(pause_s):
            with self._changed:
                running = [own for own in self._processes if own.spec.is_restarted and not own.ended.is_set()]
            for own in running:
                if own.ready is None:
                    self._kill_late(own, time.monotonic() - own.started, deadlines.start_s, "was not ready")
                    continue
                asked = time.monotonic()
                if self._is_healthy(own, tokens, min(_ANSWER_S, deadlines.health_s / 2)):
                    silent_since.pop(own, None)
                else:  # since when it was first asked in vain: others that hang take time, too
                    first = silent_since.setdefault(own, asked)
                    self._kill_late(own, time.monotonic() - first, deadlines.health_s, "did not answer")

    def _is_healthy(self, own: _Process, tokens: Mapping[str, str], within_s: float) -> bool:
        assert own.ready is not None, "only those that serve are asked"
        variable = next((name for kind, name in tokens.items() if own.spec.role.startswith(kind)), "")
        address, token = urlsplit(str(own.ready["url"])), os.environ.get(variable)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=within_s)
        try:
            connection.request("GET", HEALTH, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _kill_late(self, own: _Process, seconds: float, limit_s: float, what: str) -> None:
        if seconds > limit_s:
            own.last_line = f"it {what} within {limit_s:g} s"
            log_event("hung", process=own.spec.role, seconds=seconds)
            own.handle.send_signal(signal.SIGKILL)
