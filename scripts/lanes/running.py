"""Running test lanes: installs what a lane needs, runs its steps within limits, and counts. Standard library only."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from scripts.lanes.table import ROOT, Lane

_NO_TESTS_COLLECTED = 5
_WORK = """
import hashlib, json
total = 0
for index in range(120_000):
    row = {"index": index, "text": str(index) * 3}
    total += len(json.dumps(row)) + sum(map(ord, row["text"][:4]))
hashlib.sha256(bytes(20_000_000)).digest()
"""
_WORK_S = 0.45
"""What two processes that do the work at the same time take on two idle cores of the machine of the limits."""
_SLOWNESS_IN_PAIRS = 1.5
"""Least slowness that the limits of a lane allow for while another lane runs."""
_is_stopped = threading.Event()
"""Set when all running lanes have to end."""


class Counts(NamedTuple):
    """What pytest counted."""

    passed: int
    failed: int
    skipped: int

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + its for mine, its in zip(self, other, strict=True)))


class LaneResult(NamedTuple):
    """What a lane came to."""

    line: str
    """For the report at the end."""
    counts: Counts = Counts(0, 0, 0)
    is_good: bool = True


def run_lanes(lanes: list[Lane], *, most_s: float = math.inf) -> int:
    """Run lanes, print what each took and one line of counts at the end; return the exit code.

    Lanes that use one core run after the other lanes, two of them at the same time.

    Args:
        lanes: in their order.
        most_s: what all may take; a lane is skipped if half of its limit, its usual time, does not fit into the rest.
    """
    end_at = time.monotonic() + most_s
    one_core = [lane for lane in lanes if lane.uses_one_core]
    if len(one_core) < 2:
        one_core = []
    results = [_run_lane(lane, partial(prepare, lane), end_at) for lane in lanes if lane not in one_core]
    results += _run_in_pairs(one_core, end_at) if one_core else []
    total = Counts(*map(sum, zip(*(result.counts for result in results), strict=True)))
    lines = [result.line for result in results]
    print("", *lines, f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", sep="\n", flush=True)
    return 0 if all(result.is_good for result in results) else 1


def _run_in_pairs(lanes: list[Lane], end_at: float) -> list[LaneResult]:
    """Run lanes two at the same time, and print the output of each when the lane ends."""
    print(f"\n== lanes {', '.join(lane.name for lane in lanes)}: two at the same time", flush=True)
    # Now, while no test of another lane uses the main environment.
    prepared = {lane.name: prepare(lane) for lane in lanes if not lane.has_own_environment}
    printing = threading.Lock()

    def run(lane: Lane) -> LaneResult:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            try:
                install = partial(prepared.get, lane.name) if lane.name in prepared else partial(prepare, lane, output)
                return _run_lane(lane, install, end_at, output, least_slowness=_SLOWNESS_IN_PAIRS)
            finally:
                output.seek(0)
                with printing:
                    shutil.copyfileobj(output, sys.stdout)
                    sys.stdout.flush()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, lane) for lane in lanes]
        try:
            return [future.result() for future in futures]
        except BaseException:  # such as an interrupt, which reaches only this thread
            pool.shutdown(wait=False, cancel_futures=True)
            _is_stopped.set()
            raise


def _run_lane(
    lane: Lane,
    install: Callable[[], str | None],
    end_at: float,
    output: IO[str] | None = None,
    *,
    least_slowness: float = 1.0,
) -> LaneResult:
    """Run one lane with the Python that `install` returns; its output goes to a file, or to this program's own."""
    print(f"\n== lane {lane.name}", file=output, flush=True)
    started = time.monotonic()
    if reason := _why_not(lane):
        return LaneResult(f"lane {lane.name}: skipped, {reason}")
    usual_s, left_s = lane.limit_s / 2 * max(min(slowness() for _ in range(3)), least_slowness), end_at - started
    if usual_s > left_s:
        return LaneResult(
            f"lane {lane.name}: skipped, it takes about {usual_s:.0f} s here, and {left_s:.0f} s are left"
        )
    python = install()
    if python is None:
        packages = " ".join(lane.requirements)
        return LaneResult(f"lane {lane.name}: skipped, {packages} cannot be installed (see above)")
    factor = max(slowness(), least_slowness)
    limit_s = lane.limit_s * factor
    limit = f"limit {limit_s:.0f} s: {lane.limit_s} s on two idle cores, {factor:.1f} times as slow here"
    print(limit, file=output, flush=True)
    ready = time.monotonic()
    counts, is_good = _run_steps(lane, python, factor, output)
    took = time.monotonic() - ready
    over = ", OVER ITS LIMIT" if took > limit_s else ""
    times = f"{took:.0f} s of {limit_s:.0f} s{over} (slowness {factor:.1f}), installed in {ready - started:.0f} s"
    return LaneResult(f"lane {lane.name}: {'passed' if is_good else 'FAILED'} in {times}", counts, is_good)


def _why_not(lane: Lane) -> str:
    if lane.starter:
        return ""  # it knows other ways
    absent = [pair.partition(":")[2] for pair in lane.debian if shutil.which(pair.partition(":")[0]) is None]
    return f"Debian packages missing: {' '.join(absent)}" if absent else ""


def prepare(lane: Lane, output: IO[str] | None = None) -> str | None:
    """Install what a lane needs; return the Python that runs it, or None if a package cannot be installed."""
    python = Path(sys.executable)
    if not lane.requirements:
        return str(python)
    if lane.has_own_environment:
        folder = ROOT / f".venv-{lane.name}"
        python = folder / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        _link_environment(python)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *lane.requirements]
    result = subprocess.run(install, cwd=ROOT, check=False, stdout=output, stderr=output and subprocess.STDOUT)
    return None if result.returncode else str(python)


def _link_environment(python: Path) -> None:
    """Let another environment see this one's packages, so that torch is not installed twice."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    here, there = (
        Path(subprocess.run([exe, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
        for exe in (sys.executable, python)
    )
    (there / "_main_environment.pth").write_text(f"import site; site.addsitedir({str(here)!r})\n")


def slowness() -> float:
    """Return how many times longer the work takes now than on the machine of the limits; at least 1."""
    begun = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-I", "-c", _WORK]) for _ in range(2)]:
        process.wait()
    return max((time.monotonic() - begun) / _WORK_S, 1.0)


def _run_steps(lane: Lane, python: str, factor: float, output: IO[str] | None) -> tuple[Counts, bool]:
    """Run a lane's steps within its time limit, times the factor; return the counts and whether all went well."""
    total, is_good = Counts(0, 0, 0), True
    begun, most_s = time.monotonic(), 2 * lane.limit_s
    for step in lane.steps:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "junit.xml"
            command = [python, *lane.starter, python] if lane.starter else [python]
            command += ["-m", "pytest", "-q", "-m", step.markers, f"--junit-xml={record}", *step.options]
            command += [f"--timeout={step.timeout_s * factor:.0f}"]
            code = _run_until(command, begun, most_s, factor, output)
            total = total.plus(_read_counts(record))
        if code is None:
            print(f"lane {lane.name} must end within {most_s} s on two idle cores; it was stopped.", file=output)
            return total, False
        is_good &= code == 0 or (code == _NO_TESTS_COLLECTED and not step.is_required)
    return total, is_good


def _run_until(command: list[str], begun: float, most_s: float, factor: float, output: IO[str] | None) -> int | None:
    """Run a command in a process group of its own; return its exit code, or None if it had to be stopped.

    It may take `most_s` from `begun`, times the factor, or times what is measured by then if that is more.
    Bytecode is kept, whatever the caller's shell says: without, every worker rewrites the assertions of every test
    module again, and every program that a test starts compiles ours.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    stderr = output and subprocess.STDOUT
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=output, stderr=stderr, start_new_session=True
    ) as process:
        try:
            deadline, is_measured_again = begun + most_s * factor, False
            while not _is_stopped.is_set():
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=1)
                if time.monotonic() > deadline:
                    if is_measured_again:
                        return None
                    deadline, is_measured_again = begun + most_s * slowness(), True
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _read_counts(record: Path) -> Counts:
    if not record.exists():
        return Counts(0, 0, 0)
    passed = failed = skipped = 0
    for suite in ET.parse(record).getroot().iter("testsuite"):
        tests, errors, failures, skips = (int(suite.get(key, 0)) for key in ("tests", "errors", "failures", "skipped"))
        failed += errors + failures
        skipped += skips
        passed += tests - errors - failures - skips
    return Counts(passed, failed, skipped)
