"""Run test lanes: those that need nothing but the main environment, or all whose parts install.

A lane is a marker expression with its own constraints file, time limit and, where packages clash, its own environment.
Limits are stated for two idle cores; before each lane a piece of work measures by how much longer they are now.
Standard library only, so that any Python can start it:

    python scripts/test_lanes.py [--all] [--fast] [--debian] [--install] [LANE ...]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_MARKERS_OF_NEEDS = "processes or peers or connect or vllm or ray or web or proofs or java or docker or notebook or gpu"
_LANE_MARKERS = f"{_MARKERS_OF_NEEDS} or docs or sandbox"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of pytest inside a lane."""

    markers: str
    """The expression after `-m`."""
    options: tuple[str, ...] = ()
    """Further options of pytest."""
    timeout_s: int = 180
    """What one test may take on two idle cores."""
    is_required: bool = False
    """Whether finding no test is a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A set of tests and what they need."""

    name: str
    steps: tuple[Step, ...]
    limit_s: int
    """What the lane may take on two idle cores, installing not counted; elsewhere `slowness` times that. A lane that
    took longer says so; one that takes twice as long is stopped and has failed."""
    packages: tuple[str, ...] = ()
    """What the lane needs beyond the main environment."""
    has_own_environment: bool = False
    """Whether all of `constraints/NAME.txt` goes to `.venv-NAME`, which sees the main environment's packages."""
    debian: tuple[str, ...] = ()
    """Pairs `command:package` of Debian."""
    starter: tuple[str, ...] = ()
    """A script that runs pytest's command with what it needs, or says why that cannot be had: then tests skip."""

    @property
    def is_self_contained(self) -> bool:
        """Whether the main environment is all that the lane needs."""
        return not (self.requirements or self.debian or self.starter)

    @property
    def requirements(self) -> tuple[str, ...]:
        """What pip installs for the lane."""
        if self.has_own_environment:
            return ("--no-deps", f"--requirement=constraints/{self.name}.txt")
        return ("--constraint=constraints/core.txt", *self.packages) if self.packages else ()


class Counts(NamedTuple):
    """What pytest counted."""

    passed: int
    failed: int
    skipped: int

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + its for mine, its in zip(self, other, strict=True)))


_PARALLEL = ("-n", "3", "--dist", "worksteal")
"""One more than two cores: many tests wait for a sandbox, a server or a limit."""
_FAST = Step(markers=f"not ({_LANE_MARKERS} or fuzz or slow)", options=_PARALLEL, is_required=True)
_WAITING = ("-n", "3", "--dist", "loadgroup", "--maxschedchunk", "1")
"""Tests that mostly wait for programs that they start; those that share one (`xdist_group`) run in one worker."""


def _files_of(marker: str) -> tuple[str, ...]:
    """Return where tests of a marker lie, or may, so that no other test module is imported for them."""
    marks = rf"mark\.{marker}\b"
    by_env = re.search(marks, (ROOT / "tests/support/lanes.py").read_text("utf-8")) is not None
    named = re.compile(rf"{marks}|getattr\(pytest\.mark" + r"|support\.lanes" * by_env)
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if named.search(path.read_text("utf-8")))
    return tuple(path.relative_to(ROOT).as_posix() for path in files)


LANES = (
    Lane(
        name="core",
        steps=(
            Step(markers=f"not ({_LANE_MARKERS} or fuzz)", options=_PARALLEL, is_required=True),
            Step(markers="fuzz", options=("-n", "2", *_files_of("fuzz"))),
        ),
        limit_s=900,
    ),
    Lane(
        name="docs",
        steps=(
            Step(
                markers=f"docs and not ({_MARKERS_OF_NEEDS})",
                options=(*_PARALLEL, "tests/docs", "tests/examples"),
                is_required=True,
            ),
        ),
        limit_s=300,
    ),
    Lane(
        name="sandbox",
        steps=(
            Step(
                markers=f"sandbox and not ({_MARKERS_OF_NEEDS} or fuzz)",
                options=(*_PARALLEL, "tests/envgym/sandbox", "tests/envs/code"),
                is_required=True,
            ),
        ),
        limit_s=300,
    ),
    Lane(
        name="processes",
        steps=(
            Step(
                markers="processes and not web",
                options=(*_WAITING, *_files_of("processes")),
                timeout_s=600,
                is_required=True,
            ),
        ),
        limit_s=900,
    ),
    Lane(
        name="web",
        steps=(Step(markers="web", options=(*_WAITING, *_files_of("web")), timeout_s=600),),
        limit_s=900,
        packages=("playwright==1.65.2", "miniwob==1.1.0"),
        debian=("chromium:chromium",),
    ),
    Lane(
        name="proofs",
        steps=(Step(markers="proofs", options=(*_PARALLEL, "tests/envs/math")),),
        limit_s=180,
        debian=("coqtop:coq",),
    ),
    Lane(
        name="java",
        steps=(Step(markers="java", options=(*_PARALLEL, *_files_of("java"))),),
        limit_s=600,
        packages=("scienceworld==1.2.3", "textworld-express==1.1.0"),
        debian=("java:default-jre-headless",),
    ),
    Lane(
        name="peers",
        # In their own folder: verl brings a package `scripts`, which would hide ours from other tests.
        steps=(Step(markers="peers", options=("tests/peers",)),),
        limit_s=900,
        has_own_environment=True,
    ),
    Lane(
        name="connect",
        steps=(Step(markers="connect", options=("tests/other_projects",)),),
        limit_s=300,
        has_own_environment=True,
    ),
    Lane(
        name="vllm",
        # What a killed engine leaves open is reported by whoever collects it, not by the test that killed it.
        steps=(
            Step(
                markers="vllm",
                options=("-W", "ignore::ResourceWarning", *_files_of("vllm")),
                timeout_s=600,
            ),
        ),
        limit_s=900,
        has_own_environment=True,
    ),
    Lane(
        name="ray",
        # What a killed run leaves open is reported by whoever collects it, not by the test that killed it.
        steps=(
            Step(
                markers="ray",
                options=("-W", "ignore::ResourceWarning", *_files_of("ray")),
            ),
        ),
        limit_s=600,
        has_own_environment=True,
    ),
    Lane(
        name="notebook",
        steps=(Step(markers="notebook", options=("tests/docs",)),),
        limit_s=300,
        has_own_environment=True,
    ),
    Lane(
        name="docker",
        steps=(
            Step(
                markers="docker",
                options=(
                    "tests/envgym/sandbox",
                    "tests/envs/harbor",
                    "tests/envs/test_versions.py",
                    "tests/docs/test_docker.py",
                    "tests/docs/test_environments.py",
                ),
            ),
        ),
        limit_s=900,
        packages=("docker==7.2.0",),
        debian=("dockerd:docker.io", "debootstrap:debootstrap"),
        starter=("scripts/with_docker.py",),
    ),
    Lane(
        name="gpu",
        # Compilers warn of what their next version changes.
        steps=(
            Step(
                markers="gpu",
                options=("tests/benchmarks", "tests/agents/policies", "-W", "default"),
                timeout_s=300,
            ),
        ),
        limit_s=600,
    ),
)


def main() -> int:
    """Run the chosen lanes, print what each took, and end with one line of counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = ", ".join(lane.name for lane in LANES if lane.is_self_contained)
    rest = ", ".join(lane.name for lane in LANES if not lane.is_self_contained)
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"default: {own}; with --all also {rest}")
    parser.add_argument("--all", action="store_true", help="also lanes with packages or environments of their own")
    parser.add_argument("--fast", action="store_true", help="only the fast tests of the core lane")
    parser.add_argument("--debian", action="store_true", help="print the lanes' command:package pairs and stop")
    parser.add_argument("--install", action="store_true", help="install what the lanes need and run no test")
    arguments = parser.parse_args()
    if unknown := set(arguments.lanes) - {lane.name for lane in LANES}:
        parser.error(f"a lane must be one of {', '.join(x.name for x in LANES)}, got {', '.join(sorted(unknown))}")
    if arguments.debian:
        print(*(pair for lane in LANES for pair in lane.debian), sep="\n", end="")
        return 0
    chosen = arguments.lanes or [lane.name for lane in LANES if arguments.all or lane.is_self_contained]
    lanes = [lane for lane in LANES if lane.name in chosen]
    if arguments.fast:
        lanes = [Lane(name="fast", steps=(_FAST,), limit_s=300)]
    if arguments.install:
        installed = [_prepare(lane) for lane in lanes]
        return 0 if all(installed) else 1
    return _run_lanes(lanes)


def _run_lanes(lanes: list[Lane]) -> int:
    total, report, is_good = Counts(0, 0, 0), [], True
    for lane in lanes:
        print(f"\n== lane {lane.name}", flush=True)
        started = time.monotonic()
        if reason := _why_not(lane):
            report.append(f"lane {lane.name}: skipped, {reason}")
            continue
        python = _prepare(lane)
        if python is None:
            report.append(f"lane {lane.name}: skipped, {' '.join(lane.requirements)} cannot be installed (see above)")
            continue
        factor = slowness()
        limit_s = lane.limit_s * factor
        print(f"limit {limit_s:.0f} s: {lane.limit_s} s on two idle cores, {factor:.1f} times as slow here", flush=True)
        ready = time.monotonic()
        counts, is_lane_good = _run_steps(lane, python, factor)
        total, is_good = total.plus(counts), is_good and is_lane_good
        took = time.monotonic() - ready
        over = ", OVER ITS LIMIT" if took > limit_s else ""
        times = f"{took:.0f} s of {limit_s:.0f} s{over} (slowness {factor:.1f}), installed in {ready - started:.0f} s"
        report.append(f"lane {lane.name}: {'passed' if is_lane_good else 'FAILED'} in {times}")
    print("", *report, f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", sep="\n", flush=True)
    return 0 if is_good else 1


def _why_not(lane: Lane) -> str:
    if lane.starter:
        return ""  # it knows other ways
    absent = [pair.partition(":")[2] for pair in lane.debian if shutil.which(pair.partition(":")[0]) is None]
    return f"Debian packages missing: {' '.join(absent)}" if absent else ""


def _prepare(lane: Lane) -> str | None:
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
    return None if subprocess.run(install, cwd=ROOT, check=False).returncode else str(python)


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


def _run_steps(lane: Lane, python: str, factor: float) -> tuple[Counts, bool]:
    """Run a lane's steps within its time limit, times the factor; return the counts and whether all went well."""
    total, is_good = Counts(0, 0, 0), True
    begun, most_s = time.monotonic(), 2 * lane.limit_s
    for step in lane.steps:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "junit.xml"
            command = [python, *lane.starter, python] if lane.starter else [python]
            command += ["-m", "pytest", "-q", "-m", step.markers, f"--junit-xml={record}", *step.options]
            command += [f"--timeout={step.timeout_s * factor:.0f}"]
            code = _run_until(command, begun, most_s, factor)
            total = total.plus(_read_counts(record))
        if code is None:
            print(f"lane {lane.name} must end within {most_s} s on two idle cores; it was stopped.")
            return total, False
        is_good &= code == 0 or (code == _NO_TESTS_COLLECTED and not step.is_required)
    return total, is_good


def _run_until(command: list[str], begun: float, most_s: float, factor: float) -> int | None:
    """Run a command in a process group of its own; return its exit code, or None if it had to be stopped.

    It may take `most_s` from `begun`, times the factor, or times what is measured by then if that is more.
    Bytecode is kept, whatever the caller's shell says: without, every worker rewrites the assertions of every test
    module again, and every program that a test starts compiles ours.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            for known in (factor, None):
                deadline = begun + most_s * (known or slowness())
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=max(deadline - time.monotonic(), 1))
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


if __name__ == "__main__":
    sys.exit(main())
