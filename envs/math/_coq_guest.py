"""What drives Coq inside the sandbox; sent there as text, standard library only.

Coq runs with its prompt for editors, which tells the number of the state after each sentence. Nothing here judges what
Coq says.
"""

import json
import os
import subprocess
import time

END = b"</prompt>"
MAX_TEXT = 20_000
"""Bytes of one reply that are kept, besides its end."""
_CHUNK = 65536
_MEMORY = "s=4M,o=200"
"""Words that are collected at a time, and waste in percent; by itself Coq takes three times as much memory."""


class Coq:
    """A running Coq."""

    def __init__(self, argv: list[str]) -> None:
        """Start it; it finds its plug-ins by a file that lies in /etc, which sandboxes have not."""
        with open("findlib.conf", "w", encoding="ascii") as file:
            file.write('path="/usr/lib/ocaml:/usr/local/lib/ocaml"\n')
        environment = {**os.environ, "OCAMLFIND_CONF": os.path.abspath("findlib.conf"), "OCAMLRUNPARAM": _MEMORY}
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=environment,
        )

    def answer(self, job: str) -> str:
        """Say sentences one after another; return as JSON what is printed up to the prompt after each, and the seconds
        of processor time that Coq took.

        The first reply is the greeting where `job` is an empty list.
        """
        sentences = json.loads(job)
        before_s = self._cpu_s()
        replies = [self._said(sentence) for sentence in sentences or [None]]
        return json.dumps({"replies": replies, "cpu_s": self._cpu_s() - before_s})

    def _cpu_s(self) -> float:
        """Return the processor time of Coq so far, by the kernel's clock of its process; 0 after its end."""
        try:
            return time.clock_gettime((~self._process.pid << 3) | 2)
        except OSError:
            return 0.0

    def _said(self, sentence: str | None) -> str:
        """Say a sentence; where Coq has ended, the reply has no prompt."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if sentence is not None:
                self._process.stdin.write(sentence.encode() + b"\n")
            head, tail = b"", b""
            while not tail.endswith(END):
                chunk = os.read(self._process.stdout.fileno(), _CHUNK)
                if not chunk:
                    tail += f"\nended with {self._process.wait()}".encode()
                    break
                tail += chunk
                if len(tail) > 2 * MAX_TEXT:
                    head = head or tail[:MAX_TEXT] + b" ...\n"
                    tail = tail[-MAX_TEXT:]
        except BrokenPipeError:
            return f"ended with {self._process.wait()}"
        return (head + tail[-MAX_TEXT:] if head else tail).decode(errors="replace")
