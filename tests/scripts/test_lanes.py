"""Test lanes: two that use one core run at the same time, each reports by itself, and one that takes too long ends."""

from pathlib import Path

import pytest

from scripts.lanes import running
from scripts.lanes.running import run_lanes
from scripts.lanes.table import LANES, Lane, Step

MEETS = """
import pathlib, sys, time
own, other = map(pathlib.Path, {paths!r})
own.touch()
for _ in range(600):
    if other.exists():
        break
    time.sleep(0.1)
else:
    sys.exit(1)
print("begin", own.name, flush=True)
time.sleep(0.2)
print("end", own.name, flush=True)
"""
"""Waits for the program of another lane, in place of running tests."""


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "slowness", lambda: 1.0)


def lane(name: str, code: str, *, limit_s: int = 100, uses_one_core: bool = True) -> Lane:
    """Return a lane that runs code in place of pytest."""
    steps = (Step(markers="none"),)
    return Lane(name=name, steps=steps, limit_s=limit_s, starter=("-c", code), uses_one_core=uses_one_core)


def test_lanes_of_one_core_run_at_the_same_time_and_the_output_of_each_is_in_one_piece(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    lanes = [lane("one", MEETS.format(paths=[one, two])), lane("two", MEETS.format(paths=[two, one]))]
    assert run_lanes(lanes) == 0
    printed = capfd.readouterr().out
    for name in ("one", "two"):
        limit = "limit 150 s: 100 s on two idle cores, 1.5 times as slow here"
        assert f"== lane {name}\n{limit}\nbegin {name}\nend {name}\n" in printed
        assert f"\nlane {name}: passed in " in printed
    assert printed.endswith("\n0 passed, 0 failed, 0 skipped\n")


def test_lane_that_fails_fails_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = lane("good", "print('well')", uses_one_core=False), lane("bad", "import sys; sys.exit(1)")
    assert run_lanes([bad, good]) == 1
    printed = capfd.readouterr().out
    assert "\nlane good: passed in " in printed
    assert "\nlane bad: FAILED in " in printed


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_lane_that_takes_twice_its_limit_is_stopped(num_lanes: int, capfd: pytest.CaptureFixture[str]) -> None:
    lanes = [lane(f"long{number}", "import time; time.sleep(600)", limit_s=0) for number in range(num_lanes)]
    assert run_lanes(lanes) == 1
    printed = capfd.readouterr().out
    assert printed.count("must end within 0 s on two idle cores; it was stopped.") == num_lanes
    assert printed.count("OVER ITS LIMIT") == num_lanes


@pytest.mark.parametrize("most_s, is_run", [(49, False), (51, True)])
def test_lane_of_which_half_the_limit_does_not_fit_into_the_time_is_skipped(
    most_s: int, is_run: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_lanes([lane("last", "print('run')", limit_s=100, uses_one_core=False)], most_s=most_s) == 0
    printed = capfd.readouterr().out
    assert ("\nrun\n" in printed) == is_run
    skipped = "\nlane last: skipped, it takes about 50 s here, and 49 s are left\n0 passed, 0 failed, 0 skipped\n"
    assert printed.endswith(skipped) != is_run


def test_lanes_with_their_own_environment_run_beside_one_another() -> None:
    assert {one.name for one in LANES if one.has_own_environment} <= {one.name for one in LANES if one.uses_one_core}
