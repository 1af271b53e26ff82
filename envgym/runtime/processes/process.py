"""Each process of a run: how it is started, watched and ended, and its output, which goes into its log."""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from envgym.core.json_types import visible
from envgym.errors import RunError
from envgym.runtime.processes.handles import ProcessHandle, ProcessStarter
from envgym.runtime.processes.log import LOG_VARIABLE, ROLE_VARIABLE, RUN_VARIABLE, line_of, log_event, read_line

READY: Final = "ready"
"""The event by which a process announces that it serves, with its `url`."""
GRACE_S = 10.0
"""From the request to end until a process is killed."""
_LAST_WORDS_S = 1.0
"""From the end of a process until its output is taken as read."""
_ERROR: Final = "envgym: "
"""How a command's error begins."""


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
    """Whether its group may start it again if it dies after all were ready."""
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
class StartedProcess:
    """A process that was started."""

    spec: ProcessSpec
    handle: ProcessHandle
    log: Path
    started: float
    ready: dict[str, Any] | None = None
    """What it announced; None: it does not serve yet."""
    last_line: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    """Its output was read to the end, and its exit code is known."""

    @property
    def ending(self) -> str:
        """How it ended, in words; empty while it runs."""
        return self.handle.describe_ending() if self.ended.is_set() else ""

    @property
    def is_done(self) -> bool:
        """Whether it ended as it may before the run does."""
        return self.handle.returncode == 0 and (self.spec.ends_itself or not self.spec.serves)

    def state(self, now: float) -> ProcessState:
        is_running = self.ready is not None or not self.spec.serves
        state = self.ending or ("running" if is_running else "starting")
        memory_mib = self.handle.memory_mib
        return ProcessState(self.spec.role, self.handle.pid, state, now - self.started, memory_mib, self.last_line)

    def kill(self, reason: str = "") -> None:
        """Kill it and the processes that it started; a reason is shown as its last line."""
        self.last_line = reason or self.last_line
        self.handle.send_signal(signal.SIGKILL)

    def watch(
        self,
        run: str,
        on_ready: Callable[["StartedProcess", dict[str, Any]], None],
        on_death: Callable[["StartedProcess"], None],
    ) -> None:
        """Copy its output into its log and wait for its end, in two threads, which report both.

        Args:
            run: name of the run, for lines that are no entries of a log.
            on_ready: receives the entry by which the process announces that it serves.
            on_death: is called when the process has ended.
        """
        role = self.spec.role
        reader = threading.Thread(target=self._copy_output, args=(run, on_ready), name=f"{role}-output", daemon=True)
        reader.start()

        def wait() -> None:
            self.handle.wait()
            reader.join(_LAST_WORDS_S)  # what it started may keep its output open
            self.ended.set()
            on_death(self)

        threading.Thread(target=wait, name=role, daemon=True).start()

    def _copy_output(self, run: str, on_ready: Callable[["StartedProcess", dict[str, Any]], None]) -> None:
        """Copy its output until it ends; if the log cannot be written, the output is lost."""
        for line in self.handle.lines():
            text, entry = line.decode(errors="replace").rstrip("\r\n"), read_line(line)
            if entry is None:
                self.last_line = visible(text.strip()) or self.last_line
                text = line_of(run, self.spec.role, "OUTPUT", {"message": text}).rstrip() if text.strip() else ""
            elif entry.get("event") == READY:
                on_ready(self, entry)
            elif entry.get("level") in ("WARNING", "ERROR", "CRITICAL"):
                self.last_line = str(entry.get("message", "")).strip().rpartition("\n")[2] or self.last_line
            with suppress(OSError):
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(f"{text}\n" if text else "")

    def log_death(self) -> None:
        log_event("died", process=self.spec.role, ending=self.ending)

    def describe_failure(self, resume: str, restarts: str) -> RunError:
        """Return the error of its death: which process, how, after which restarts, and what to do."""
        got, do = self.ending + restarts, "look into its log"
        if self.last_line.startswith(_ERROR):  # a sentence that says what to do
            do = f"it says: {self.last_line.removeprefix(_ERROR).rstrip('.')}"
        elif self.last_line:
            got += f" after: {self.last_line}"
        do = f"{do}; then go on with: {resume}"
        return RunError.of(self.spec.role, "run until the run ends", got, where=str(self.log), do=do)


def start_process(spec: ProcessSpec, starter: ProcessStarter, *, folder: Path, run: str) -> StartedProcess:
    """Start a process of a run with its log in a folder; it is not watched yet."""
    of_log = {LOG_VARIABLE: "-", RUN_VARIABLE: run, ROLE_VARIABLE: spec.role, "PYTHONUNBUFFERED": "1"}
    handle = starter.start(spec.role, spec.command, {**spec.environment, **of_log})
    log_event("start", process=spec.role, pid=handle.pid)
    return StartedProcess(spec, handle, folder / f"{spec.role}.jsonl", time.monotonic())


def end_processes(processes: Sequence[StartedProcess]) -> None:
    """End processes: ask them to, the last that was started first, and kill those that still run after `GRACE_S`."""
    for own in reversed(processes):
        own.handle.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for own in processes:
        own.ended.wait(max(0.0, deadline - time.monotonic()))
    for own in processes:  # also what it left in its process group
        own.kill()
        own.ended.wait(GRACE_S)
