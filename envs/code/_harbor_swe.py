"""Instances in the form of SWE-bench as tasks in containers. Source: arXiv 2310.06770.

The tests run in a new container at the base commit, which gets the agent's files but not its `.git`. Files that the
test patch changes, and files that configure a test runner, are those of the base commit.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from envgym.core.json_types import JsonObject
from envgym.core.tasks import Task
from envgym.envs.code._harbor_config import AgentPart, EnvironmentPart, OwnPart, TaskFile, VerifierPart
from envgym.envs.code._harbor_folder import HarborTask
from envgym.envs.code._harbor_settings import SweSettings
from envgym.envs.code._repo_patch import read_patch
from envgym.errors import InvalidInput

FIELDS = ("repo", "base_commit", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
_COMMIT = frozenset("0123456789abcdef")
_GIT = "git -c safe.directory='*'"
_CONCEAL = f"""merged=$({_GIT} for-each-ref --merged=HEAD --format='%(refname)')
for name in $({_GIT} remote); do {_GIT} remote remove "$name" || exit; done
{_GIT} for-each-ref --format='%(refname)' | grep -vxF -e "$merged" | sed 's/^/delete /' |
  {_GIT} update-ref --no-deref --stdin || exit
cd "$({_GIT} rev-parse --absolute-git-dir)" && rm -rf logs ./?*_HEAD && {_GIT} gc --quiet --prune=now"""
"""Removes all that is not part of HEAD from a repository: later commits hold the solution."""


def swe_task(task: Task, settings: SweSettings) -> HarborTask:
    """Return an instance as a task in a container. Raises: InvalidInput: a field breaks a rule."""
    where = f"instance {task.id}"
    commit, patch, test_patch = (_text(task.payload, name, where) for name in ("base_commit", "patch", "test_patch"))
    is_commit = 7 <= len(commit) <= 40 and set(commit) <= _COMMIT
    do = "correct the file"
    InvalidInput.unless(is_commit, "base_commit", "be 7 to 40 hexadecimal digits", commit, where=where, do=do)
    for name, text in (("patch", patch), ("test_patch", test_patch)):
        try:
            read_patch(text)
        except InvalidInput:
            raise InvalidInput.of(name, "be a unified diff", text, where=where, do=do) from None
    fail, keep = (_names(task.payload, name, where) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    must = "name tests that are not in PASS_TO_PASS"
    InvalidInput.unless(fail and not set(fail) & set(keep), "FAIL_TO_PASS", must, list(fail), where=where, do=do)
    plan = {
        "workdir": settings.workdir,
        "runner": settings.runner,
        "python": settings.python,
        "fail_to_pass": fail,
        "pass_to_pass": keep,
        "patched": sorted({hunk.path for hunk in read_patch(patch)}),
    }
    tests = {
        "test.sh": f"#!/bin/sh\nexec {settings.python} -I /tests/check.py\n".encode(),
        "check.py": _script("check"),
        "run.py": _script("run"),
        "plan.json": json.dumps(plan).encode(),
        "test.patch": test_patch.encode(),
    }
    is_built = settings.contexts is not None
    return HarborTask(
        name=task.id,
        where=where,
        instruction=_instruction(task, settings),
        file=TaskFile(
            environment=EnvironmentPart(workdir=settings.workdir),
            verifier=VerifierPart(timeout_sec=settings.timeout_s),
            agent=AgentPart(),
        ),
        own=OwnPart(verification="fresh", keep=(settings.workdir,)),
        image=None if is_built else settings.images.format(id=task.id.lower().replace("__", "_1776_"), row=task.id),
        context=Path(settings.contexts.format(row=task.id)) if settings.contexts is not None else None,
        tests=MappingProxyType(tests),
        solution=MappingProxyType({"solve.sh": _solution(patch, settings.workdir)}),
        prepare=f"cd {settings.workdir} && {_GIT} reset -q --hard && {_GIT} checkout -q {commit}",
        conceal=f"cd {settings.workdir} && {_CONCEAL}",
        excluded=(".git",),
        key=task.key,
    )


def _instruction(task: Task, settings: SweSettings) -> str:
    place = f"The repository {task.payload['repo']} is in {settings.workdir}."
    return f"{place} Resolve this issue.\n\n{task.prompt}"


def _solution(patch: str, workdir: str) -> bytes:
    text = f"cd {workdir}\n{_GIT} apply <<'END_OF_PATCH'\n{patch.rstrip(chr(10))}\nEND_OF_PATCH\n"
    return text.encode(errors="replace")


@cache
def _script(name: str) -> bytes:
    return Path(__file__).with_name(f"_harbor_swe_{name}.py").read_bytes()


def _text(fields: JsonObject, name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput.of(name, "be a text", value, where=where, do="correct the file")
    return value


def _names(fields: Mapping[str, object], name: str, where: str) -> list[str]:
    """Return names of tests: a list, or one written as JSON, as the data set has it."""
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InvalidInput.of(name, "be a list of names of tests", fields.get(name), where=where, do="correct the file")
    return [str(item) for item in value]
