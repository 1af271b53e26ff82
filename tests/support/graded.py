"""Sums whose tasks carry what curricula and allocators read in metadata; their number is small, and they end."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envgym import Action, Reply, Split, Task
from envgym.core.tasks import TaskSource, split_of
from envgym.core.trajectory import Group
from envgym.runs.directory import RunDirectory
from envgym.trainer.methods.protocols import Curriculum, CurriculumContext, EnvSupply, StepOutcome, TaskRequest
from envgym.trainer.train import train
from tests.support.example_trees import outcome_group
from tests.support.toys import Sums
from tests.trainer.test_critic_run import settings


class GradedTasks:
    """The sums a + b with a, b below 5; a harder one has larger numbers."""

    def __init__(self) -> None:
        payloads = [{"a": a, "b": b} for a in range(5) for b in range(5)]
        self._payloads = {split: [item for item in payloads if split_of(item) is split] for split in Split}

    def size(self, split: Split) -> int:
        return len(self._payloads[split])

    def task(self, split: Split, index: int) -> Task:
        payload = self._payloads[split][index]
        total = payload["a"] + payload["b"]
        return Task(
            id=f"{split}/{index}",
            prompt=f"What is {payload['a']} + {payload['b']}?",
            payload=payload,
            split=split,
            metadata={
                "difficulty": 10.0 * total,
                "weak": 0.1,
                "strong": 1 - total / 10,
                "hint": f"It is {total}.",
                "hints": {"knowledge": ["Count on."], "planning": ["Start at a."], "solution": [f"It is {total}."]},
                "sub_goals": [f"a is {payload['a']}.", f"b is {payload['b']}."],
            },
        )


class Graded(Sums):
    tasks: TaskSource = GradedTasks()


class Lucky(Graded):
    """Pays for one answer of four, whatever was asked; so that an untrained model succeeds at times."""

    def respond(self, action: Action) -> Reply:
        """Score the answer by a checksum of its text."""
        is_lucky = zlib.crc32(str(action).encode()) % 4 == 0
        return Reply(observation="", reward=float(is_lucky), terminated=True)


LUCKY = "tests.support.graded:Lucky"
GRADED = "tests.support.graded:Graded"


def graded_supply(name: str = "graded", weight: float = 1.0) -> EnvSupply:
    tasks = GradedTasks()
    return EnvSupply(name, weight, tasks.size(Split.TRAIN), lambda index: tasks.task(Split.TRAIN, index))


def choose(curriculum: Curriculum, step: int = 0, *, groups: int = 4, size: int = 8, **given: Any) -> list[TaskRequest]:
    """Return a step's requests; of the graded sums, unless supplies are given."""
    asked: dict[str, Any] = {"supplies": [graded_supply()]} | given
    return list(curriculum.choose(CurriculumContext(step=step, num_groups=groups, group_size=size, **asked)))


def observe(curriculum: Any, requests: Sequence[TaskRequest], *rewards: Sequence[float | None], step: int = 1) -> Any:
    """Let a curriculum see one group of rewards for each request, none of which trained; return its metrics."""
    groups: list[Group] = [outcome_group(*of_group) for of_group in rewards]
    return curriculum.observe(StepOutcome(step=step, requests=requests, groups=groups))


def train_steps(folder: Path, *, env: str = GRADED, **sections: Any) -> list[dict[str, float]]:
    chosen = {"credit": {"name": "grpo"}, "envs": [{"id": env}]} | sections
    train(settings(folder, **chosen))
    return [row for row in RunDirectory.open(folder).metrics() if "train/rows" in row]
