"""Signals to a command: one sentence, the exit code of a signal, no process left, and a run that goes on unharmed.

Each test starts the program, from nothing or in a fork that has its imports. Its environment or its credit stops at a
gate: it says so on standard output, and goes on when standard input is closed, which is after the signal was sent.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from envgym.sandbox import make_sandbox, why_unusable
from tests.envgym.cli.conftest import SETTINGS, WORLD
from tests.support.programs import Program
from tests.support.sources import ROOT

pytestmark = pytest.mark.slow
Command = Callable[..., tuple[int, str, str]]
Started = subprocess.Popen[str] | Program

GATED = """
import os
import sys
from pathlib import Path

import envgym
from envgym.sandbox import make_sandbox
from envgym.trainer.methods.credit.outcome import Grpo
from worlds import Vowels

def gate(moment, step=0):
    if os.environ.get("GATE") == moment and Path(f"runs/vowels/checkpoints/step-{step:06d}").exists() >= (step > 0):
        print("at the gate", flush=True)
        sys.stdin.read()

class GatedVowels(Vowels):
    def respond(self, action):
        gate("sample", 1)
        gate("evaluate", 2)
        return super().respond(action)

class GatedGrpo(Grpo):
    def __call__(self, group):
        gate("learn", 1)
        return super().__call__(group)

    def save(self, folder):
        (folder / "state.txt").write_text("half of it")
        gate("save", 1)

    def load(self, folder):
        pass

class Sandboxed(Vowels):
    def begin(self, task):
        make_sandbox().run(["true"])
        gate("sandbox")
        return super().begin(task)

gate("import")
"""
INTERRUPTED = {
    "import": "nothing was written",
    "sample": "the checkpoint of step 1 is saved; continue with: envgym train runs/vowels --resume",
    "learn": "the checkpoint of step 1 is saved; continue with: envgym train runs/vowels --resume",
    "save": "the checkpoint of step 1 is saved; continue with: envgym train runs/vowels --resume",
    "evaluate": "the checkpoint of step 2 is saved; continue with: envgym train runs/vowels --resume",
}
"""Where the run stands -> what the interrupt says."""
FROM_NOTHING = {"import", "sandbox"}
"""Where the program is a real `python -m envgym`; elsewhere it is a fork, which takes no seconds to import."""


def prepare(folder: Path) -> None:
    settings = {**SETTINGS, "envs": [{"id": "gated:GatedVowels"}], "credit": {"name": "gated:GatedGrpo"}}
    (folder / "worlds.py").write_text(WORLD)
    (folder / "gated.py").write_text(GATED)
    (folder / "gated.yaml").write_text(yaml.safe_dump(settings))


def results(folder: Path) -> list[dict[str, Any]]:
    run = RunDirectory.open(folder / "runs/vowels")
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("time/", "speed/", "journal/"))} for row in run.metrics()
    ]
    return rows + [{key: record[key] for key in ("step", "label", "rewards")} for record in run.evals()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of the run of all tests here, whole."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    prepare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        assert main(["train", "gated.yaml"]) == 0
    return results(folder)


@contextmanager
def at_gate(moment: str, *words: str) -> Iterator[Started]:
    """Start `envgym WORDS`, in a process group of its own, and wait until it is at a gate."""
    environment = {**os.environ, "GATE": moment, "PYTHONPATH": str(ROOT)}
    pipe, arguments = subprocess.PIPE, ["-m", "envgym", *words]
    process: Started
    if moment in FROM_NOTHING:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, process_group=0,
        )  # fmt: skip
    else:
        process = Program(arguments, env=environment)
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "at the gate\n":
                    break
            else:
                pytest.fail(f"it ended before: {process.communicate()[1]}")
            yield process
        finally:
            process.kill()


def outcome(process: Started) -> tuple[int | None, str]:
    """Open the gate and return the exit code and the last line of standard error, in all of which is no traceback."""
    _, err = process.communicate()
    assert "Traceback" not in err, err
    return process.returncode, err.splitlines()[-1]


def descendants(process: int) -> list[int]:
    """Return the ids of the processes that a process has started, and that those have."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        except OSError:  # it has just ended
            continue
    children = parents.get(process, [])
    return children + [other for child in children for other in descendants(child)]


@pytest.fixture
def gated(folder: Path, heeds_interrupts: None) -> Path:
    del heeds_interrupts  # children do so too then
    prepare(folder)
    return folder


@pytest.mark.parametrize("moment", INTERRUPTED)
def test_interrupted_run_says_what_is_saved_and_goes_on_to_the_same_results(
    moment: str, gated: Path, command: Command, uninterrupted: list[dict[str, Any]]
) -> None:
    number = signal.SIGTERM if moment == "evaluate" else signal.SIGINT  # as a cluster sends
    with at_gate(moment, "train", "gated.yaml") as process:
        os.killpg(process.pid, number)
        assert outcome(process) == (128 + number, f"interrupted; {INTERRUPTED[moment]}")
    run = gated / "runs/vowels"
    drafts = [path.name for path in run.rglob(".*") if path.name != ".lock"] if run.exists() else []
    assert set(drafts) <= {".draft"}, "of a checkpoint, which the next one replaces"
    code, _, err = command("train", "gated.yaml", *(("--resume",) if run.exists() else ()))
    assert code == 0, err
    assert results(gated) == uninterrupted


@pytest.mark.usefixtures("gated")
def test_second_interrupt_ends_a_run_that_waits_for_its_environment() -> None:
    with at_gate("sample", "train", "gated.yaml") as process:
        while process.poll() is None:  # signals that come too fast are one
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.01)
        assert outcome(process) == (130, f"interrupted; {INTERRUPTED['sample']}")


@pytest.mark.usefixtures("gated")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_check_leaves_no_sandbox(number: signal.Signals) -> None:
    if (reason := why_unusable(make_sandbox())) is not None:
        pytest.skip(reason)
    with at_gate("sandbox", "check", "gated:Sandboxed") as process:
        started = descendants(process.pid)
        assert started, "the sandbox's launcher"
        os.killpg(process.pid, number)
        told = "interrupted; 0 of 1 environments were checked"
        assert outcome(process) == (128 + number, told)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
