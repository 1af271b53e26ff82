"""The repositories and their tasks that ship with envgym: `data/repos/NAME/{tree,tasks}`.

A repository is stored whole and right. A task is a patch: taken back it makes the repository that the agent gets, and
it is the reference. Its hidden checks are examples, input and output, as in a docstring; those of all other tasks of
the same repository must go on holding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from envgym.authoring import ListTasks
from envgym.authoring.sources import hint_metadata
from envgym.core.tasks import Split, Task
from envgym.envs.code._repo_patch import apply_patch, read_patch, reverse_patch
from envgym.envs.data_files import read_toml
from envgym.sandbox import Limits, has_program
from envgym.sandbox.shell import ShellSession

TEST_REPOSITORIES = ("slots", "switchyard")
"""All their tasks are `test`: what repairs one task of a repository lies in the tree of the others."""
_REPOS = Path(__file__).with_name("data") / "repos"
_COMMIT = (
    "git init -q --template= -b main && git add -A && export GIT_COMMITTER_DATE=2024-01-01T00:00:00Z &&"
    " git -c user.name=maintainer -c user.email=maintainer@example.org commit -q -m Import --date=2024-01-01T00:00:00Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoTask:
    """What a task is about, hidden parts included."""

    repository: str
    """Name of the repository, and of the package in it: the source that is graded."""
    patch: str
    checks: str
    """Must fail before the patch and hold after it."""
    other_checks: Mapping[str, str]
    """Task -> what must hold before and after."""
    hints: tuple[str, ...]
    """From a plan to what to change."""

    @property
    def files(self) -> Mapping[str, str]:
        return apply_patch(read_tree(self.repository), reverse_patch(read_patch(self.patch)))

    @property
    def goal(self) -> Mapping[str, str]:
        return read_tree(self.repository)


def repositories() -> tuple[str, ...]:
    """Return the names of all repositories, sorted."""
    return tuple(sorted(path.name for path in _REPOS.iterdir()))


@cache
def read_tree(repository: str) -> Mapping[str, str]:
    """Return the files of a repository, all of it repaired."""
    tree = _REPOS / repository / "tree"
    paths = (path for path in sorted(tree.rglob("*")) if path.suffix in (".py", ".md"))
    return {path.relative_to(tree).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def _describe(repository: str) -> Mapping[str, Mapping[str, object]]:
    paths = sorted((_REPOS / repository / "tasks").glob("*.toml"))
    return {path.stem: read_toml(path) for path in paths}


def read_repo_task(task: Task) -> RepoTask:
    """Return the repository, patch, checks and hints of a task."""
    repository, name = str(task.payload["repository"]), str(task.metadata["name"])
    described = _describe(repository)
    return RepoTask(
        repository=repository,
        patch=str(task.payload["patch"]),
        checks=str(task.payload["checks"]),
        other_checks={other: str(fields["checks"]) for other, fields in described.items() if other != name},
        hints=_hints_of(described[name]),
    )


@lru_cache(maxsize=16)
def shipped_tasks(kinds: tuple[str, ...], levels: tuple[int, ...]) -> ListTasks:
    """Return the tasks of some kinds and levels."""
    return ListTasks(
        [
            _task(repository, name, fields)
            for repository in repositories()
            for name, fields in _describe(repository).items()
            if fields["kind"] in kinds and fields["level"] in levels
        ]
    )


def _task(repository: str, name: str, fields: Mapping[str, object]) -> Task:
    kind, level, issue = str(fields["kind"]), int(str(fields["level"])), str(fields["issue"]).strip()
    patch = (_REPOS / repository / "tasks" / f"{name}.patch").read_text(encoding="utf-8")
    return Task(
        id=f"{repository}/{name}",
        prompt=f"In the repository {repository}, work on this issue.\n\n{issue}",
        payload={"repository": repository, "patch": patch, "checks": str(fields["checks"])},
        split=Split.TEST if repository in TEST_REPOSITORIES else Split.TRAIN,
        metadata={
            "name": name,
            "repository": repository,
            "kind": kind,
            "level": level,
            **hint_metadata(_hints_of(fields), tier="guidance"),
        },
    )


def _hints_of(fields: Mapping[str, object]) -> tuple[str, ...]:
    hints = fields["hints"]
    assert isinstance(hints, list), "as written in the file"
    return tuple(str(hint).strip() for hint in hints)


@lru_cache(maxsize=64)
def checkout(repository: str, patch: str, limits: Limits) -> ShellSession:
    """Return a session with the repository as the agent gets it, to be forked; a git repository where git is there.

    Raises: ToolInfraFailure: the sandbox does not work.
    """
    files = apply_patch(read_tree(repository), reverse_patch(read_patch(patch)))
    session = ShellSession({path: text.encode() for path, text in files.items()}, limits)
    if has_program("git"):
        session.run(_COMMIT)
    return session
