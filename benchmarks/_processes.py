"""Benchmarks in processes of their own, with a time limit."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KEPT_CHARACTERS: Final = 4000
"""Of what a process that failed has written: the end."""


def run_until(command: Sequence[str], limit_s: float, *, output: Path, errors: Path | None = None) -> int | None:
    """Run a command of this checkout in a process group of its own, without a network for models.

    Args:
        command: the program and its arguments.
        limit_s: wall time in seconds.
        output: file for what it prints.
        errors: file for its messages; None: `output`, too.

    Returns: Its exit code; None: it was stopped at the limit, with all its children.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    with ExitStack() as held:
        printed = held.enter_context(output.open("wb"))
        messages = subprocess.STDOUT if errors is None else held.enter_context(errors.open("wb"))
        process = held.enter_context(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=printed, stderr=messages, start_new_session=True
            )
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def reason_of(code: int | None, limit_s: float, log: Path) -> str:
    """Return why a process gave no result: how it ended, and the end of what it wrote."""
    reason = f"stopped after {limit_s:.0f} s" if code is None else f"exit code {code}"
    return f"{reason}\n{log.read_text(encoding='utf-8', errors='replace')[-KEPT_CHARACTERS:]}"
