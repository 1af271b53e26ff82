"""Tests of a group run in one process, whatever process runs the tests beside them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.sources import ROOT

ALONE = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    time.sleep(0.05)
    with open("workers", "a") as file:
        print(__name__, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""
GROUPED = f'{ALONE}\npytestmark = [pytest.mark.xdist_group("programs")]\n'


def test_tests_of_a_group_run_in_one_process_and_others_in_several(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    for name, source in {"test_first": GROUPED, "test_second": GROUPED, "test_alone": ALONE}.items():
        (tmp_path / f"{name}.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.scheduling", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--dist", "loadgroup", "--import-mode=importlib"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    rows = [line.split() for line in (tmp_path / "workers").read_text().splitlines()]
    assert len(rows) == 18
    (shared,) = {worker for name, worker in rows if name != "test_alone"}
    assert {worker for _, worker in rows} == {"gw0", "gw1"}, f"all others waited for {shared}"
