"""Instances in the form of SWE-bench: read, refused, and played on a small repository of the test's own."""

import json
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tasks import Split
from envgym.core.turns import Invalid, Scored
from envgym.envs.code._harbor_settings import SweSettings
from envgym.envs.code._harbor_tasks import load_instances
from envgym.envs.code.harbor import Harbor
from envgym.errors import InvalidInput
from tests.envs.harbor.conftest import Begin
from tests.support.containers import bash, hand_in, solve

CODE = "def double(number):\n    return number + number + 1\n\n\ndef half(number):\n    return number // 2\n"
TESTS = """import unittest

from calc import half


class TestHalf(unittest.TestCase):
    def test_half(self):
        self.assertEqual(half(5), 2)
"""
NEW_TESTS = TESTS.replace("import half", "import double, half") + (
    "\n    def test_double(self):\n        self.assertEqual(double(4), 8)\n"
)
ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": "/usr/bin:/bin"}
ENV |= {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, env=ENV, check=True, capture_output=True, text=True).stdout


def make_instance(root: Path) -> dict[str, Any]:
    """Make a repository and the context of its image below `root`; return the row of an instance."""
    repo = root / "images" / "own__calc-1" / "repo"
    (repo / "tests").mkdir(parents=True)
    for name, text in {"calc.py": CODE, "tests/__init__.py": "", "tests/test_calc.py": TESTS}.items():
        (repo / name).write_text(text)
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "begin")
    commit = git(repo, "rev-parse", "HEAD").strip()
    patches = []
    for name, text in {"calc.py": CODE.replace(" + 1", ""), "tests/test_calc.py": NEW_TESTS}.items():
        (repo / name).write_text(text)
        patches.append(git(repo, "diff"))
        git(repo, "checkout", "-q", ".")
    git(repo, "tag", "first")
    (repo / "later.txt").write_text("x")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "later")
    git(repo, "tag", "-a", "-m", "later", "second")
    git(repo, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(repo, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(repo, "remote", "add", "origin", "/nowhere")
    (repo / ".git" / "FETCH_HEAD").write_text(git(repo, "rev-parse", "HEAD"))
    dockerfile = "FROM envgym-sandbox\nUSER root\nCOPY repo /testbed\nWORKDIR /testbed\n"
    (repo.parent / "Dockerfile").write_text(dockerfile)
    return {
        "instance_id": "own__calc-1",
        "repo": "own/calc",
        "base_commit": commit,
        "problem_statement": "`double(4)` must be 8.",
        "patch": patches[0],
        "test_patch": patches[1],
        "FAIL_TO_PASS": json.dumps(["tests.test_calc.TestHalf.test_double"]),
        "PASS_TO_PASS": ["tests.test_calc.TestHalf.test_half"],
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swe")
    row = make_instance(folder)
    (folder / "test.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def settings_of(root: Path) -> Mapping[str, Any]:
    return {
        "instances": {"test": str(root / "test.jsonl")},
        "contexts": str(root / "images" / "{row}"),
        "runner": "unittest",
        "timeout_s": 60,
    }


# ---- reading


def test_an_instance_is_a_task_in_a_container(root: Path) -> None:
    supply = load_instances(SweSettings(**settings_of(root)), None, 0)
    task = supply.tasks.task(Split.TEST, 0)
    work = supply.find(task)
    assert (task.id, work.context) == ("own__calc-1", root / "images" / "own__calc-1")
    assert work.instruction == "The repository own/calc is in /testbed. Resolve this issue.\n\n`double(4)` must be 8."
    assert (work.own.verification, work.own.keep, work.excluded) == ("fresh", ("/testbed",), (".git",))
    named = SweSettings(instances={"test": str(root / "test.jsonl")})
    image = load_instances(named, None, 0).find(task).image
    assert image == "swebench/sweb.eval.x86_64.own_1776_calc-1:latest"


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("base_commit", "main", "base_commit must be 7 to 40 hexadecimal digits, got main"),
        ("patch", "no diff", "patch must be a unified diff, got no diff"),
        ("test_patch", "  ", "test_patch must be a text"),
        ("FAIL_TO_PASS", [], "FAIL_TO_PASS must name tests that are not in PASS_TO_PASS, got []"),
        ("PASS_TO_PASS", "[1]", "PASS_TO_PASS must be a list of names of tests"),
        ("PASS_TO_PASS", "[", "PASS_TO_PASS must be a list of names of tests"),
    ],
)
def test_a_wrong_field_is_one_sentence_that_names_the_instance(
    root: Path, tmp_path: Path, field: str, value: object, sentence: str
) -> None:
    row = json.loads((root / "test.jsonl").read_text()) | {field: value}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InvalidInput, match=re.escape(sentence)) as error:
        load_instances(SweSettings(instances={"test": str(tmp_path / "rows.jsonl")}), None, 0)
    assert "instance own__calc-1" in str(error.value)


# ---- playing


def begun(begin: Begin, root: Path) -> Harbor:
    return begin(swe=settings_of(root))


@pytest.mark.docker
def test_the_reference_is_paid_and_no_work_and_wrong_work_are_not(begin: Begin, root: Path) -> None:
    assert solve(begun(begin, root)) == Scored(
        value=1.0, components={"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0}
    )
    assert hand_in(begun(begin, root)) == Scored(
        value=0.0, components={"reward": 0.0, "fail_to_pass": 0.0, "pass_to_pass": 1.0}
    )
    env = begun(begin, root)
    assert bash(env, "pwd; ls; git log --format=%s | cat") == "/testbed\ncalc.py\ntests\nbegin"
    assert bash(env, "git log --all --format=%s; git reflog --all; git tag; git fsck --unreachable") == "begin\nfirst"
    assert bash(env, "git cat-file --batch-all-objects --batch-check | grep -c commit") == "1"
    assert bash(env, "ls -d .git/*HEAD; git remote") == ".git/HEAD"
    bash(env, "echo 'def double(n): return 2 * n\ndef half(n): return 0' > calc.py")
    assert hand_in(env) == Scored(value=0.0, components={"reward": 0.0, "fail_to_pass": 1.0, "pass_to_pass": 0.0})


ATTACKS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))["repository"]


@pytest.mark.docker
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_tests_of_a_repository_get_nothing(begin: Begin, root: Path, name: str) -> None:
    env = begun(begin, root)
    bash(env, ATTACKS[name])
    reward = hand_in(env)
    assert isinstance(reward, Scored), reward
    assert reward.value == 0.0


@pytest.mark.docker
def test_a_test_patch_that_does_not_fit_makes_the_reward_invalid(begin: Begin, root: Path, tmp_path: Path) -> None:
    row = json.loads((root / "test.jsonl").read_text())
    row["test_patch"] = row["test_patch"].replace("from calc import half", "from calc import third")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    env = begin(swe={**settings_of(root), "instances": {"test": str(tmp_path / "rows.jsonl")}})
    assert isinstance(solve(env), Invalid)
