"""A package of its own: installed by pip, found by its entry point, accepted by `envgym check`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.pages import blocks_of

pytestmark = pytest.mark.docs
PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "third_party_env"
PAGE = "examples/third_party_env/README.md"
ENV_ID = "word_games/backwards-v0"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(PACKAGE, folder / "source")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "target"), "."]
    done = subprocess.run(command, cwd=folder / "source", check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(folder / "target")}


def envgym(environment: dict[str, str], *arguments: str, answer: str = "") -> str:
    command = [sys.executable, "-m", "envgym", *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, input=answer)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_run(installed: dict[str, str]) -> None:
    (block,) = blocks_of(PAGE, "bash")
    install, listed, checked, played = block.commands
    assert install == "pip install ./examples/third_party_env"  # the fixture, without an index
    assert ENV_ID in envgym(installed, *listed.split()[1:])
    report = json.loads(envgym(installed, *checked.split()[1:], "-n", "5", "--json"))
    assert '"fail"' not in json.dumps(report).lower()
    assert '"pass"' in json.dumps(report).lower()
    assert "TERMINATED after 1 turn" in envgym(installed, *played.split()[1:], answer="a word\n")


def test_train_accepts_it(installed: dict[str, str], tmp_path: Path) -> None:
    config = {
        "run": {"name": "words", "directory": str(tmp_path / "run"), "steps": 1, "trackers": []},
        "model": {"name": "tiny", "tiny": {"num_layers": 1}},
        "engine": {"device": "cpu"},
        "agent": {"name": "plain", "max_turn_tokens": 8, "max_context_tokens": 256},
        **yaml.safe_load(blocks_of(PAGE, "yaml")[0].text),
        "sft": {"episodes": 8, "batch_size": 8},
        "rollout": {"groups": 2, "group_size": 2},
        "evaluation": {"tasks": 3},
    }
    (tmp_path / "words.yaml").write_text(json.dumps(config))  # JSON is YAML
    result = json.loads(envgym(installed, "train", str(tmp_path / "words.yaml"), "--json"))
    assert Path(result["report"]).read_text().startswith("<!doctype html>")
    assert len(list((tmp_path / "run" / "evals").iterdir())) == 2  # before and after
