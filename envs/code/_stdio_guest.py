"""Compiles a program and runs it on inputs, inside the sandbox; run there as a script. Standard library only.

It knows inputs only, no expected output, so whatever a program does to it gains nothing.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

MAX_SHOWN = 2000
MAX_OUTPUT = 65536
MAX_FILE = 8 * 1024**2


def run(argv: list[str], stdin: str, seconds: float) -> dict[str, Any]:  # Any: JSON
    """Run a command; return its output and how it ended."""
    with open(stdin, "rb") as given, open("stdout", "wb") as out, open("stderr", "wb") as err:
        process = subprocess.Popen(argv, stdin=given, stdout=out, stderr=err, start_new_session=True)
        try:
            code: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = "time"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {"code": code, "stdout": _read("stdout", MAX_OUTPUT), "stderr": _read("stderr", MAX_SHOWN)}


def _read(path: str, size: int) -> str:
    with open(path, "rb") as file:
        return file.read(size).decode(errors="replace")


def main() -> None:
    """Do what job.json says; print the results as JSON."""
    with open("job.json", encoding="utf-8") as file:
        job = json.load(file)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
    results: dict[str, Any] = {"compiled": None, "runs": []}
    if job["compile"] is not None:
        results["compiled"] = run(job["compile"], os.devnull, job["compile_s"])
    if results["compiled"] is None or results["compiled"]["code"] == 0:
        for number in range(job["num_inputs"]):
            results["runs"].append(run(job["run"], f"input.{number}", job["seconds"]))
            if job["stops"] and results["runs"][-1]["code"] != 0:
                break
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
