"""A bash of the guest that runs one command after the other and keeps its state. Standard library only.

Commands reach it on its standard input, and are evaluated with an empty one. It tells the end of a command on a
descriptor of its own that commands do not have, with a word that is drawn for each command and that it reads only after
the command: no output can be taken for the end. Code that a shell evaluates can still misreport its own end.
"""

import fcntl
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress

from envgym.sandbox.machines._guest_processes import WATCHED, Rules, UserIds, spawn

_CONTROL = 250
_MAX_LINE = 200


class Shell:
    """One shell; `output` and `control` can be polled."""

    def __init__(self, env: Mapping[str, str], workdir: str, user: UserIds, rules: Rules) -> None:
        """Start it. Raises: BlockingIOError: no further process may be made."""
        stdin, self._orders = os.pipe2(os.O_CLOEXEC)
        self.output, output = os.pipe2(os.O_CLOEXEC)
        self.control, control = os.pipe2(os.O_CLOEXEC)
        argv = ["bash", "--noprofile", "--norc"]
        streams = {0: stdin, 1: output, 2: output, _CONTROL: control}
        try:
            self.pid = spawn(argv, env, workdir, user, streams, rules)
        except BlockingIOError:
            for descriptor in (self._orders, self.output, self.control):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (stdin, output, control):
                os.close(descriptor)
        for descriptor in (self._orders, self.output, self.control):
            os.set_blocking(descriptor, False)
        with suppress(OSError):  # more is sent in parts
            fcntl.fcntl(self._orders, fcntl.F_SETPIPE_SZ, 1 << 20)
        self.is_heard = self.is_connected = True
        """Whether the ends of `output` and of `control` that it writes are open."""
        self.code: int | None = None
        """Exit code of the last command; None while it runs."""
        self._last_code, self._word, self._buffer, self._unsent = 0, "", b"", memoryview(b"")

    def send(self, command: str) -> None:
        """Let it run a command, once the one before has ended."""
        self.code, self._word = None, secrets.token_hex(16)
        status = f"(exit {self._last_code})\n" if self._last_code else ""
        quoted = (status + command).replace("'", "'\\''")
        lines = f"builtin eval '{quoted}' </dev/null {_CONTROL}>&-\n"
        lines += f'builtin printf "%s %s\\n" {self._word} "$?" >&{_CONTROL}\n'
        self._unsent = memoryview(lines.encode("utf-8", "surrogateescape"))
        self.pump()

    def is_idle(self) -> bool:
        """Return whether the last command has ended, or the shell itself."""
        self.pump()
        return self.code is not None or WATCHED[self.pid] is not None

    def pump(self) -> None:
        """Send what it has not read yet, and read whether the command has ended."""
        with suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self._orders, self._unsent) :]
        with suppress(BlockingIOError):
            while self.is_connected:
                data = os.read(self.control, 4096)
                self.is_connected = data != b""
                self._buffer += data
        *lines, self._buffer = self._buffer[-4 * _MAX_LINE :].split(b"\n")
        for line in lines:
            word, _, code = line.decode(errors="replace").partition(" ")
            if secrets.compare_digest(word.encode(), self._word.encode()) and code.isdecimal() and len(code) < 4:
                self.code = self._last_code = int(code)

    def close(self) -> None:
        """Hang up, at which it ends unless it runs something; `output` is the caller's to close."""
        os.close(self._orders)
        os.close(self.control)
