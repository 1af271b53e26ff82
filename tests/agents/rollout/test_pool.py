"""Rollouts that are submitted while others run, those that are aborted, and the garbage collector around them."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable

import pytest

from envgym import Action, Ending, Invalid, Reply, Scored
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle, GrowTreeFn, RolloutPool
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.errors import InvalidInput
from tests.support.parrots import Parrot, char_agent, parrot_job, said


class Stuck(ScriptedPolicy):
    """Says `a` for ever, but for the seeds that it never answers."""

    def __init__(self, *seeds: int) -> None:
        super().__init__(lambda request: said("bye"))
        self._seeds, self.under_way = seeds, 0

    async def generate(self, request: GenerateRequest) -> Generation:
        if request.seed in self._seeds:
            self.under_way += 1
            await asyncio.Event().wait()
        return await super().generate(request)


def job(number: int) -> EpisodeJob:
    return parrot_job(Parrot, seed=number, tree_id=f"t{number}")


def first_seed(number: int) -> int:
    """Return the seed of the first request of job `number`."""
    policy = ScriptedPolicy(lambda request: said("bye"))
    seen: list[int] = []

    class Spy(ScriptedPolicy):
        async def generate(self, request: GenerateRequest) -> Generation:
            seen.append(request.seed)
            return await policy.generate(request)

    asyncio.run(run_episode(job(number), char_agent(), Spy(lambda request: said("bye")), sampling=Sampling()))
    return seen[0]


def rollout(job: EpisodeJob, policy: ScriptedPolicy) -> GrowTreeFn:
    def run(abort: AbortHandle) -> Awaitable[Tree]:
        return run_episode(job, char_agent(), policy, sampling=Sampling(), abort=abort)

    return run


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for is in another's hands
            await asyncio.sleep(0.001)


def test_an_episode_that_is_aborted_is_kept_as_invalid_and_the_others_go_on() -> None:
    async def work() -> list[Tree]:
        policy = Stuck(first_seed_of_one)
        pool = RolloutPool(concurrency=2)
        pending = [pool.submit(rollout(job(number), policy)) for number in range(4)]
        await until(lambda: policy.under_way == 1 and all(pending[place].tree.done() for place in (0, 2, 3)))
        pool.abort(pending[1], "too slow")
        return [await item.tree for item in pending]

    first_seed_of_one = first_seed(1)
    episodes = [trajectories(tree)[0] for tree in asyncio.run(work())]
    assert [episode.ending for episode in episodes].count(Ending.TERMINATED) == 3
    assert episodes[1].ending is Ending.ERROR_ABORTED
    assert episodes[1].reward == Invalid(cause=Ending.ERROR_ABORTED, reason="too slow")
    assert isinstance(episodes[0].reward, Scored)


def test_one_that_has_not_begun_ends_without_an_env_and_without_waiting_for_a_place() -> None:
    made: list[int] = []

    def make() -> Parrot:
        made.append(1)
        return Parrot()

    async def work() -> Tree:
        policy = Stuck(first_seed_of_none)
        pool = RolloutPool(concurrency=1)
        pool.submit(rollout(job(0), policy))
        waits = pool.submit(rollout(parrot_job(make, seed=1, tree_id="waits"), policy))
        await until(lambda: policy.under_way == 1)
        pool.abort(waits, "no time")
        tree = await asyncio.wait_for(waits.tree, 5)
        await pool.close()
        return tree

    first_seed_of_none = first_seed(0)
    (episode,) = trajectories(asyncio.run(work()))
    assert (episode.ending, episode.reward, made) == (
        Ending.ERROR_ABORTED,
        Invalid(cause=Ending.ERROR_ABORTED, reason="no time"),
        [],
    )


def test_an_env_that_hangs_in_its_thread_is_left_behind_and_closed_when_it_wakes() -> None:
    wakes, closed = threading.Event(), threading.Event()

    class Hanging(Parrot):
        blocking = True

        def respond(self, action: Action) -> Reply:
            wakes.wait(60)
            return super().respond(action)

        def close(self) -> None:
            closed.set()
            super().close()

    async def work() -> Tree:
        pool = RolloutPool(concurrency=1)
        pending = pool.submit(rollout(parrot_job(Hanging, seed=0, tree_id="hangs"), Stuck()))
        await asyncio.sleep(0.2)
        pool.abort(pending, "hangs")
        return await asyncio.wait_for(pending.tree, 5)

    (episode,) = trajectories(asyncio.run(work()))
    assert episode.ending is Ending.ERROR_ABORTED
    assert not closed.is_set()
    wakes.set()
    assert closed.wait(60)


def test_an_abort_after_the_end_changes_nothing() -> None:
    async def work() -> Tree:
        pool = RolloutPool(concurrency=1)
        pending = pool.submit(rollout(job(0), Stuck()))
        await pending.tree
        pool.abort(pending, "too late")
        return await pending.tree

    (episode,) = trajectories(asyncio.run(work()))
    assert episode.ending is Ending.TERMINATED


def test_a_pool_that_is_closed_cancels_what_runs() -> None:
    async def work() -> bool:
        policy = Stuck(first_seed_of_none)
        pool = RolloutPool(concurrency=1)
        pending = [pool.submit(rollout(job(number), policy)) for number in range(2)]
        await until(lambda: policy.under_way == 1)
        await pool.close()
        return pending[0].tree.cancelled()

    first_seed_of_none = first_seed(0)
    assert asyncio.run(work())


def test_without_a_place_nothing_can_run() -> None:
    with pytest.raises(InvalidInput, match="concurrency must be at least 1, got 0"):
        RolloutPool(concurrency=0)


def test_rollout_that_is_submitted_as_another_ends_is_run() -> None:
    async def work() -> list[str]:
        pool, policy = RolloutPool(concurrency=1), ScriptedPolicy(lambda request: said("bye"))
        trees = [await pool.submit(rollout(job(number), policy)).tree for number in range(3)]
        await pool.close()
        return [tree.id for tree in trees]

    assert asyncio.run(asyncio.wait_for(work(), 10)) == ["t0", "t1", "t2"]


def test_a_tree_that_nobody_waits_for_any_more_ends_without_an_error() -> None:
    errors: list[object] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        pool = RolloutPool(concurrency=1)
        pending = pool.submit(rollout(job(1), ScriptedPolicy(lambda request: said("bye"))))
        pending.tree.cancel()  # as an interrupt cancels what waits
        after = pool.submit(rollout(job(2), ScriptedPolicy(lambda request: said("bye"))))
        assert (await after.tree).id == "t2", "the next one has its turn"
        await pool.close()

    asyncio.run(work())
    gc.collect()  # what was never retrieved is told then
    assert errors == []
