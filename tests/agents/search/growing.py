"""Searches over a parrot: a policy that says what its seeds choose, at a pace that tests shuffle."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envgym.agents.loop.agent import Agent
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search import RolloutContext, Strategy
from envgym.agents.search.protocol import run_concurrently
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.seeds import derive_seed, generator
from tests.support.generations import generated
from tests.support.parrots import END, Parrot, char_agent, episode_factory, parrot_job


def zero() -> float:
    return 0.0


class Babbler(ScriptedPolicy):
    """Samples letters one by one: letter k of a turn from a distribution that the text before it fixes.

    The answer to a request depends on its tokens and its seed alone; the pace depends on `pace`.
    """

    def __init__(self, letters: str = "ab", *, end: float = 0.4, pace: int = 0, fails_at: int | None = None) -> None:
        super().__init__(self._say)
        self.letters, self.end, self.pace, self.fails_at = letters, end, pace, fails_at

    def _say(self, request: GenerateRequest) -> Generation:
        draws = generator(request.seed)
        context = list(request.token_ids)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < request.sampling.max_new_tokens and ids[-1:] != [END]:
            odds = self.odds(context)
            ids.append(int(draws.choice(list(odds), p=list(odds.values()))))
            logprobs.append(math.log(odds[ids[-1]]))
            context.append(ids[-1])
        reason = FinishReason.STOP if ids[-1:] == [END] else FinishReason.LENGTH
        return generated(ids, logprobs, reason=reason, num_prefilled=len(request.token_ids))

    def odds(self, context: Sequence[int]) -> dict[int, float]:
        skew = 0.2 + 0.6 * (derive_seed(*context[-3:]) % 97) / 97
        letters = zip(map(ord, self.letters), shares(skew, len(self.letters)), strict=True)
        return {END: self.end} | {letter: (1 - self.end) * share for letter, share in letters}

    async def generate(self, request: GenerateRequest) -> Generation:
        number = len(self.requests)
        for _ in range(derive_seed(self.pace, request.seed) % 7 if self.pace else 0):
            await asyncio.sleep(0)
        if number == self.fails_at:
            self.requests.append(request)
            raise RuntimeError("the engine fell")
        return await super().generate(request)


def shares(skew: float, count: int) -> list[float]:
    """Return `count` probabilities, the first of them `skew` of what is left, and so on."""
    parts = [skew * (1 - skew) ** place for place in range(count - 1)]
    return [*parts, 1 - sum(parts)]


@dataclass(frozen=True)
class GrownGroup:
    trees: tuple[Tree, ...]

    @property
    def spent(self) -> Cost:
        """All that their searches spent, replays included."""
        return sum((tree.nodes[0].stats.spent for tree in self.trees if tree.nodes[0].stats is not None), Cost())


async def grow_group(
    strategy: Strategy, job: EpisodeJob, context: RolloutContext, *, group_size: int, abort: AbortHandle | None = None
) -> GrownGroup:
    make_job = episode_factory(job)
    trees = await run_concurrently(
        [
            strategy.grow_tree(make_job(number), context, group_size=group_size, abort=abort)
            for number in range(strategy.num_trees(group_size))
        ]
    )
    return GrownGroup(tuple(trees))


def grow(
    strategy: Strategy,
    policy: ScriptedPolicy | None = None,
    *,
    job: EpisodeJob | None = None,
    make_env: Callable[[], Parrot] = lambda: Parrot(max_turns=4),
    agent: Agent | None = None,
    group_size: int = 6,
    slots: int = 64,
    seed: int = 7,
    abort: AbortHandle | None = None,
) -> GrownGroup:
    job = job or parrot_job(make_env, seed=seed, tree_id="g")

    async def work() -> GrownGroup:
        context = RolloutContext(
            agent=agent or char_agent(max_turn_tokens=12),
            policy=policy or Babbler(),
            sampling=Sampling(),
            slots=asyncio.Semaphore(slots),
            clock=zero,
        )
        return await grow_group(strategy, job, context, group_size=group_size, abort=abort)

    return asyncio.run(work())


def episodes(trees: Sequence[Tree]) -> list[Trajectory]:
    return [episode for tree in trees for episode in trajectories(tree)]


def ended(tree: Tree) -> list[int]:
    """Return every node at which an episode ended, kept or not."""
    return [index for index, node in enumerate(tree.nodes) if node.ending is not None]


def answer(
    strategy: Strategy,
    policy: ScriptedPolicy,
    *,
    make_env: Callable[[], Parrot] = lambda: Parrot(max_turns=4),
    agent: Agent | None = None,
    sampling: Sampling | None = None,
    seed: int = 7,
) -> Tree:
    async def work() -> Tree:
        context = RolloutContext(
            agent=agent or char_agent(max_turn_tokens=12),
            policy=policy,
            sampling=sampling or Sampling(),
            slots=asyncio.Semaphore(8),
            clock=zero,
        )
        return await strategy.answer(parrot_job(make_env, seed=seed, tree_id="g"), context)

    return asyncio.run(work())
