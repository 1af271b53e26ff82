"""A package of its own: installed by pip, found by its entry point, accepted by `envgym check`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "third_party_env"
ENV_ID = "word_games/backwards-v0"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the package into a folder and return an environment that finds it there."""
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(PACKAGE, folder / "source")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "target"), "."]
    done = subprocess.run(command, cwd=folder / "source", check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(folder / "target")}


def envgym(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "envgym", *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_entry_point_is_listed(installed: dict[str, str]) -> None:
    assert ENV_ID in envgym(installed, "list")


def test_check_accepts_it(installed: dict[str, str]) -> None:
    report = json.loads(envgym(installed, "check", ENV_ID, "-n", "5", "--json"))
    assert '"fail"' not in json.dumps(report).lower()
    assert '"pass"' in json.dumps(report).lower()


def test_train_accepts_it(installed: dict[str, str], tmp_path: Path) -> None:
    config = {
        "run": {"name": "words", "directory": str(tmp_path / "run"), "steps": 1, "trackers": []},
        "model": {"name": "tiny", "tiny": {"num_layers": 1}},
        "engine": {"device": "cpu"},
        "agent": {"name": "plain", "max_turn_tokens": 8, "max_context_tokens": 256},
        "envs": [{"id": ENV_ID}],
        "sft": {"episodes": 8, "batch_size": 8},
        "rollout": {"groups": 2, "group_size": 2},
        "evaluation": {"tasks": 3},
    }
    (tmp_path / "words.yaml").write_text(json.dumps(config))  # JSON is YAML
    result = json.loads(envgym(installed, "train", str(tmp_path / "words.yaml"), "--json"))
    assert Path(result["report"]).read_text().startswith("<!doctype html>")
    assert len(list((tmp_path / "run" / "evals").iterdir())) == 2  # before and after
