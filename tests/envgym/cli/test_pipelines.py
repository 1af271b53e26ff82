"""`envgym train` on phases and on rounds of self-training: what it prints, resumes, and refuses without a trace."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.runs.directory import RunDirectory
from envgym.trainer.learner.checkpoint import require_checkpoint
from tests.envgym.cli.conftest import SETTINGS
from tests.envgym.cli.test_train import refused

Command = Callable[..., tuple[int, str, str]]
Files = Callable[[], Mapping[str, bytes]]

PHASES = [
    {"name": "first", "run": {"steps": 0}, "sft": {"episodes": 4, "batch_size": 2}},
    {"name": "second", "credit": {"name": "rloo"}},
]
ROUNDS = {
    "plan": {"name": "agent_prm", "sections": {"run": {"steps": 1}}},
    "rounds": 1,
    "episodes": 32,
    "scorer": {"optim": {"epochs": 1}},
}
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pipelines"


@pytest.fixture
def phases(folder: Path) -> str:
    return write(folder, phases=PHASES)


@pytest.fixture
def rounds(folder: Path) -> str:
    return write(folder, self_training=ROUNDS)


def write(folder: Path, **sections: Any) -> str:
    run = {**SETTINGS["run"], "name": "all", "steps": 1, "trackers": []}
    (folder / "all.yaml").write_text(yaml.safe_dump({**SETTINGS, "run": run, **sections}))
    return "all.yaml"


def test_phases_train_in_turn_and_resume_as_they_are(command: Command, phases: str, folder: Path, files: Files) -> None:
    code, out, _ = command("train", phases, "--set", "phases.1.optim.lr=0.001")
    assert code == 0
    reports = ["report: runs/all/1-first/report.html", "report: runs/all/2-second/report.html"]
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("report")] == reports
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]
    assert lines[1].startswith("worlds:Vowels, held-out: 6 tasks"), "the first took no step: what it measured"
    second = lines[lines.index("second") :]
    assert [line.split()[0] for line in second[2:5]] == ["before", "after", "change"]
    config = RunDirectory.open(folder / "runs/all/2-second").config
    assert config["model"]["name"] == str(require_checkpoint(Path("runs/all/1-first")) / "model")
    assert (config["optim"]["lr"], config["credit"]["name"]) == (0.001, "rloo")
    before = files()
    code, out, _ = command("train", phases, "--set", "phases.1.optim.lr=0.001", "--resume", "--json")
    told = json.loads(out)
    assert (code, list(told)) == (0, ["first", "second"])
    assert [found["step"] for found in told["second"]["evaluations"]] == [0, 1]
    assert files() == before
    assert "run directory must be new or empty, got runs/all" in refused(command, files, "train", phases)


def test_rounds_train_a_scorer_and_a_policy_each(command: Command, rounds: str, folder: Path, files: Files) -> None:
    code, out, _ = command("train", rounds, "--json")
    told = json.loads(out)
    assert (code, list(told)) == (0, ["round 1"])
    assert told["round 1"]["directory"] == "runs/all/round-01/policy"
    assert RunDirectory.open(folder / "runs/all/round-01/scorer").config["credit"]["name"] == "agent_prm"
    before = files()
    code, out, _ = command("train", rounds, "--resume")
    assert (code, out.splitlines()[0]) == (0, "round 1")
    assert files() == before


def test_dry_runs_show_a_batch_of_each_phase_and_the_first_policy(command: Command, folder: Path, files: Files) -> None:
    write(folder, phases=PHASES)
    before = files()
    code, out, _ = command("train", "all.yaml", "--dry-run", "--json")
    told = json.loads(out)
    assert (code, list(told)) == (0, ["first", "second"])
    assert [found["episodes"] for found in told.values()] == [16, 16]
    assert files() == before
    write(folder, self_training=ROUNDS)
    code, out, _ = command("train", "all.yaml", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "round 0")
    assert not (folder / "runs").exists()


@pytest.mark.usefixtures("heeds_interrupts")
def test_stopped_pipeline_says_how_to_go_on(command: Command, phases: str, folder: Path) -> None:
    lines = "import os, signal\nfrom worlds import Vowels\nclass Stops(Vowels):\n    def respond(self, action):\n"
    (folder / "stops.py").write_text(lines + "        os.kill(os.getpid(), signal.SIGINT)\n")
    code, _, err = command("train", phases, "--set", "envs.0.id=stops:Stops")
    assert code == 130
    told = "continue with: envgym train all.yaml --set envs.0.id=stops:Stops --resume"
    assert err.splitlines()[-1] == f"interrupted; all checkpoints are saved; {told}"


@pytest.mark.parametrize(
    "sections, words, told",
    [
        ({"phases": PHASES, "self_training": ROUNDS}, (), "must have one of phases and self_training, got both"),
        ({"phases": []}, (), "phases must hold 1 or more entries"),
        ({"phases": ["first"]}, (), "phases.0 must be a mapping of keys, got first"),
        ({"phases": [{"run": 3}]}, (), "run must be a mapping of keys, got 3 (phase phase1)"),
        ({"phases": PHASES}, ("--overfit-one-batch", 3), "--overfit-one-batch must be given the settings of one run"),
        ({"self_training": {**ROUNDS, "rounds": 0}}, (), "rounds must be greater than or equal to 1, got 0"),
        ({"self_training": {"plan": "rest_mct"}}, (), "did you mean rest_mcts?"),
        ({"self_training": {"plan": {"name": "agent_prm", "kl": 1}}}, (), "settings key must be known, got kl"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(
    sections: dict[str, Any], words: tuple[object, ...], told: str, command: Command, folder: Path, files: Files
) -> None:
    write(folder, **sections)
    assert told in refused(command, files, "train", "all.yaml", *words)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_shows_a_batch(path: Path, command: Command) -> None:
    small = (
        "rollout={groups: 1, group_size: 2}",
        "model.tiny={num_layers: 1}",
        "agent={max_turn_tokens: 4, on_length: close}",
    )
    code, out, _ = command("train", path, "--dry-run", "--json", *(word for text in small for word in ("--set", text)))
    assert code == 0
    assert all(found["episodes"] == 2 for found in json.loads(out).values())
