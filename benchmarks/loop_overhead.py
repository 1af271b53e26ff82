"""Framework cost of a turn: a scripted policy, an env that does nothing, many episodes at a time, one process.

Run: python benchmarks/loop_overhead.py [--episodes 1000] [--turns 10] [--repeat 5]. Prints one JSON line.

`us_per_turn` is wall time; `cpu_us_per_turn` is the process's own time, which other load on the machine disturbs less.
All is counted: making and resetting the envs, the turns, and building the trees. Every request waits once, so that all
episodes are under way at the same time.
"""

import argparse
import asyncio
import gc
import json
import platform
import statistics
import time
from typing import NamedTuple

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.rollout.episode import EpisodeJob
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task, TaskSource
from envgym.env import Env
from envgym.records import Reply
from tests.support.parrots import char_agent, run_episodes, said

LIMIT_US = 100.0


class OneTask:
    """A single task."""

    def size(self, split: Split) -> int:
        """Return 1."""
        return 1

    def task(self, split: Split, index: int) -> Task:
        """Return the task."""
        return Task(id=f"{split}/{index}", prompt="Talk.", payload={}, split=split)


class Idle(Env[None]):
    """Answers `ok` until the turn limit."""

    tasks: TaskSource = OneTask()

    def begin(self, task: Task) -> str:
        """Show the prompt."""
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Say ok."""
        return Reply(observation="ok")


class Waiting(ScriptedPolicy):
    """Lets the other episodes come first, as a model does."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Say the next reply after everyone's turn."""
        await asyncio.sleep(0)
        return await super().generate(request)


class Elapsed(NamedTuple):
    """Time spent, in seconds."""

    wall: float
    cpu: float


def elapsed(num_episodes: int, num_turns: int) -> Elapsed:
    """Return the time of all episodes, made and reset and all."""
    task = OneTask().task(Split.TRAIN, 0)
    jobs = [
        EpisodeJob(make_env=lambda: Idle(max_turns=num_turns), task=task, seed=index, tree_id=str(index), env_id="idle")
        for index in range(num_episodes)
    ]
    words = said("go on")

    def speak(request: GenerateRequest) -> tuple[int, ...]:
        del request
        return words

    agent = char_agent()
    started, started_cpu = time.perf_counter(), time.process_time()
    trees = asyncio.run(run_episodes(jobs, agent, Waiting(speak), concurrency=num_episodes))
    spent = Elapsed(time.perf_counter() - started, time.process_time() - started_cpu)
    assert sum(node.outcome is not None for tree in trees for node in tree.nodes) == num_episodes * num_turns
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    num_turns = options.episodes * options.turns
    runs: list[Elapsed] = []
    for _ in range(options.repeat):
        gc.collect()
        runs.append(elapsed(options.episodes, options.turns))
    result = {
        "benchmark": "loop_overhead",
        "episodes": options.episodes,
        "turns": options.turns,
        "us_per_turn": round(statistics.median(run.wall for run in runs) / num_turns * 1e6, 1),
        "us_per_turn_best": round(min(run.wall for run in runs) / num_turns * 1e6, 1),
        "cpu_us_per_turn": round(statistics.median(run.cpu for run in runs) / num_turns * 1e6, 1),
        "cpu_us_per_turn_best": round(min(run.cpu for run in runs) / num_turns * 1e6, 1),
        "limit_us": LIMIT_US,
        "python": platform.python_version(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
