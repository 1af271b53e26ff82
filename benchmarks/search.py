"""Tree search: generated tokens per leaf against chains, and wall time of event-driven against lock-step expansion.

Run: python benchmarks/search.py [--groups 16] [--depth 6] [--tasks 200]. Prints one JSON line. The policy is scripted
and answers at once; for the wall time an env's step takes 20 to 500 ms at random, in a thread, so no CPU is needed.
Lock step is what it replaces: a turn is sampled only when every branch under way has its observation.
"""

import argparse
import asyncio
import json
import platform
import random
import time
from typing import Literal

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import BestOf, Chain, Mcts, RandomExpand, RolloutContext, Strategy, SurprisalFork
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task, TaskSource
from envgym.core.tree import Tree
from envgym.env import Env
from envgym.records import Reply
from envgym.seeds import generator
from tests.support.parrots import END, char_agent, episode_factory

LEAST_GAIN = 1.5
TOKENS = 16
"""Tokens of a turn."""


class OneTask:
    """A single task."""

    def size(self, split: Split) -> int:
        """Return 1."""
        return 1

    def task(self, split: Split, index: int) -> Task:
        """Return the task."""
        return Task(id=f"{split}/{index}", prompt="Talk.", payload={}, split=split)


class Paced(Env[None]):
    """Answers `ok` until the turn limit; a step may take a while."""

    tasks: TaskSource = OneTask()
    blocking = True

    def __init__(self, *, max_turns: int, slowest_s: float) -> None:
        """Prepare an env whose steps take 20 ms to `slowest_s`, nothing where that is 0."""
        super().__init__(max_turns=max_turns)
        self.slowest_s = slowest_s
        self.blocking = slowest_s > 0

    def begin(self, task: Task) -> str:
        """Show the prompt."""
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Wait, and say ok."""
        if self.slowest_s:
            time.sleep(random.uniform(0.02, self.slowest_s))
        return Reply(observation="ok")


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
    """Slots that know how many branches are under way, and tell a gate when one leaves."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.active = 0
        self.waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> Literal[True]:
        """Take a slot."""
        self.active += 1
        return await super().acquire()

    def release(self) -> None:
        """Give a slot back."""
        self.active -= 1
        super().release()
        self.open()

    def open(self) -> None:
        """Wake all who wait to sample, if nobody else is under way."""
        if len(self.waiting) >= self.active:
            for waiter in self.waiting:
                waiter.set_result(None)
            self.waiting = []


class LockStep(ScriptedPolicy):
    """Samples only when every branch under way asks."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(speak)
        self.slots = slots

    async def generate(self, request: GenerateRequest) -> Generation:
        """Wait for the others first."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.slots.waiting.append(waiter)
        asyncio.get_running_loop().call_soon(self.slots.open)
        await waiter
        return await super().generate(request)


async def grow_group(strategy: Strategy, job: EpisodeJob, context: RolloutContext, *, group_size: int) -> list[Tree]:
    """Grow all trees of a group side by side."""
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
    policy = LockStep(slots) if lock_step else ScriptedPolicy(speak)
    context = RolloutContext(agent=char_agent(max_turn_tokens=TOKENS), policy=policy, sampling=Sampling(), slots=slots)
    started = time.perf_counter()
    jobs = [_job(seed, depth, 0.5) for seed in range(groups)]
    await asyncio.gather(*[grow_group(strategy, job, context, group_size=group_size) for job in jobs])
    return time.perf_counter() - started


def _job(seed: int, depth: int, slowest_s: float) -> EpisodeJob:
    task = OneTask().task(Split.TRAIN, 0)
    return EpisodeJob(
        make_env=lambda: Paced(max_turns=depth, slowest_s=slowest_s),
        task=task,
        seed=seed,
        tree_id=f"t{seed}",
        env_id="paced",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--depth", type=int, default=6, help="turns of an episode")
    parser.add_argument("--tasks", type=int, default=200, help="trees that tokens are counted on")
    options = parser.parse_args()
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
    result = {
        "tokens_per_leaf_of_chain": {name: round(value / count["chain"], 3) for name, value in count.items()},
        "wall": wall,
        "least_gain": LEAST_GAIN,
        "ok": all(item["gain"] >= LEAST_GAIN for item in wall.values()),
        "settings": vars(options),
        "python": platform.python_version(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
