"""The host's side of the launcher: one per process, shared by all threads, started when the first sandbox is."""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.errors import ToolInfraFailure
from envgym.sandbox._launcher import MAX_REQUEST

START_S = 60.0
_SCRIPT = Path(__file__).with_name("_launcher.py")

Argument = str | tuple[str, int]
"""An option, or ("fd", i) for the number of the i-th descriptor sent along."""


Root = Mapping[str, Any]  # becomes JSON
"""What the launcher's own root holds; see `_launcher`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    bwrap: str
    """Its path inside the launcher's root."""
    options: Sequence[Argument]
    argv: Sequence[str]
    """The program."""
    limits: Sequence[tuple[int, int]]
    """The kernel's limits on the program: kind, value."""


class LauncherClient:
    """Starts programs from a small process; see `_launcher`."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_enclosed = False
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def is_enclosed(self) -> bool:
        """Tell whether the launcher has a root of its own. Raises: ToolInfraFailure: it cannot be started."""
        with self._lock:
            self._started()
            return self._is_enclosed

    def start(self, order: LaunchRequest, descriptors: Sequence[int]) -> None:
        """Start bwrap; see `_launcher` for the descriptors. Raises: ToolInfraFailure: the launcher is dead."""
        message = json.dumps({name: getattr(order, name) for name in LaunchRequest.__slots__}).encode()
        if len(message) > MAX_REQUEST:
            must, do = f"be at most {MAX_REQUEST} bytes", "put long arguments into a file"
            raise ToolInfraFailure.of("command", must, len(message), where="sandbox", do=do)
        with self._lock:
            try:
                socket.send_fds(self._started(), [message], descriptors)
            except OSError:  # it has just died, and has started nothing
                self._stop()
                socket.send_fds(self._started(), [message], descriptors)

    def _started(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._stop()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.settimeout(START_S)
        argv = [sys.executable, "-I", "-S", str(_SCRIPT), str(there.fileno()), json.dumps(self._root)]
        with there:
            self._process = subprocess.Popen(
                argv,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which ends that one
            )
        self._control = here
        try:
            ready = json.loads(here.recv(MAX_REQUEST) or b'{"failed": "it ended at once"}')
        except OSError as error:
            ready = {"failed": str(error)}
        if "failed" in ready:
            self._stop()
            got, do = ready["failed"], "see whether this account may make namespaces"
            raise ToolInfraFailure.of("sandbox launcher", "be able to serve", got, where="bwrap", do=do)
        self._is_enclosed = ready["enclosed"]
        return here

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def close(self) -> None:
        """End the process, and with it all that it started; a later call starts it again."""
        with self._lock:
            self._stop()

    def _forget(self) -> None:
        """Start afresh in a forked child: the process is the parent's."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0
        self._control = self._process = None
