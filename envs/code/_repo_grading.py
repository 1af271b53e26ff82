"""Grades a repository by hidden checks, in a fresh sandbox that holds its source and no expected output."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from doctest import DocTestParser, Example, OutputChecker
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from envgym.core.json_types import parse_json
from envgym.envs.code._repo_tasks import RepoTask
from envgym.sandbox import MIB, Limits, RunEnding, Sandbox

MAX_SOURCE = 2 * MIB
"""Bytes of source that are graded."""
MAX_FILES = 500
_LIMITS = Limits(wall_s=40.0, cpu_s=10.0, output=4 * MIB)
MAX_PARTS = 100_000
"""Of the JSON in which a sandbox answers."""
_OWN = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoGrade:
    issue_share: float
    """Share of the task's own examples that hold."""
    other_share: float
    """Share of all other tasks' examples that hold."""
    reason: str

    @property
    def is_passed(self) -> bool:
        return self.issue_share == self.other_share == 1.0


def grade(repair: RepoTask, files: Mapping[str, bytes], sandbox: Sandbox) -> RepoGrade:
    """Run the hidden checks on the source among `files`: Python files below the package, and nothing else.

    Raises: ToolInfraFailure: the sandbox does not work.
    """
    source = {path: content for path, content in files.items() if is_source(path, repair.repository)}
    if len(source) > MAX_FILES or sum(map(len, source.values())) > MAX_SOURCE:
        return RepoGrade(issue_share=0.0, other_share=0.0, reason="The source is too large.")
    checks = {_OWN: _examples(repair.checks)} | {name: _examples(text) for name, text in repair.other_checks.items()}
    job = {
        "files": {path: content.decode("latin-1") for path, content in source.items()},
        "checks": {name: [example.source for example in examples] for name, examples in checks.items()},
    }
    done = sandbox.run(["python3", "-I", "-S", "-c", _script()], json.dumps(job).encode(), {}, _LIMITS)
    if done.ending is not RunEnding.EXITED:
        return RepoGrade(
            issue_share=0.0, other_share=0.0, reason=f"The hidden tests were stopped: {done.ending.value}."
        )
    reply = _read(done.stdout)
    passed = {name: _check_examples(examples, reply.get(name)) for name, examples in checks.items()}
    others = [is_right for name, rights in passed.items() if name != _OWN for is_right in rights]
    issue_share, other_share = sum(passed[_OWN]) / len(passed[_OWN]), sum(others) / len(others) if others else 1.0
    return RepoGrade(issue_share=issue_share, other_share=other_share, reason=_reason(issue_share, other_share))


def is_source(path: str, package: str) -> bool:
    return path.startswith(f"{package}/") and path.endswith(".py")


def _reason(issue_share: float, other_share: float) -> str:
    if issue_share == other_share == 1.0:
        return "All hidden tests pass."
    reasons = [] if issue_share == 1.0 else ["The hidden tests of the issue do not pass."]
    return " ".join(
        [*reasons, *([] if other_share == 1.0 else ["Something that worked before does not work any more."])]
    )


def _read(reply: bytes) -> Mapping[str, Any]:
    try:
        results = parse_json(reply, MAX_PARTS)
    except ValueError:
        return {}
    return results if isinstance(results, dict) else {}


def _check_examples(examples: Sequence[Example], reply: object) -> Sequence[bool]:
    answers = reply if isinstance(reply, list) and len(reply) == len(examples) else [None] * len(examples)
    return [_holds(example, answer) for example, answer in zip(examples, answers, strict=True)]


def _holds(example: Example, answer: object) -> bool:
    """Tell whether an example says what it should, and raises what it should, wherever its class is defined."""
    if not isinstance(answer, dict):
        return False
    text, raised = answer.get("printed"), answer.get("raised")
    if not isinstance(text, str) or not (raised is None or isinstance(raised, str)):
        return False
    if example.exc_msg is None:
        return raised is None and OutputChecker().check_output(example.want, text, 0)
    kind, colon, message = example.exc_msg.strip().partition(":")
    return raised == f"{kind.rpartition('.')[2]}{colon}{message}"


@lru_cache(maxsize=512)
def _examples(text: str) -> Sequence[Example]:
    return tuple(DocTestParser().get_examples(text))


@cache
def _script() -> str:
    return Path(__file__).with_name("_repo_guest.py").read_text(encoding="utf-8")
