"""Wall time of a collected step with a slow judge against one without: no model, a simulated sampler and judge.

Run: python benchmarks/annotate.py [--groups 32] [--group-size 4] [--turns 4] [--concurrency 16] [--service-ms 5]
     [--judge-ms 300] [--judge-concurrency 16]
Prints one line of JSON. The sampler serves one request at a time, the judge so many at a time; each answer takes a
fixed time. `overlapped` annotates groups as they end, `afterwards` when all have ended; both are times over that
without a judge. `least` is what cannot be less: the last group ends with the sampling and is judged then.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from functools import partial

from benchmarks._options import print_result, read_options
from benchmarks.collector import Server
from envgym.agents.protocols import Sampling
from envgym.agents.search import Chain
from envgym.core.messages import Message
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.annotators.base import AnnotateContext, Model
from envgym.trainer.methods.annotators.judge import Judge
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.filters.variance import KeepAll
from envgym.trainer.rollout.annotate import AnnotateStage
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.rollout.groups import CollectPlan
from envgym.trainer.rollout.settings import RolloutSettings
from tests.support.parrots import Parrot, ParrotTasks, char_agent


class SlowJudge(Model):
    """Answers so many requests at a time, each in the same time."""

    def __init__(self, answer_s: float, concurrency: int) -> None:
        self._answer_s, self._places = answer_s, asyncio.Semaphore(concurrency)

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        """Wait for a place, think, and say yes."""
        async with self._places:
            await asyncio.sleep(self._answer_s)
        return "YES"


def collect(options: argparse.Namespace, *, judged: bool, afterwards: bool = False) -> float:
    async def work() -> float:
        make = partial(Parrot, max_turns=options.turns)
        source = EnvSource(label="parrot", env_id="parrot", weight=1.0, make=make, tasks=ParrotTasks(), held_out=())
        policy, agent, judge = Server(options.service_ms / 1000), char_agent(), Judge(template="{answer}")
        models = {"judge": SlowJudge(options.judge_ms / 1000, options.judge_concurrency)}
        stage = AnnotateStage(annotators={"judge": judge}, models=models)
        plan = CollectPlan(
            rollout=RolloutSettings(groups=options.groups, group_size=options.group_size),
            agent=agent,
            policy=policy,
            sampling=Sampling(),
            env_sources={"parrot": source},
            tasks=TaskPool({"parrot": source}),
            curriculum=Uniform(),
            search=Chain(),
            keep_groups=KeepAll(),
            concurrency=options.concurrency,
            seed=0,
            annotate=stage if judged and not afterwards else None,
        )
        started = time.perf_counter()
        async with Collector(plan) as collector:
            collected = await collector.take(0, stats={})
        if judged and afterwards:
            task = ParrotTasks().task(collected.groups[0].trees[0].split, 0)
            context = AnnotateContext(step=0, task=task, models=models, policy=policy, agent=agent)
            await asyncio.gather(*[judge(group, context) for group in collected.groups])
        return time.perf_counter() - started

    return asyncio.run(work())


def main() -> None:
    options = read_options(
        __doc__,
        groups=32,
        group_size=4,
        turns=4,
        concurrency=16,
        service_ms=5.0,
        judge_ms=300.0,
        judge_concurrency=16,
    )
    alone = min(collect(options, judged=False) for _ in range(2))  # the first also imports
    print_result(
        "annotate",
        seconds_without_judge=alone,
        overlapped=collect(options, judged=True) / alone,
        afterwards=collect(options, judged=True, afterwards=True) / alone,
        least=1 + options.judge_ms / 1000 / alone,
    )


if __name__ == "__main__":
    main()
