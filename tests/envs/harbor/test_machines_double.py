"""Ends of episodes that no engine is needed for: a machine that a command has ended, and users that it lacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tasks import Split
from envgym.core.turns import ZERO
from envgym.envs.code.harbor import Harbor
from envgym.errors import EnvFailure, InvalidInput, ToolInfraFailure
from envgym.sandbox.machines import CommandResult, Machine, MachineSpec
from envgym.sandbox.records import RunEnding
from tests.support.containers import bash, hand_in
from tests.support.task_folders import write_task


class MachineDouble:
    """A machine in which every command succeeds but `exhaust`, which ends it."""

    def __init__(self, spec: MachineSpec) -> None:
        self.spec, self.is_lost = spec, False

    def run(self, command: str | Sequence[str], **options: Any) -> CommandResult:
        self._check()
        self.is_lost = command == "exhaust"
        ending = RunEnding.MEMORY if self.is_lost else RunEnding.EXITED
        output = b"0\n/app\n" if command == "id -u; pwd" else b""
        return CommandResult(
            exit_code=-1 if self.is_lost else 0,
            output=output,
            ending=ending,
            seconds=0.1,
            is_machine_lost=self.is_lost,
        )

    def put(self, files: Mapping[str, bytes], directory: str, *, owner: str = "root", **options: Any) -> None:
        self._check()
        InvalidInput.unless(owner in ("root", "0"), "owner", "be a user of the machine", owner, where="m", do="add it")

    def put_folder(self, path: Path, directory: str, **options: Any) -> None: ...

    def get(self, path: str, **options: Any) -> dict[str, bytes]:
        self._check()
        return {"reward.txt": b"1"} if path.endswith("reward.txt") else {}

    def end_processes(self) -> None:
        self._check()

    def fork(self) -> Machine:
        raise NotImplementedError

    def close(self) -> None: ...

    def _check(self) -> None:
        ToolInfraFailure.unless(not self.is_lost, "machine", "run", "an end", where="m", do="start another one")


class Machines:
    """A source of doubles."""

    def build(self, context: Path, **options: Any) -> str:
        return "image"

    def start(self, spec: MachineSpec) -> Machine:
        return MachineDouble(spec)

    def why_unavailable(self) -> str | None:
        return None


def begin(folder: Path) -> Harbor:
    env = Harbor(folder=str(folder), machines=f"{__file__}:Machines")
    env.reset(seed=0, options={"task": env.tasks.task(Split.TRAIN, 0)})
    return env


@pytest.mark.parametrize("mode", ["shared", "fresh"])
def test_an_agent_that_ends_its_container_scores_0(tmp_path: Path, mode: str) -> None:
    folder = write_task(tmp_path, toml=f"[metadata.envgym]\nverification = '{mode}'\n")
    env = begin(folder)
    assert "memory" in bash(env, "exhaust").lower()
    assert "ended the container" in bash(env, "ls"), "a later command is refused, and the episode continues"
    assert hand_in(env) == ZERO


def test_a_user_that_the_image_lacks_is_named_by_its_key_and_folder(tmp_path: Path) -> None:
    folder = write_task(tmp_path, toml="[agent]\nuser = 'cook'\n")
    with pytest.raises(EnvFailure) as refused:
        begin(folder)
    assert str(refused.value) == (
        f"agent.user must be a user of the image, got cook ({folder}/task.toml); add the user in "
        "environment/Dockerfile, or correct the key."
    )
