"""What holds the server's process inside the sandbox; sent there as text, standard library only.

It starts the server, hands it messages, and returns what the server writes. It reads none of it.
"""

import json
import os
import subprocess
import sys


class Relay:
    """A running server, with its standard input and output."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-E", "-S", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )

    def exchange(self, line: str, number: object) -> str:
        """Hand over a message; return the lines that the server writes up to the response with the id `number`.

        A message without id has no response. Raises: EOFError: the server has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        lines: list[str] = []
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
            while number is not None and (not lines or json.loads(lines[-1]).get("id") != number):
                answer = self._process.stdout.readline()
                if not answer:
                    raise EOFError(f"the server ended with {self._process.wait()}")
                lines.append(answer.decode())
        except BrokenPipeError:
            raise EOFError(f"the server ended with {self._process.wait()}") from None
        return "".join(lines)
