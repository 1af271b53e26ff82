"""The table of test lanes: marker expressions, constraints, time limits and environments. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MARKERS_OF_NEEDS = "processes or peers or connect or vllm or ray or web or proofs or java or docker or notebook or gpu"
_LANE_MARKERS = f"{_MARKERS_OF_NEEDS} or docs or sandbox"


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
    uses_one_core: bool = False
    """Whether the lane's tests run one after another and mostly wait, so that another such lane can run beside it."""
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


_PARALLEL = ("-n", "3", "--dist", "worksteal")
"""One more than two cores: many tests wait for a sandbox, a server or a limit."""
FAST_STEP = Step(markers=f"not ({_LANE_MARKERS} or fuzz or slow)", options=_PARALLEL, is_required=True)
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
        uses_one_core=True,
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
        uses_one_core=True,
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
        uses_one_core=True,
    ),
    Lane(
        name="connect",
        steps=(Step(markers="connect", options=("tests/other_projects",)),),
        limit_s=300,
        has_own_environment=True,
        uses_one_core=True,
    ),
    Lane(
        name="notebook",
        steps=(Step(markers="notebook", options=("tests/docs",)),),
        limit_s=300,
        has_own_environment=True,
        uses_one_core=True,
    ),
    Lane(
        name="peers",
        # In their own folder: verl brings a package `scripts`, which would hide ours from other tests.
        steps=(Step(markers="peers", options=("tests/peers",)),),
        limit_s=180,
        has_own_environment=True,
        uses_one_core=True,
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
