"""How far long work is, phase by phase: bars on a terminal and in a notebook, else lines; the same numbers on all.

Below the bars is a line for each process that this one has started; elsewhere one whenever its state changes.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from envgym.core.json_types import visible
from envgym.runtime.processes.group import process_states
from envgym.runtime.processes.process import ProcessState


class OnProgress(Protocol):
    """Is told how far a phase is."""

    def __call__(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Take note that `done` of `total` units (episodes, updates) are through; `detail` is such as 'loss 0.31'."""


def duration(seconds: float) -> str:
    """Write a duration as a person reads it, rounded to seconds: '48 s', '12 min 05 s', '3 h 20 min'."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _process_line(state: ProcessState) -> str:
    parts = [f"{state.role}: {state.state}", duration(state.seconds), f"{state.memory_mib:,.0f} MiB", state.last_line]
    return visible(", ".join(part for part in parts if part))


@dataclass(slots=True, kw_only=True)
class _Phase:
    total: int
    done: int
    detail: str
    started: float
    done_before: int
    """What was through when the phase was first heard of."""
    bar: Any  # a rich.progress.TaskID


class _NotebookOutput:
    """One output of a notebook's cell, which is replaced: the newest lines, and below them the bars."""

    LINES, WIDTH = 24, 24

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=self.LINES)
        self._shown = ""
        self._handle: Any = None  # an IPython.display.DisplayHandle, once there is something to show

    def print(self, line: str) -> None:
        self._lines.append(line)

    def show(self, bars: Iterable[tuple[float, str]], below: Iterable[str] = ()) -> None:
        """Replace what is seen, given the share that is done of each phase and its status, and lines below."""
        bar_lines = [f"{'█' * round(share * self.WIDTH):░<{self.WIDTH}} {status}" for share, status in bars]
        text = "\n".join([*self._lines, *bar_lines, *below])
        if text == self._shown:
            return
        self._shown, content = text, {"text/plain": text}
        if self._handle is not None:
            self._handle.update(content, raw=True)
            return
        from IPython.display import display  # of the kernel

        self._handle = display(content, raw=True, display_id=True)


def _in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program: a shell of IPython on a terminal has none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class ProgressDisplay:
    """Shows phases on standard error, or in a notebook's cell; as a context manager it is closed whatever happens.

    On a terminal and in a notebook each phase has a bar. Elsewhere it has a line as it ends, and while it goes on there
    is a line at least every `EVERY_S`, from a thread, so that a phase that reports nothing for long is heard of too. A
    display that is not open has the lines alone, written when it is called.
    """

    EVERY_S = 30.0
    """Longest silence, in seconds."""
    _TICK_S = 0.5

    def __init__(self, *, quiet: Collection[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """Make a display that is not open yet; phases in `quiet` end without a line, since another tells of them."""
        from rich.console import Console  # loaded where it is needed
        from rich.progress import BarColumn, Progress, Task, TextColumn
        from rich.text import Text

        class BarOrNothing(BarColumn):
            """A phase has a bar, a process has none."""

            def render(self, task: Task) -> Any:  # a rich renderable
                return Text(" " * 24) if task.fields.get("is_line") else super().render(task)

        self._quiet, self._clock = quiet, clock
        self._notebook: _NotebookOutput | None = None
        self._console = Console(stderr=True, soft_wrap=True, force_jupyter=False)
        of_kernel = _in_notebook() or "JPY_PARENT_PID" in os.environ  # a command of a cell: its output is no terminal
        self._is_terminal = self._console.is_terminal and not of_kernel
        status = TextColumn("{task.description}", markup=False)
        self._bars = Progress(BarOrNothing(24), status, console=self._console, disable=not self._is_terminal)
        self._phases: dict[str, _Phase] = {}
        self._processes: dict[str, tuple[str, Any]] = {}
        """Role -> the state that was shown last, and its line among the bars (a rich.progress.TaskID)."""
        self._started = self._last_line = clock()
        self._lock, self._closed = threading.RLock(), threading.Event()

    def open(self) -> Self:
        """Begin to show, and to beat; return the display."""
        if _in_notebook():
            self._notebook = _NotebookOutput()
        self._bars.start()
        threading.Thread(target=self._beat_until_closed, name="progress", daemon=True).start()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars away and stop; may be called twice."""
        self._closed.set()
        with self._lock:
            if self._notebook is not None:
                self._notebook.show([])
                self._notebook = None
        if self._is_terminal:  # else it would write an empty line
            self._bars.stop()

    def __call__(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Show how far a phase is; where `done` has reached `total` it ends."""
        with self._lock:
            state = self._phases.pop(phase, None)  # the last one is the newest
            if state is None:
                bar = self._bars.add_task(phase, total=total)
                state = _Phase(total=total, done=0, detail="", started=self._clock(), done_before=done, bar=bar)
            state.done, state.total, state.detail = done, total, detail
            self._phases[phase] = state
            self._bars.update(state.bar, completed=done, total=total, description=self._status(phase))
            if done >= total:
                if phase not in self._quiet:
                    self.print(self._status(phase))
                self._bars.remove_task(self._phases.pop(phase).bar)
        if self._notebook is None:  # else its thread is often enough
            self.beat()

    def print(self, line: str) -> None:
        """Write a line, above the bars where there are some."""
        with self._lock:
            self._last_line = self._clock()
            if self._notebook is not None:
                self._notebook.print(visible(line))
            else:
                self._console.print(visible(line), highlight=False, markup=False)

    def time_left(self, phase: str) -> str:
        """Return ', about 3 min 20 s left' of a phase that is under way, or nothing where that is not known yet."""
        state = self._phases.get(phase)
        if state is None or not state.done_before < state.done < state.total:
            return ""
        rate = (self._clock() - state.started) / (state.done - state.done_before)
        return f", about {duration(rate * (state.total - state.done))} left"

    def beat(self) -> None:
        """Renew the bars; where there are none, write a line where the last one is `EVERY_S` ago."""
        with self._lock:
            for phase, state in self._phases.items():
                self._bars.update(state.bar, description=self._status(phase))
            processes = process_states()
            self._show_processes(processes)
            if self._notebook is not None:
                phases = sorted(self._phases.items(), key=lambda item: item[1].bar)  # as they began
                self._notebook.show(
                    ((state.done / max(state.total, 1), self._status(phase)) for phase, state in phases),
                    map(_process_line, processes),
                )
            elif not self._is_terminal and self._clock() - self._last_line >= self.EVERY_S:
                newest = next(reversed(self._phases), None)
                waiting = f"no result yet, {duration(self._clock() - self._started)}"
                self.print(waiting if newest is None else self._status(newest))

    def _show_processes(self, processes: Sequence[ProcessState]) -> None:
        for state in processes:
            before, line = self._processes.get(state.role, ("", None))
            if line is None:
                line = self._bars.add_task("", total=None, is_line=True)
            self._bars.update(line, description=_process_line(state))
            if before != state.state and not self._is_terminal and self._notebook is None:
                self.print(_process_line(state))
            self._processes[state.role] = (state.state, line)
        for role in self._processes.keys() - {state.role for state in processes}:
            self._bars.remove_task(self._processes.pop(role)[1])

    def _status(self, phase: str) -> str:
        state = self._phases[phase]
        parts = [f"{phase}: {state.done}/{state.total}", state.detail, duration(self._clock() - state.started)]
        return visible(", ".join(part for part in parts if part)) + self.time_left(phase)

    def _beat_until_closed(self) -> None:
        while not self._closed.wait(self._TICK_S):
            self.beat()
