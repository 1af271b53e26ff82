"""Instances in the format of SWE-bench (arXiv 2310.06770): read from files or `datasets`, checked, and what they lack.

An instance is work on a real repository at a commit, in a Docker image made for it. This module reads and checks; it
runs nothing.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgym.authoring import ColumnNames, FileTasks
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Task
from envgym.envs.code._repo_patch import read_patch
from envgym.errors import InvalidInput, ToolInfraFailure, sentence

FIELDS = ("repo", "base_commit", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
IMAGE = "swebench/sweb.eval.x86_64.{id}:latest"
"""Where the images of SWE-bench lie; {id} is the instance's, with `__` written `_1776_` as their names have it."""
_COMMIT_CHARS = frozenset("0123456789abcdef")
_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweBenchInstance:
    """One instance."""

    id: str
    repository: str
    """owner/name."""
    base_commit: str
    problem: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str

    @property
    def graded_paths(self) -> Sequence[str]:
        """Return the files of the reference, without those of the tests."""
        tests = {hunk.path for hunk in read_patch(self.test_patch)}
        return sorted({hunk.path for hunk in read_patch(self.patch)} - tests)


def load_instances(
    source: str | Path | Mapping[str, str | Path], *, config: str | None = None, revision: str | None = None
) -> FileTasks:
    """Return tasks that hold instances; see `FileTasks` for what a source can be. Official splits win."""
    columns = ColumnNames(prompt="problem_statement", payload={name: name for name in FIELDS}, id="instance_id")
    return FileTasks(source, columns, config=config, revision=revision)


def instance_of(task: Task, image: str = IMAGE) -> SweBenchInstance:
    """Return the instance of a task, checked. Raises: InvalidInput: a field breaks a rule."""
    fields = task.payload
    texts = {name: _text(fields, name, task.id) for name in ("repo", "base_commit", "patch", "test_patch")}
    commit, owner = texts["base_commit"], texts["repo"].split("/")
    if len(owner) != 2 or not all(owner):
        raise _wrong("repo", "be owner/name", texts["repo"], task.id)
    if not 7 <= len(commit) <= 40 or not set(commit) <= _COMMIT_CHARS:
        raise _wrong("base_commit", "be 7 to 40 hexadecimal digits", commit, task.id)
    for name in ("patch", "test_patch"):
        try:
            read_patch(texts[name])
        except InvalidInput:
            raise _wrong(name, "be a unified diff", texts[name], task.id) from None
    fail, keep = (_names(fields, name, task.id) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    if not fail or set(fail) & set(keep):
        raise _wrong("FAIL_TO_PASS", "name tests that are not in PASS_TO_PASS", list(fail), task.id)
    return SweBenchInstance(
        id=task.id,
        repository=texts["repo"],
        base_commit=commit,
        problem=task.prompt,
        patch=texts["patch"],
        test_patch=texts["test_patch"],
        fail_to_pass=fail,
        pass_to_pass=keep,
        image=image.format(id=task.id.lower().replace("__", "_1776_")),
    )


def missing_for(instance: SweBenchInstance) -> ToolInfraFailure | None:
    """Return in one sentence what this machine lacks to run an instance; None where its image is at hand."""
    if shutil.which("docker") is None:
        do = "install Docker, and pull the image"
        return ToolInfraFailure(sentence("docker", "be installed", "no such program", where=instance.id, do=do))
    asked = ["docker", "image", "inspect", "--format", "{{.Id}}", instance.image]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        do = "start the Docker engine"
        return ToolInfraFailure(sentence("docker", "answer", str(error), where=instance.id, do=do))
    if answer.returncode == 0:
        return None
    said = answer.stderr.strip()
    if "no such image" in said.lower():
        do = f"run docker pull {instance.image}"
        return ToolInfraFailure(sentence("image", "be available locally", instance.image, where=instance.id, do=do))
    return ToolInfraFailure(sentence("docker", "answer", said, where=instance.id, do="start the Docker engine"))


def _text(fields: JsonObject, name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "be a text", value, where)
    return value


def _names(fields: JsonObject, name: str, where: str) -> tuple[str, ...]:
    """Return names of tests: a list, or one written as JSON, as the data set has it."""
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _wrong(name, "be a list of names of tests", fields.get(name), where)
    return tuple(str(item) for item in value)


def _wrong(name: str, must: str, got: object, where: str) -> InvalidInput:
    return InvalidInput(sentence(name, must, got, where=f"instance {where}", do="correct the file"))
