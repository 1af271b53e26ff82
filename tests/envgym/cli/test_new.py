"""The written package installs, registers its environment, and passes its own tests and the suite."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import envgym
from envgym.cli.main import main
from envgym.cli.new import SHAPES, write_package
from envgym.conformance import CheckStatus, check_env_conformance
from envgym.errors import InvalidInput
from envgym.trainer.settings import train_settings
from envgym.wrappers import TimeLimit
from tests.support.sources import ROOT

NO_MODELS = """
[[tool.mypy.overrides]]
module = ["torch.*", "transformers.*", "jaxtyping.*"]
follow_imports = "skip"
ignore_missing_imports = true
"""
"""Laid over the project's settings: environments need no models, whose packages take mypy half a minute."""


def run(*words: str, cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_generated_package_passes_check_and_its_own_tests_once_installed(tmp_path: Path) -> None:
    folder = write_package("my_games", "dice", tmp_path, "data")
    site = tmp_path / "site"
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    installed = run(*pip, str(folder), cwd=tmp_path, path=site)
    assert installed.returncode == 0, installed.stderr
    assert (site / "my_games_dice" / "README.md").is_file(), "the card is shipped"
    assert (site / "my_games_dice" / "tasks.jsonl").is_file(), "and the tasks"
    checked = run("-m", "envgym", "check", "my_games/dice-v0", "--json", cwd=tmp_path, path=site)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (checks,) = json.loads(checked.stdout).values()
    assert [check["name"] for check in checks if check["status"] != "PASS"] == ["grader_files_pay_nothing"]
    listed = run("-m", "envgym", "list", cwd=tmp_path, path=site)
    assert "my_games/dice-v0" in listed.stdout
    assert "(from my-games-dice)" in listed.stdout
    tested = run("-m", "pytest", "-q", "-W", "error", str(folder / "tests"), cwd=folder, path=site)
    assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_used_without_installing_it(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_package("dice", "dice", tmp_path, shape)
    monkeypatch.chdir(folder)
    (spec,) = train_settings(yaml.safe_load((folder / "train.yaml").read_text())).envs
    assert spec.id == "dice/env.py:Dice"
    assert isinstance(spec.make(), TimeLimit)
    checks = check_env_conformance(lambda: envgym.make(spec.id), num_tasks=5)
    assert [check for check in checks if check.status is CheckStatus.FAIL] == []
    skipped = {check.name for check in checks if check.status is CheckStatus.SKIP}
    assert skipped <= {"grader_files_pay_nothing"}


@pytest.mark.parametrize("shape", SHAPES)
def test_generated_code_is_clean(shape: str, tmp_path: Path) -> None:
    folder = write_package("dice", "dice", tmp_path, shape)
    assert folder.name == "dice"
    for words in (["check"], ["format", "--check", "--line-length", "120"]):
        result = run("-m", "ruff", *words, ".", cwd=folder, path=folder)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_generated_code_is_typed(tmp_path: Path) -> None:
    folders = [str(write_package(f"dice_{shape}", f"dice_{shape}", tmp_path, shape)) for shape in SHAPES]
    settings = tmp_path / "pyproject.toml"
    settings.write_text((ROOT / "pyproject.toml").read_text() + NO_MODELS)
    words = ["--strict", f"--config-file={settings}", f"--cache-dir={tmp_path / 'cache'}"]
    result = run("-m", "mypy", *words, *folders, cwd=ROOT, path=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_command_writes_and_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "dice", "--into", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "envgym check dice/dice-v0" in told
    assert f"cd {tmp_path / 'dice'}\n  envgym check dice/env.py:Dice\n  envgym train train.yaml" in told
    assert "pip install -e ." in told
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        "dice/dice/README.md",
        "dice/dice/__init__.py",
        "dice/dice/env.py",
        "dice/dice/py.typed",
        "dice/pyproject.toml",
        "dice/tests/test_dice.py",
        "dice/train.yaml",
    ]
    assert not any("$" in (tmp_path / name).read_text() for name in files), "no blank of a template is left"


@pytest.mark.parametrize(
    "name", ["", "9dice", "my.dice", "class", "a/b/c", "../dice", "json", "envgym", "math/dice", "dice-v2"]
)
def test_name_unfit_for_a_package_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--into", str(tmp_path)]) == 2
    assert "must" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given, env_id",
    [
        ("my-dice", "my_dice/my_dice-v0"),
        ("MyDice", "my_dice/my_dice-v0"),
        ("My dice", "my_dice/my_dice-v0"),
        ("Games/Dice-v0", "games/dice-v0"),
        ("GPT4Quiz", "gpt4_quiz/gpt4_quiz-v0"),
    ],
)
def test_name_is_taken_as_written(given: str, env_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", given, "--into", str(tmp_path), "--shape", "tools"]) == 0
    assert f"is a package with the environment {env_id}." in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dice").mkdir()
    with pytest.raises(InvalidInput, match="folder must not exist yet"):
        write_package("dice", "dice", tmp_path, "class")
    with pytest.raises(InvalidInput, match="--into must be a folder"):
        write_package("dice", "dice", tmp_path / "missing", "class")
    assert list((tmp_path / "dice").iterdir()) == []
