"""The processes that a run starts beside its own: started together, watched, and ended together.

Each writes its log (`envgym.process_log`) to a pipe that is read here into `ROLE.jsonl`, with what else it prints,
so that the last words of a process that crashed are kept. One that serves says where by `announce`. The first that
dies ends the run with one sentence, unless it is started again (`envgym.supervision`). None outlives the process that
started it, however that ends.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Self

from envgym.core.json_types import visible
from envgym.errors import RunError
from envgym.interrupts import interrupt
from envgym.process_handles import PARENT_VARIABLE, LocalStarter, ProcessHandle, ProcessStarter
from envgym.process_log import LOG_VARIABLE, ROLE_VARIABLE, RUN_VARIABLE, line_of, log_event, read_line

READY: Final = "ready"
"""The event by which a process says that it serves, with its `url`."""
GRACE_S = 10.0
"""From the request to end until a process is killed."""
FORCED_S = 60.0
"""From the death of one until this process is ended by force, where its main thread hears of nothing."""
EXIT_FAILED: Final = 2
"""Exit code of a run that a process's death ended, as of every error that is one sentence."""
_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_PEER_S = 15.0
"""From the loss of a connection until the death of the process behind it is known, if it has died."""
_LAST_WORDS_S = 1.0
"""From the end of a process until its output is taken as read."""
_ERROR: Final = "envgym: "
"""How a command's error begins."""


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


class ProcessSpec(NamedTuple):
    """A process to start."""

    role: str
    """Its name in logs and sentences, such as `policy-server-0`."""
    command: Sequence[str]
    """What follows `python -m envgym`, or a whole command that begins with an absolute path."""
    serves: bool = True
    """Whether it announces that it is ready."""
    ends_itself: bool = False
    """Whether it may end before the run does, with exit code 0."""
    is_restarted: bool = False
    """Whether it is started again where it dies after all were ready, if the processes are supervised."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Variables that it has beside those of this process."""


class ProcessState(NamedTuple):
    """How a process is doing, for the display."""

    role: str
    pid: int
    state: str
    """`starting`, `running`, or how it ended."""
    seconds: float
    memory_mib: float
    last_line: str
    """Of its warnings and bare output, the newest."""


@dataclass(slots=True, eq=False)
class _Process:
    spec: ProcessSpec
    handle: ProcessHandle
    log: Path
    started: float
    ready: dict[str, object] | None = None
    last_line: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    """Its output was read to the end, and its exit code is known."""

    @property
    def ending(self) -> str:
        """How it ended, in words; empty while it runs."""
        return self.handle.describe_ending() if self.ended.is_set() else ""


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
        starter: ProcessStarter | None = None,
        interrupt_by: Callable[[], None] | None = None,
    ) -> None:
        """Begin without a process.

        Args:
            folder: of their logs.
            run: name of the run, for the logs.
            resume: command that goes on with the run.
            starter: starts them; None: on this machine.
            interrupt_by: ends what this process is doing; None: a signal to the main thread.
        """
        self._folder, self._run, self._resume = folder, run, resume
        self._starter = starter or LocalStarter()
        self._interrupt = self._interrupt_main if interrupt_by is None else interrupt_by
        self._signal = signal.SIGINT
        self._before: Any = None  # the handler that the signal had, as `signal.signal` returns it
        self._processes: list[_Process] = []
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._is_waiting = False
        """Whether `wait_ready` is under way, which raises by itself."""
        self._failure: RunError | None = None

    def __enter__(self) -> Self:
        """Let displays show them; return the processes."""
        _shown.append(self)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            self._signal = signal.SIGUSR1  # a program that was started in the background, whom Ctrl-C does not concern
            self._before = signal.signal(self._signal, interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End them. Raises: RunError: one had died by itself; it is why the block failed."""
        try:
            failure = None if error is None else self._await_failure(_PEER_S if isinstance(error, PeerLost) else 0.5)
        finally:
            _shown.remove(self)
            try:
                self.end()
            except KeyboardInterrupt:
                if self._failure is None:
                    raise
                self.end()  # it was the news of a death, which came while this ended
            if self._before is not None:
                signal.signal(self._signal, self._before)
        if failure is not None:
            raise failure from error

    def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Start processes."""
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
        return [
            ProcessState(
                role=own.spec.role,
                pid=own.handle.pid,
                state=own.ending or ("running" if own.ready is not None or not own.spec.serves else "starting"),
                seconds=now - own.started,
                memory_mib=own.handle.memory_mib,
                last_line=own.last_line,
            )
            for own in self._processes
        ]

    def end(self) -> None:
        """End all: ask them to, the last that was started first, and kill what is left after `GRACE_S`."""
        with self._changed:
            self._ending.set()
        for own in reversed(self._processes):
            own.handle.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for own in self._processes:
            own.ended.wait(max(0.0, deadline - time.monotonic()))
        for own in self._processes:  # also what it left in its process group
            own.handle.send_signal(signal.SIGKILL)
            own.ended.wait(GRACE_S)

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def _start(self, spec: ProcessSpec) -> None:
        environment = {
            **spec.environment,
            LOG_VARIABLE: "-",
            RUN_VARIABLE: self._run,
            ROLE_VARIABLE: spec.role,
            "PYTHONUNBUFFERED": "1",
        }
        handle = self._starter.start(spec.role, spec.command, environment)
        process = _Process(spec, handle, self._folder / f"{spec.role}.jsonl", time.monotonic())
        self._processes.append(process)
        log_event("start", process=spec.role, pid=handle.pid)
        reader = threading.Thread(target=self._read, args=(process,), name=f"{spec.role}-output", daemon=True)
        reader.start()
        threading.Thread(target=self._watch, args=(process, reader), name=spec.role, daemon=True).start()

    def _read(self, own: _Process) -> None:
        """Copy a process's output into its log until it ends; where the log cannot be written, the output is lost."""
        for line in own.handle.lines():
            self._take(own, line)
            text = line.decode(errors="replace").rstrip("\r\n")
            if read_line(line) is None:
                text = line_of(self._run, own.spec.role, "OUTPUT", {"message": text}).rstrip() if text.strip() else ""
            with suppress(OSError):
                own.log.parent.mkdir(parents=True, exist_ok=True)
                with own.log.open("a", encoding="utf-8") as log:
                    log.write(f"{text}\n" if text else "")

    def _watch(self, own: _Process, reader: threading.Thread) -> None:
        """Wait for the end of a process, and for its last words; what it started may keep its output open."""
        own.handle.wait()
        reader.join(_LAST_WORDS_S)
        own.ended.set()
        self._note_death(own)

    def _take(self, own: _Process, line: bytes) -> None:
        entry = read_line(line)
        if entry is None:
            own.last_line = visible(line.decode(errors="replace").strip()) or own.last_line
        elif entry.get("event") == READY:
            with self._changed:
                own.ready, own.last_line = entry, ""
                self._changed.notify_all()
        elif entry.get("level") in ("WARNING", "ERROR", "CRITICAL"):
            own.last_line = str(entry.get("message", "")).strip().rpartition("\n")[2] or own.last_line

    def _note_death(self, own: _Process, restarts: str = "") -> None:
        is_done = own.handle.returncode == 0 and (own.spec.ends_itself or not own.spec.serves)
        with self._changed:
            if is_done or self._ending.is_set() or self._failure is not None:
                return
            self._failure = _failure_of(own, self._resume, restarts)
            self._changed.notify_all()
            if not self._is_waiting:
                self._interrupt()
        log_event("died", process=own.spec.role, ending=own.ending)
        if not self._ending.wait(FORCED_S):  # the main thread waits for what will never come
            self.end()
            print(f"envgym: {visible(str(self._failure))}", file=sys.stderr, flush=True)
            os._exit(EXIT_FAILED)

    def _interrupt_main(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, self._signal)

    def _await_failure(self, within_s: float) -> RunError | None:
        """Return the failure that explains an error of the block: a death may be known a moment later."""
        try:
            with self._changed, self._waiting():
                self._changed.wait_for(lambda: self._failure is not None, timeout=within_s)
        except KeyboardInterrupt:
            if self._failure is None:
                raise
        return self._failure


def _failure_of(own: _Process, resume: str, restarts: str) -> RunError:
    """Return the error of a process that died: which, how, after which restarts, and what to do."""
    got, do = own.ending + restarts, "look into its log"
    if own.last_line.startswith(_ERROR):  # a sentence that says what to do
        do = f"it says: {own.last_line.removeprefix(_ERROR).rstrip('.')}"
    elif own.last_line:
        got += f" after: {own.last_line}"
    return RunError.of(
        own.spec.role, "run until the run ends", got, where=str(own.log), do=f"{do}; then go on with: {resume}"
    )


_shown: list[Processes] = []
"""Those that this process has started."""


def process_states() -> list[ProcessState]:
    """Return how the processes that this one has started are doing."""
    return [state for group in _shown for state in group.states()]
