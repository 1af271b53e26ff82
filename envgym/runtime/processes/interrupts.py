"""How a command ends early: by Ctrl-C, or by the SIGTERM of a cluster or of `docker stop`.

The first signal unwinds the command, so that what is open is closed. A second one ends the process at once. So does the
first while a module is imported, as such code may swallow an interrupt. Either way one sentence says what was kept, and
nothing is lost: files are written whole, and child processes end with this one.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from envgym.core.json_types import visible

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_IMPORTS: Final = "<frozen importlib._bootstrap>"
"""File of the frames of an import."""
_SHOW_CURSOR: Final = "\033[?25h"
"""Progress bars hide it."""


class _Ending:
    describe: Callable[[], str]
    cancel: Callable[[int, FrameType | None], object] | None = None
    """Handles an interrupt while an event loop runs."""
    signal_number = signal.SIGINT
    is_told = False


_ending = _Ending()


def describe_interrupt_by(describe: Callable[[], str] = lambda: "nothing was written") -> None:
    """Let an interrupt from now on say what `describe` returns: what was kept, and how to go on; it imports nothing."""
    _ending.describe = describe
    _ending.is_told = False


describe_interrupt_by()


def describe_saved(directory: Path, command: str) -> str:
    """Say what a training run that is interrupted has saved, and that `command` goes on."""
    if not (directory / "run.json").exists():
        return "nothing was written"
    steps = [int(path.parent.name.removeprefix("step-")) for path in directory.glob("checkpoints/step-*/state.json")]
    if not steps:
        return f"no checkpoint is saved yet; begin again with: {command}"
    return f"the checkpoint of step {max(steps)} is saved; continue with: {command}"


def describe_saved_episodes(directory: Path, command: str) -> str:
    """Say what an evaluation that is interrupted has saved, and that `command` goes on."""
    if not (directory / "run.json").exists():
        return "nothing was written"
    return f"finished episodes are saved; continue with: {command}"


@contextmanager
def interrupts_noted(describe: Callable[[], str]) -> Iterator[None]:
    """Add to an interrupt what is saved and how to go on, which a notebook shows below the traceback."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(describe())
        raise


def tell_interrupt() -> int:
    """Say on standard error, once, what the interrupt left; return the exit code, 130 after Ctrl-C."""
    if not _ending.is_told:
        _ending.is_told = True
        start = f"{_SHOW_CURSOR}\n" if sys.stderr.isatty() else ""
        print(f"{start}interrupted; {visible(_ending.describe())}", file=sys.stderr, flush=True)
    return 128 + _ending.signal_number


def end_interrupted() -> NoReturn:
    """End this process after it has unwound, without waiting for threads that work on what nobody wants any more."""
    code = tell_interrupt()
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def handle_signals() -> None:
    """Handle both signals from now on, until the process ends; SIGINT stays ignored where it is. In the main thread."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _end_if_interrupted
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are its own
    threading.Thread(target=_end_at_second_signal, args=(reader,), name="signals", daemon=True).start()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT. Raises: KeyboardInterrupt: where no module is being imported, and no event loop runs."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == _IMPORTS:
            _end()
        caller = caller.f_back
    if _ending.cancel is None:
        raise KeyboardInterrupt
    _ending.cancel(number, frame)


@contextmanager
def main_interruptible() -> Iterator[Callable[[], None]]:
    """Yield a function by which any thread interrupts the main thread during a block, even if Ctrl-C is ignored."""
    number, before = signal.SIGINT, None
    if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        number = signal.SIGUSR1  # a program that was started in the background, which Ctrl-C does not concern
        before = signal.signal(number, interrupt)
    try:
        yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, number)
    finally:
        if before is not None:
            signal.signal(number, before)


@contextmanager
def interrupts_passed_on() -> Iterator[None]:
    """In the main task of an event loop, pass interrupts on to the handler that the loop's runner has set."""
    handler = signal.signal(signal.SIGINT, interrupt)
    assert callable(handler), "a runner sets one"
    _ending.cancel = handler
    try:
        yield
    finally:
        _ending.cancel = None


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C. Raises: KeyboardInterrupt: as `interrupt`."""
    _ending.signal_number = signal.Signals(number)
    interrupt(signal.SIGINT, frame)


def _end_if_interrupted(error: "sys.UnraisableHookArgs") -> None:
    if isinstance(error.exc_value, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(error)


def _end_at_second_signal(reader: int) -> None:
    """Read the number of each signal as it arrives, also while the main thread is in other code than Python's."""
    count = 0
    while count < 2:
        count += sum(number in _SIGNALS for number in os.read(reader, 64))
    _end()


def _end() -> NoReturn:
    try:
        tell_interrupt()
    finally:
        os._exit(128 + _ending.signal_number)
