"""Framework cost of a turn: a scripted policy, an env that does nothing, many episodes at a time, one process.

Run: python -m benchmarks.loop_overhead [--episodes 1000] [--turns 10] [--repeat 5]. Prints one JSON line.

`us_per_turn` is wall time; `cpu_us_per_turn` is the process's own time, which other load on the machine disturbs less.
All is counted: making and resetting the envs, the turns, and building the trees. Every request waits once, so that all
episodes are under way at the same time.
"""

import asyncio
import gc
import statistics
import time
from typing import NamedTuple

from benchmarks._options import print_result, read_options
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.rollout.episode import EpisodeJob
from envgym.authoring.sources import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.env import Env
from envgym.records import Reply
from tests.support.parrots import char_agent, run_episodes, said


class Idle(Env[None]):
    """Answers `ok` until the turn limit."""

    tasks = ListTasks([TaskDraft(prompt="Talk.", payload={})])

    def begin(self, task: Task) -> str:
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
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
    task = Idle.tasks.task(Split.TRAIN, 0)
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
    options = read_options(__doc__, episodes=1000, turns=10, repeat=5)
    num_turns = options.episodes * options.turns
    runs: list[Elapsed] = []
    for _ in range(options.repeat):
        gc.collect()
        runs.append(elapsed(options.episodes, options.turns))
    figures: dict[str, object] = {}
    for name, values in (("us_per_turn", [run.wall for run in runs]), ("cpu_us_per_turn", [run.cpu for run in runs])):
        figures[name] = round(statistics.median(values) / num_turns * 1e6, 1)
        figures[f"{name}_best"] = round(min(values) / num_turns * 1e6, 1)
    print_result("loop_overhead", **vars(options), **figures)


if __name__ == "__main__":
    main()
