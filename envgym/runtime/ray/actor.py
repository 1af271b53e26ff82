"""The actor beside a process on its node: it starts the process, reads its output, and ends it.

Ray sends this module to the nodes as it is here. It imports nothing of envgym: a node may have another version.
"""

import os
import platform
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_LAST_WORDS_S = 1.0
"""From the end of a process until its output is taken as read."""
_CHECK_S = 60.0
"""Longest wait for the version of envgym."""
_APPEARS_S = 5.0
"""Within which a file that another node has written is seen here."""
_MOST_LINES = 2000
"""Of one answer."""
_GATHER_S = 0.25
"""For which further lines are awaited, so that a busy log takes few calls."""
_LONGEST = 1 << 16
"""Bytes of a line."""


class ProcessActor:
    """One process of a run at a time, beside it on its node. Calls come from several threads."""

    def __init__(self) -> None:
        self._child: _Child | None = None

    def describe_node(self, directory: str, files: Mapping[str, str], directories: Sequence[str]) -> dict[str, Any]:
        """Return where this is, and what the run's processes find here.

        Args:
            directory: in which they are started.
            files: path -> what it must hold.
            directories: that must be there.
        """
        import ray

        context = ray.get_runtime_context()
        deadline = time.monotonic() + _APPEARS_S
        return {
            "host": ray.util.get_node_ip_address(),
            "name": socket.gethostname(),
            "node": context.get_node_id(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
            "python": platform.python_version(),
            "version": _version(directory),
            "missing": [path for path in (directory, *directories) if not os.path.isdir(path)],
            "unseen": [path for path, text in files.items() if not _holds(path, text, deadline)],
        }

    def read_clock(self) -> float:
        return time.time()

    def start(self, command: Sequence[str], environment: Mapping[str, str], directory: str) -> int:
        """Start the process; return its id.

        Args:
            command: what follows `python -m envgym`, or a whole command that begins with an absolute path.
            environment: variables beside those of this node; `ENVGYM_PARENT` becomes this actor.
            directory: in which it starts.

        Raises: OSError: it does not start.
        """
        self.send_signal(signal.SIGKILL)  # to one before, which was taken as lost
        self._child = _Child([*([] if os.path.isabs(command[0]) else _envgym()), *command], environment, directory)
        return self._child.pid

    def read(self, position: int, wait_s: float) -> tuple[int, list[bytes], int | None, float]:
        """Read the output from a line on, and wait for it for a while.

        Lines before `position` are dropped: they have arrived.

        Returns: position of the next call, lines, the exit code where it has ended and all lines are read, resident
            memory in MiB.
        """
        assert self._child is not None, "it was started"
        return self._child.read(position, wait_s)

    def send_signal(self, number: int) -> None:
        if self._child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)


class _Child:
    """A process, and what it has printed that has not arrived elsewhere yet."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: str) -> None:
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._dropped = 0
        """Lines that were read before those that are held."""
        self._code: int | None = None
        self.pid = 0
        begun: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run() -> None:
            # The kernel ends a child with the thread that started it, so that thread waits for it.
            with suppress(OSError):  # Ray's workers are nice to others, by 15; only root may take that back
                os.setpriority(os.PRIO_PROCESS, 0, 0)
            try:
                popen = subprocess.Popen(
                    command,
                    cwd=directory,
                    env={**os.environ, **environment, "ENVGYM_PARENT": str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                begun.put(error)
                return
            self.pid = popen.pid
            begun.put(None)
            reader = threading.Thread(target=self._read_output, args=(popen,), daemon=True)
            reader.start()
            popen.wait()
            reader.join(_LAST_WORDS_S)
            with self._changed:
                self._code = popen.returncode
                self._changed.notify_all()

        threading.Thread(target=run, name="process", daemon=True).start()
        error = begun.get()
        if error is not None:
            raise error

    def read(self, position: int, wait_s: float) -> tuple[int, list[bytes], int | None, float]:
        with self._changed:
            self._lines = self._lines[max(position - self._dropped, 0) :]
            self._dropped = max(position, self._dropped)
            self._changed.wait_for(lambda: self._lines or self._code is not None, wait_s)
            self._changed.wait_for(lambda: self._code is not None, min(wait_s, _GATHER_S))  # a call costs a millisecond
            lines = self._lines[:_MOST_LINES]
            code = self._code if len(lines) == len(self._lines) else None
            return position + len(lines), lines, code, _memory_mib(self.pid)

    def _read_output(self, popen: "subprocess.Popen[bytes]") -> None:
        assert popen.stdout is not None, "its output is a pipe"
        with popen.stdout as output:
            while line := output.readline(_LONGEST):
                with self._changed:
                    self._lines.append(line)
                    if len(self._lines) == 1:
                        self._changed.notify_all()


def _envgym() -> list[str]:
    """Return how a command begins here: a constant would be that of the node which has sent this module."""
    return [sys.executable, "-P", "-m", "envgym"]


def _version(directory: str) -> str:
    command = [*_envgym(), "--version"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    words = (done.stdout or done.stderr).strip().splitlines()
    return words[-1].removeprefix("envgym ") if words else f"exit code {done.returncode}"


def _holds(path: str, text: str, deadline: float) -> bool:
    """Return whether a file is seen, with what it must hold, before a time."""
    while True:
        with suppress(OSError):
            if Path(path).read_text(encoding="utf-8") == text:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def _memory_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
