"""How busy a sampler is kept by sampling ahead of learning: the real collector, a simulated sampler and learner.

Run: python -m benchmarks.ahead [--steps 8] [--groups 16] [--learn-s 2]. Prints one line of JSON.

The sampler serves one request at a time in 20 ms; an env's step takes 50 to 2,000 ms, and an episode 4 of them; a train
step has 16 groups of 8, so 10.2 s of sampling, and the learner takes `--learn-s`. `busy` is the share of the time
between the second and the last train step in which the sampler served; without staleness it waits for envs and learner.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any, Final, NamedTuple

from benchmarks._options import print_result, read_options
from benchmarks.collector import STEP_S, Server
from envgym.authoring.sources import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env
from envgym.records import Reply
from envgym.seeds import generator
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings, train_settings

TURNS: Final = 4
SIZE: Final = 8
SERVICE_S: Final = 0.02
TARGET: Final = 0.95
"""At staleness 1 and 2."""
WAYS: Final[dict[str, dict[str, Any]]] = {  # sections of the settings
    "synchronous": {},
    "ahead 1": {"staleness": 1, "deterministic": False},
    "window 1": {"staleness": 1, "deterministic": False, "stragglers": "window"},
    "window 2": {"staleness": 2, "deterministic": False, "stragglers": "window"},
}


class Waits(Env[int]):
    """Answers after 50 to 2,000 ms, from a thread."""

    blocking = True
    tasks = ListTasks([TaskDraft(prompt="Say anything.", payload={"number": number}) for number in range(500)])

    def begin(self, task: Task) -> str:
        self.state = 0
        return task.prompt

    def respond(self, action: Action) -> Reply:
        low, high = STEP_S
        time.sleep(low + (high - low) * generator("waits", self.task.key, str(action), self.state).random())
        self.state += 1
        return Reply(observation="Go on.", terminated=self.state == TURNS)


class Found(NamedTuple):
    """One way of collecting."""

    busy: float
    step_s: float
    too_old: float
    """Groups that were aborted, of those that were begun."""


def settings(groups: int, **rollout: Any) -> TrainSettings:
    """Return the settings of a run that is never trained."""
    return train_settings(
        {
            "model": {"name": "tiny", "tiny": {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}},
            "engine": {"device": "cpu", "concurrency": 512},
            "envs": [{"id": f"{__spec__.name}:{Waits.__name__}"}],
            "agent": {"name": "plain", "max_turn_tokens": 8, "max_context_tokens": 1024, "on_length": "close"},
            "rollout": {"groups": groups, "group_size": SIZE, **rollout},
            "filter": {"name": "keep_all"},
            "correction": {"name": "tis"},
        }
    )


async def drive(bench: RunContext, asked: TrainSettings, *, steps: int, learn_s: float) -> Found:
    server, renderer = Server(SERVICE_S), bench.agent.renderer
    words = renderer.encode_action(renderer.parse(bench.tokenizer.encode("a")))
    server._answer = lambda request: words  # in the tokens of the agent's model
    begun = lost = 0.0
    async with Collector(replace(collect_plan(bench, asked), policy=server)) as collector:
        for step in range(steps):
            if step == 1:
                started, busy = time.perf_counter(), server.busy_s
            if step == steps - 1:
                seconds, served = time.perf_counter() - started, server.busy_s - busy
            collected = await collector.take(step, stats={})
            begun += len(collected.groups)
            lost += collected.metrics.get("collect/too_old", 0.0)
            await asyncio.sleep(learn_s)
            server.set_version(step + 1)
    return Found(served / seconds, seconds / (steps - 2), lost / begun)


def main() -> None:
    options = read_options(__doc__, steps=8, groups=16, learn_s=2.0)
    bench = build_run_context(settings(options.groups))
    figures: dict[str, object] = {}
    for name, rollout in WAYS.items():
        asked = settings(options.groups, **rollout)
        way = asyncio.run(drive(bench, asked, steps=options.steps, learn_s=options.learn_s))
        figures[name] = {key: round(value, 3) for key, value in way._asdict().items()}
    print_result("ahead", **figures, target=TARGET)


if __name__ == "__main__":
    main()
