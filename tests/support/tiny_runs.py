"""Runs of seconds for tests of training: a tiny model on an env that an untrained policy solves at times."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envgym import Action, Env, Message, Reply, Role, Task
from envgym.authoring import ListTasks, TaskDraft
from envgym.core.trajectory import Group
from envgym.party import Player
from envgym.runs.directory import RunDirectory
from envgym.runtime.processes.group import process_states
from envgym.trainer.build import collect_plan
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings, train_settings

CLOCKS = ("time/", "speed/", "annotate/seconds")
TINY = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}


class EvenWords(Env[int]):
    """Say a text of an even number of characters in each of two turns; there are few tasks."""

    tasks = ListTasks(
        [TaskDraft(prompt=f"Text {number}: say an even one.", payload={"number": number}) for number in range(8)]
    )
    chance_score = 1.0

    def begin(self, task: Task) -> str:
        self.state = 0
        return task.prompt

    def respond(self, action: Action) -> Reply:
        self.state += 1
        return Reply(observation="Again.", reward=(len(action) % 2 == 0) / 2, terminated=self.state == 2)

    def oracle(self) -> str:
        return "even"


class EvenDuel(Env[list[Message]]):
    """Say a text of an even number of characters in each of two turns; so does the other side."""

    tasks = EvenWords.tasks
    blocking = True

    def begin(self, task: Task) -> str:
        self.state, self.lead = [], 0
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Pay 1 at the end where the agent said more even texts than the other side, a half where as many."""
        opponent = self.parties["opponent"]
        self.state.append(Message(role=Role.USER, content=f"It said {len(action)} characters."))
        answer = opponent.reply(tuple(self.state))
        self.state.append(answer)
        self.lead += (len(action) % 2 == 0) - (len(answer.content) % 2 == 0)
        is_over = len(self.state) == 4
        reward = (1.0 if self.lead > 0 else 0.5 if not self.lead else 0.0) * is_over
        if is_over and isinstance(opponent, Player):
            opponent.end(tuple(self.state), 1 - reward, self.task)
        return Reply(observation=f"{len(answer.content)}.", reward=reward, terminated=is_over)


class StopAfter(Callback):
    def __init__(self, step: int = 1) -> None:
        self.step = step

    def on_step(self, step: int, metrics: Metrics) -> None:
        if step == self.step:
            raise KeyboardInterrupt


class StartedProcesses(Callback):
    pids: tuple[int, ...] = ()

    def on_step(self, step: int, metrics: Metrics) -> None:
        self.pids = tuple(state.pid for state in process_states())


def tiny_settings(directory: Path | str = "unused", **sections: Any) -> TrainSettings:
    """Return a run of two steps of two groups of four; a section that is a mapping is laid over ours."""
    data: dict[str, Any] = {
        "run": {"name": "test", "directory": str(directory), "steps": 2, "checkpoint_every": 1, "trackers": []},
        "model": {"name": "tiny", "tiny": TINY},
        "engine": {"device": "cpu"},
        "envs": [{"id": "tests.support.tiny_runs:EvenWords"}],
        "agent": {"name": "plain", "max_turn_tokens": 4, "max_context_tokens": 256, "on_length": "close"},
        "rollout": {"groups": 2, "group_size": 4},
        "filter": {"name": "keep_all"},
        "optim": {"lr": 0.001},
        "evaluation": {"tasks": 1},
    }
    for section, values in sections.items():
        old = data.get(section)
        data[section] = {**old, **values} if isinstance(old, Mapping) and isinstance(values, Mapping) else values
    return train_settings(data)


def step_metrics(directory: Path) -> list[dict[str, float]]:
    """Return the metrics of a run's train steps without those that a clock makes."""
    return [row for row in comparable(RunDirectory.open(directory)) if "train/rows" in row]


def comparable(run: RunDirectory, *left_out: str) -> list[dict[str, float]]:
    """Return the metrics of a run without those that a clock makes, and without those that begin as `left_out`."""
    return [{k: v for k, v in row.items() if not k.startswith((*CLOCKS, *left_out))} for row in run.metrics()]


def sampled_groups(context: RunContext, settings: TrainSettings) -> list[Group]:
    async def collect() -> list[Group]:
        async with Collector(collect_plan(context, settings)) as collector:
            return (await collector.take(0, stats={})).groups

    return asyncio.run(collect())
