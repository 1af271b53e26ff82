"""The processes that a run starts beside its own: started together, watched, and ended together.

Each writes its log (`envgym.runtime.processes.log`) to a pipe that is read here into `ROLE.jsonl`, with what else it
prints, so that the last words of a process that crashed are kept. One that serves says where by `announce`. The first
that dies ends the run with one sentence, unless the group's restart policy (`envgym.runtime.processes.restarts`) lets
it be started again. None outlives the process that started it, however that ends.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from envgym.core.json_types import visible
from envgym.errors import RunError
from envgym.runtime.processes.handles import PARENT_VARIABLE, LocalStarter, ProcessStarter
from envgym.runtime.processes.interrupts import main_interruptible
from envgym.runtime.processes.log import log_event
from envgym.runtime.processes.process import (
    GRACE_S,
    READY,
    ProcessSpec,
    ProcessState,
    StartedProcess,
    end_processes,
    start_process,
)
from envgym.runtime.processes.restarts import NO_RESTARTS, RESTARTS, RestartBudget, RestartPolicy, count_failure

FORCED_S = 60.0
"""From the death of one until this process is ended by force, where its main thread hears of nothing."""
EXIT_FAILED: Final = 2
"""Exit code of a run that a process's death ended, as of every error that is one sentence."""
_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_PEER_S = 15.0
"""From the loss of a connection until the death of the process behind it is known, if it has died."""


# ---- in the process that is started ---------------------------------------------------------------------------------


def announce(**fields: object) -> None:
    """Say that this process is ready, and by which addresses it is reached."""
    log_event(READY, **fields)


def end_with_parent() -> None:
    """Let this process end with the one that started it, where that asked for it: by SIGTERM, soon after by force."""
    parent = int(os.environ.get(PARENT_VARIABLE, "0"))
    if not parent:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        if sys.platform != "linux":  # whose kernel has sent it
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


# ---- in the process that starts them --------------------------------------------------------------------------------


class PeerLost(RunError):
    """A process of the run does not answer; should it have died, that is known soon."""


OnServing = Callable[[str, Mapping[str, object] | None], None]
"""Receives from any thread the role of a process that has died and is started again, with None, and later with what it
then announced."""


class Processes:
    """The processes of a run; as a context manager it ends them all, however its block ends.

    Where one dies before, the block is interrupted, and ends with a `RunError` that says which, how, and what to do.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        resume: str,
        restarts: RestartPolicy = NO_RESTARTS,
        starter: ProcessStarter | None = None,
        interrupt_by: Callable[[], None] | None = None,
    ) -> None:
        """Begin without a process.

        Args:
            folder: of their logs.
            run: name of the run, for the logs.
            resume: command that goes on with the run.
            restarts: how often a process of which the spec allows it is started again.
            starter: starts them; None: on this machine.
            interrupt_by: ends what this process is doing; None: a signal to the main thread.
        """
        self._folder, self._run, self._resume = folder, run, resume
        self._starter = starter or LocalStarter()
        self._interrupt, self._resources = interrupt_by, ExitStack()
        self._processes: list[StartedProcess] = []
        self._budget = RestartBudget(restarts)
        self._on_serving: OnServing | None = None
        """None: a death ends the run."""
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._is_waiting = False
        """Whether `wait_ready` is under way, which raises by itself."""
        self._failure: RunError | None = None

    def __enter__(self) -> Self:
        _groups.append(self)
        if self._interrupt is None:
            self._interrupt = self._resources.enter_context(main_interruptible())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End them. Raises: RunError: one had died by itself; it is why the block failed."""
        try:
            failure = None if error is None else self._await_failure(_PEER_S if isinstance(error, PeerLost) else 0.5)
        finally:
            _groups.remove(self)
            try:
                self.end()
            except KeyboardInterrupt:
                if self._failure is None:
                    raise
                self.end()  # it was the news of a death, which came while this ended
            self._resources.close()
        if failure is not None:
            raise failure from error

    def start(self, specs: Iterable[ProcessSpec]) -> None:
        for spec in specs:
            self._start(spec)

    def wait_ready(self, *, timeout_s: float) -> dict[str, dict[str, object]]:
        """Wait until every process that serves is ready, and return what each announced, by role.

        Raises: RunError: one died, or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed, self._waiting():
            while True:
                if self._failure is not None:
                    raise self._failure
                waiting = [own for own in self._processes if own.spec.serves and own.ready is None]
                if not waiting:
                    return {own.spec.role: own.ready for own in self._processes if own.ready is not None}
                left = deadline - time.monotonic()
                if left <= 0:
                    own, do = waiting[0], "look into its log, or raise the limit with --start-timeout"
                    got = own.last_line or "no output"
                    raise RunError.of(own.spec.role, f"be ready within {timeout_s:g} s", got, where=str(own.log), do=do)
                self._changed.wait(min(left, 0.5))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def states(self) -> list[ProcessState]:
        """Return how each is doing, in the order in which they were started."""
        now = time.monotonic()
        return [own.state(now) for own in self._processes]

    def restartable(self) -> list[StartedProcess]:
        """Return the running processes that may be started again."""
        with self._changed:
            return [own for own in self._processes if own.spec.is_restarted and not own.ended.is_set()]

    @contextmanager
    def restarting(self, on_serving: OnServing = lambda role, announced: None) -> Iterator[None]:
        """Apply the restart policy to deaths during a block, which begins when all processes are ready."""
        self._on_serving = on_serving
        try:
            yield
        finally:
            self._on_serving = None

    def end(self) -> None:
        """End all processes, as `end_processes` does."""
        with self._changed:
            self._ending.set()
        end_processes(self._processes)

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def _start(self, spec: ProcessSpec) -> None:
        own = start_process(spec, self._starter, folder=self._folder, run=self._run)
        self._processes.append(own)
        own.watch(self._run, self._note_ready, self._note_death)

    def _note_ready(self, own: StartedProcess, entry: dict[str, Any]) -> None:
        with self._changed:
            own.ready, own.last_line = entry, ""
            self._changed.notify_all()
            on_serving = self._on_serving
        if on_serving is not None:
            on_serving(own.spec.role, entry)

    def _note_death(self, own: StartedProcess) -> None:
        """Start a process again that has died, if its group's policy lets it; otherwise it ends the run."""
        on_serving = self._on_serving
        if on_serving is None or not own.spec.is_restarted:
            self._fail(own)
            return
        delay_s = self._budget.take(own.spec.role, now=time.monotonic())
        if delay_s is None:
            self._fail(own, self._budget.policy.describe_spent())
        elif not self._restart(own, delay_s, on_serving):
            self._fail(own, ", and it could not be started again")

    def _restart(self, own: StartedProcess, delay_s: float, on_serving: OnServing) -> bool:
        """Start a process again after a delay, unless the run ends meanwhile; return whether it could be started."""
        with self._changed:
            if self._is_over():
                return True
        own.log_death()
        own.kill()  # what it started may go on
        on_serving(own.spec.role, None)
        self._ending.wait(delay_s)
        with self._changed:  # `end` waits for this, and then ends the new one too
            if self._is_over():
                return True
            place = self._processes.index(own)
            try:
                self._start(own.spec)
            except (OSError, RunError):  # its node does not answer, or this machine has no room for a process
                return False
            self._processes[place] = self._processes.pop()
        count_failure(RESTARTS)
        log_event("restart", process=own.spec.role, delay_s=delay_s)
        return True

    def _is_over(self) -> bool:
        """Whether the run ends or has failed; under the lock."""
        return self._ending.is_set() or self._failure is not None

    def _fail(self, own: StartedProcess, restarts: str = "") -> None:
        """End the run because a process has died, unless that was its time."""
        with self._changed:
            if own.is_done or self._is_over():
                return
            self._failure = own.describe_failure(self._resume, restarts)
            self._changed.notify_all()
            if not self._is_waiting:
                assert self._interrupt is not None, "the block was entered"
                self._interrupt()
        own.log_death()
        if not self._ending.wait(FORCED_S):  # the main thread waits for what will never come
            self.end()
            print(f"envgym: {visible(str(self._failure))}", file=sys.stderr, flush=True)
            os._exit(EXIT_FAILED)

    def _await_failure(self, within_s: float) -> RunError | None:
        """Return the failure that explains an error of the block: a death may be known a moment later."""
        try:
            with self._changed, self._waiting():
                self._changed.wait_for(lambda: self._failure is not None, timeout=within_s)
        except KeyboardInterrupt:
            if self._failure is None:
                raise
        return self._failure


_groups: list[Processes] = []
"""Those that this process has started."""


def process_states() -> list[ProcessState]:
    """Return how the processes that this one has started are doing."""
    return [state for group in _groups for state in group.states()]
