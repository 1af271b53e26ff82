"""Running a command that serves beside a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def serve_retriever(*words: str, cache: Path) -> Iterator[IO[str]]:
    with serve("serve-retriever", *words, cache=cache) as printed:
        yield printed


@contextmanager
def serve(name: str, *words: str, cache: Path) -> Iterator[IO[str]]:
    """Serve on a free port until the block ends, and yield what the command prints; it must end with 0."""
    command = [sys.executable, "-m", "envgym", name, *words, "--port", "0"]
    environment = {**os.environ, "ENVGYM_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def served_url(line: str) -> str:
    return line.split(" at ")[1].split()[0].rstrip(";")
