"""Framework cost of a turn: a scripted policy, an env that does nothing, many episodes at a time, one process.

Run: python benchmarks/loop_overhead.py [--episodes 1000] [--turns 10] [--repeat 5]. Prints one JSON line.
"""

import argparse
import asyncio
import gc
import json
import platform
import time

from envgym.agents.driver import EpisodeJob, run_episodes
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.testing import char_agent, said
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task, TaskSource
from envgym.env import Env
from envgym.records import Reply

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


def seconds(num_episodes: int, num_turns: int) -> float:
    """Return the wall time of all episodes, made and reset and all."""
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
    started = time.perf_counter()
    trees = asyncio.run(run_episodes(jobs, agent, ScriptedPolicy(speak), sampling=Sampling(), concurrency=num_episodes))
    elapsed = time.perf_counter() - started
    assert sum(node.outcome is not None for tree in trees for node in tree.nodes) == num_episodes * num_turns
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    runs = []
    for _ in range(options.repeat):
        gc.collect()
        runs.append(seconds(options.episodes, options.turns) / (options.episodes * options.turns) * 1e6)
    result = {
        "benchmark": "loop_overhead",
        "episodes": options.episodes,
        "turns": options.turns,
        "us_per_turn": round(sorted(runs)[len(runs) // 2], 1),
        "us_per_turn_best": round(min(runs), 1),
        "limit_us": LIMIT_US,
        "python": platform.python_version(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
