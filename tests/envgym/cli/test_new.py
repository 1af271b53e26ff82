"""The written package installs, registers its environment, and passes its own tests and the suite."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.cli.main import main
from envgym.cli.new import write_package
from envgym.errors import InvalidInput
from tests.support.sources import ROOT


def run(*words: str, cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_generated_package_passes_check_and_its_own_tests_once_installed(tmp_path: Path) -> None:
    folder = write_package("my_games", "dice", tmp_path)
    site = tmp_path / "site"
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    installed = run(*pip, str(folder), cwd=tmp_path, path=site)
    assert installed.returncode == 0, installed.stderr
    assert (site / "my_games_dice" / "README.md").is_file(), "the card is shipped"
    checked = run("-m", "envgym", "check", "my_games/dice-v0", "--json", cwd=tmp_path, path=site)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (checks,) = json.loads(checked.stdout).values()
    assert [check["name"] for check in checks if check["status"] != "PASS"] == ["grader_files_pay_nothing"]
    listed = run("-m", "envgym", "list", cwd=tmp_path, path=site)
    assert "my_games/dice-v0" in listed.stdout
    assert "(from my-games-dice)" in listed.stdout
    tested = run("-m", "pytest", "-q", "-W", "error", str(folder / "tests"), cwd=folder, path=site)
    assert tested.returncode == 0, tested.stdout


def test_generated_code_is_clean(tmp_path: Path) -> None:
    folder = write_package("dice", "dice", tmp_path)
    assert folder.name == "dice"
    for words in (["check"], ["format", "--check", "--line-length", "120"]):
        result = run("-m", "ruff", *words, ".", cwd=folder, path=folder)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_generated_code_is_typed(tmp_path: Path) -> None:
    folder = write_package("dice", "dice", tmp_path)
    result = run("-m", "mypy", "--strict", str(folder), cwd=ROOT, path=ROOT)  # with the project's own cache
    assert result.returncode == 0, result.stdout + result.stderr


def test_command_writes_and_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "dice", "--into", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "envgym check dice/dice-v0" in told
    assert f"pip install -e {tmp_path / 'dice'}" in told
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        "dice/dice/README.md",
        "dice/dice/__init__.py",
        "dice/dice/env.py",
        "dice/dice/py.typed",
        "dice/pyproject.toml",
        "dice/tests/test_dice.py",
    ]
    assert not any("$" in (tmp_path / name).read_text() for name in files), "no blank of a template is left"


@pytest.mark.parametrize(
    "name", ["", "9dice", "my-dice", "Dice", "class", "a/b/c", "../dice", "json", "envgym", "math/dice"]
)
def test_name_that_cannot_name_a_package_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "--into", str(tmp_path)]) == 2
    assert "must" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dice").mkdir()
    with pytest.raises(InvalidInput, match="folder must not exist yet"):
        write_package("dice", "dice", tmp_path)
    with pytest.raises(InvalidInput, match="--into must be a folder"):
        write_package("dice", "dice", tmp_path / "missing")
    assert list((tmp_path / "dice").iterdir()) == []
