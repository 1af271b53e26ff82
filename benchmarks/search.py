"""Tree search: generated tokens per leaf against chains, and wall time of event-driven against lock-step expansion.

Run: python -m benchmarks.search [--groups 16] [--depth 6] [--tasks 200]. Prints one JSON line. The policy is scripted
and answers at once; for the wall time an env's step takes 20 to 500 ms at random, in a thread, so no CPU is needed.
Lock step is what it replaces: a turn is sampled only when every branch under way has its observation.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Literal

from benchmarks._options import print_result, read_options
from benchmarks.collector import LockStep
from benchmarks.loop_overhead import Idle
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import BestOf, Chain, Mcts, RandomExpand, RolloutContext, Strategy, SurprisalFork
from envgym.core.messages import Action
from envgym.core.tasks import Split
from envgym.core.tree import Tree
from envgym.records import Reply
from envgym.seeds import generator
from tests.support.parrots import END, char_agent, episode_factory

TOKENS = 16
"""Tokens of a turn."""


class Paced(Idle):
    """Answers `ok` until the turn limit; a step may take a while."""

    def __init__(self, *, max_turns: int, slowest_s: float) -> None:
        """Prepare an env whose steps take 20 ms to `slowest_s`, nothing where that is 0."""
        super().__init__(max_turns=max_turns)
        self.slowest_s = slowest_s
        self.blocking = slowest_s > 0

    def respond(self, action: Action) -> Reply:
        if self.slowest_s:
            time.sleep(random.uniform(0.02, self.slowest_s))
        return super().respond(action)


def speak(request: GenerateRequest) -> Generation:
    """Say letters of random probabilities, and end the turn after `TOKENS`, those of a shared beginning included."""
    draws = generator(request.seed)
    count = min(TOKENS, request.sampling.max_new_tokens)
    letters = [ord("a") + int(letter) for letter in draws.integers(26, size=count - 1)]
    return Generation(
        token_ids=(*letters, END),
        behavior_logprobs=tuple(-draws.exponential(size=count)),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )


class Slots(asyncio.Semaphore):
    """Slots that know how many branches are under way, and report when one leaves."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.active = 0
        self.on_release: Callable[[], None] = lambda: None

    async def acquire(self) -> Literal[True]:
        self.active += 1
        return await super().acquire()

    def release(self) -> None:
        self.active -= 1
        super().release()
        self.on_release()


async def grow_group(strategy: Strategy, job: EpisodeJob, context: RolloutContext, *, group_size: int) -> list[Tree]:
    make_job = episode_factory(job)
    numbers = range(strategy.num_trees(group_size))
    return await asyncio.gather(
        *[strategy.grow_tree(make_job(number), context, group_size=group_size) for number in numbers]
    )


async def tokens_per_leaf(strategy: Strategy, *, group_size: int, tasks: int, depth: int) -> float:
    """Return the mean number of generated tokens per leaf, kept or not."""
    tokens = leaves = 0
    agent = char_agent(max_turn_tokens=TOKENS)
    for seed in range(tasks):
        slots = asyncio.Semaphore(64)
        context = RolloutContext(agent=agent, policy=ScriptedPolicy(speak), sampling=Sampling(), slots=slots)
        trees = await grow_group(strategy, _job(seed, depth, 0.0), context, group_size=group_size)
        tokens += sum(tree.cost.tokens_generated for tree in trees)
        leaves += sum(node.ending is not None for tree in trees for node in tree.nodes)
    return tokens / leaves


async def seconds(strategy: Strategy, *, groups: int, group_size: int, depth: int, lock_step: bool) -> float:
    """Return the wall time of growing all groups side by side."""
    slots = Slots(1000)
    policy = ScriptedPolicy(speak)
    if lock_step:
        policy = gate = LockStep(policy, lambda: slots.active)
        slots.on_release = gate.open
    context = RolloutContext(agent=char_agent(max_turn_tokens=TOKENS), policy=policy, sampling=Sampling(), slots=slots)
    started = time.perf_counter()
    jobs = [_job(seed, depth, 0.5) for seed in range(groups)]
    await asyncio.gather(*[grow_group(strategy, job, context, group_size=group_size) for job in jobs])
    return time.perf_counter() - started


def _job(seed: int, depth: int, slowest_s: float) -> EpisodeJob:
    task = Paced.tasks.task(Split.TRAIN, 0)
    return EpisodeJob(
        make_env=lambda: Paced(max_turns=depth, slowest_s=slowest_s),
        task=task,
        seed=seed,
        tree_id=f"t{seed}",
        env_id="paced",
    )


def main() -> None:
    options = read_options(__doc__, groups=16, depth=6, tasks=200)
    shapes: dict[str, tuple[Strategy, int]] = {
        "chain": (Chain(), 6),
        "best_of": (BestOf(n=6), 6),
        "random_expand M=2 N=2 L=1": (RandomExpand(trees=2, nodes=2, rounds=1), 6),
        "random_expand M=1 N=2 L=3": (RandomExpand(trees=1, nodes=2, rounds=3), 7),
        "surprisal_fork M=2 N=2 L=1 T=2": (SurprisalFork(trees=2, nodes=2, branches=2), 10),
        "mcts 16 simulations": (Mcts(simulations=16), 16),
    }
    count = {
        name: asyncio.run(tokens_per_leaf(one, group_size=size, tasks=options.tasks, depth=options.depth))
        for name, (one, size) in shapes.items()
    }
    wall = {}
    for name in ("chain", "random_expand M=1 N=2 L=3", "surprisal_fork M=2 N=2 L=1 T=2"):
        one, size = shapes[name]
        event, lock = (
            asyncio.run(seconds(one, groups=options.groups, group_size=size, depth=options.depth, lock_step=lock))
            for lock in (False, True)
        )
        wall[name] = {"event_s": round(event, 2), "lock_step_s": round(lock, 2), "gain": round(lock / event, 2)}
    tokens = {name: round(value / count["chain"], 3) for name, value in count.items()}
    print_result("search", tokens_per_leaf_of_chain=tokens, wall=wall, settings=vars(options))


if __name__ == "__main__":
    main()
