"""Instances in SWE-bench's format are read, checked, and say in one sentence what they lack."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tasks import Split, Task
from envgym.envs.code._swe_bench import instance_of, load_instances, missing_for
from envgym.errors import InvalidInput

PATCH = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
ROW: dict[str, Any] = {
    "instance_id": "owner__name-12",
    "repo": "owner/name",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "problem_statement": "It is broken.",
    "patch": "diff --git a/src/x.py b/src/x.py\n" + PATCH.format("src/x.py"),
    "test_patch": PATCH.format("tests/test_x.py"),
    "FAIL_TO_PASS": '["tests/test_x.py::test_a"]',
    "PASS_TO_PASS": ["tests/test_x.py::test_b"],
    "hints_text": "not read",
}


def loaded(tmp_path: Path, **changes: object) -> Task:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(ROW | changes) + "\n", encoding="utf-8")
    return load_instances({"test": path}).task(Split.TEST, 0)


def test_an_instance_is_read_from_a_file(tmp_path: Path) -> None:
    task = loaded(tmp_path)
    instance = instance_of(task)
    assert (instance.id, instance.repository, instance.problem) == ("owner__name-12", "owner/name", "It is broken.")
    assert instance.fail_to_pass == ("tests/test_x.py::test_a",)
    assert instance.pass_to_pass == ("tests/test_x.py::test_b",)
    assert instance.graded_paths == ["src/x.py"]
    assert instance.image == "swebench/sweb.eval.x86_64.owner_1776_name-12:latest"
    assert instance_of(task, "own/{id}:1").image == "own/owner_1776_name-12:1"
    assert "hints_text" not in task.payload


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("repo", "name", "repo must be owner/name, got name"),
        ("base_commit", "main", "base_commit must be 7 to 40 hexadecimal digits, got main"),
        ("patch", "no diff", "patch must be a unified diff, got no diff"),
        ("test_patch", "  ", "test_patch must be a text"),
        ("FAIL_TO_PASS", [], "FAIL_TO_PASS must name tests that are not in PASS_TO_PASS, got \\[\\]"),
        ("FAIL_TO_PASS", ["tests/test_x.py::test_b"], "FAIL_TO_PASS must name tests that are not in PASS_TO_PASS"),
        ("PASS_TO_PASS", "[1]", "PASS_TO_PASS must be a list of names of tests"),
        ("PASS_TO_PASS", "[", "PASS_TO_PASS must be a list of names of tests"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, field: str, value: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=f"{sentence}.*instance owner__name-12"):
        instance_of(loaded(tmp_path, **{field: value}))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({key: value for key, value in ROW.items() if key != "test_patch"}), encoding="utf-8")
    with pytest.raises(InvalidInput, match="test_patch"):
        load_instances({"test": path}).task(Split.TEST, 0)


@pytest.mark.parametrize(
    "program, code, said, sentence",
    [
        (None, 0, "", "docker must be installed, got no such program (owner__name-12); install Docker, and pull"),
        ("/docker", 1, "Cannot connect to the Docker daemon", "docker must answer, got Cannot connect to the Docker"),
        (
            "/docker",
            1,
            "Error: No such image: x",
            "image must be available locally, got swebench/sweb.eval.x86_64.owner_1776_name",
        ),
        ("/docker", 0, "", None),
    ],
)
def test_what_is_missing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, code: int, said: str, sentence: str | None
) -> None:
    answer = subprocess.CompletedProcess(["docker"], code, stdout="", stderr=said)
    monkeypatch.setattr("shutil.which", lambda name: program)
    monkeypatch.setattr("subprocess.run", lambda *arguments, **settings: answer)
    missing = missing_for(instance_of(loaded(tmp_path)))
    assert (missing is None) == (sentence is None)
    assert sentence is None or str(missing).startswith(sentence)
