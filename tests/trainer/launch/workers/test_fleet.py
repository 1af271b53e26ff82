"""Workers in this process, each with an HTTP server of its own: which one grows a tree, and what follows its loss."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search import Chain, RolloutContext
from envgym.core.trajectory import StartState
from envgym.core.tree import Tree
from envgym.core.turns import Ending
from envgym.core.version import __version__
from envgym.errors import RunError
from envgym.trainer.checks.mask_audit import SampledTurn
from envgym.trainer.env_source import EnvSource
from envgym.trainer.launch.workers.addresses import WorkerAddresses
from envgym.trainer.launch.workers.fleet import RolloutWorkers
from envgym.trainer.launch.workers.parts import PartsResources, WorkerParts
from envgym.trainer.launch.workers.server import RolloutWorker
from envgym.trainer.launch.workers.wire import (
    GrownTree,
    TreeTask,
    WorkerSetup,
    tree_task_from_json,
    tree_task_to_json,
)
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.rollout.journal import ReusedTurns, TurnJournal
from envgym.trainer.rollout.trees import TreeGrower, TreeOrder
from tests.support.parrots import Parrot, ParrotTasks, char_agent, parrot_task, said
from tests.support.tiny_runs import tiny_settings

SETTINGS = tiny_settings(agent={"max_turn_tokens": 20, "max_context_tokens": 1000}, filter="keep_all")
SOURCES = {
    "parrot": EnvSource(label="parrot", env_id="parrot", weight=1, make=Parrot, tasks=ParrotTasks(), held_out=())
}
REQUEST = TaskRequest("parrot", 0, 2)
ROLES = ("rollout-worker-0", "rollout-worker-1")


def words(request: GenerateRequest) -> tuple[int, ...]:
    """Say two words that depend on the seed, then bye."""
    num_turns = sum(token == 0x110002 for token in request.token_ids)
    return said(f"w{request.seed % 97}") if num_turns < 3 else said("bye")


def order(number: int = 0, index: int = 0, **changes: Any) -> TreeOrder:
    return TreeOrder(request=replace(REQUEST, **changes), task=parrot_task("Q"), step=4, number=number, index=index)


@dataclass
class Worker:
    """A worker, and what it sampled."""

    server: RolloutWorker
    policy: ScriptedPolicy
    hold: asyncio.Event
    followed: list[WeightsState]

    def die(self) -> None:
        """Leave what a process that dies leaves: nothing listens, and all connections are gone."""
        listener = self.server.http._listener
        assert listener is not None, "it was started"
        listener.close()
        self.break_connections()

    def break_connections(self) -> None:
        """Drop all connections; the worker lives."""
        for connection in list(self.server.http.connections):
            connection.drop()

    @property
    def num_sampled(self) -> int:
        return len(self.policy.requests)


class Held(ScriptedPolicy):
    """Answers all but the first turn of an episode only when it may."""

    def __init__(self, hold: asyncio.Event) -> None:
        super().__init__(words)
        self._hold = hold

    async def generate(self, request: GenerateRequest) -> Any:  # as above
        if sum(token == 0x110002 for token in request.token_ids) > 1:
            await self._hold.wait()
        return await super().generate(request)


def make_worker(role: str, journal: Path | None) -> Worker:
    hold, followed = asyncio.Event(), list[WeightsState]()
    hold.set()
    policy = Held(hold)

    def build(setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
        turns = None
        if journal is not None:
            turns = TurnJournal(journal, run=setup.run, version=0, staleness=0, worker=role)
            resources.callback(turns.close)
        return WorkerParts(
            SETTINGS,
            plan=setup.plan,
            env_sources=SOURCES,
            agent=char_agent(),
            policy=policy,
            follow=followed.append,
            weights=setup.weights,
            journal=turns,
            audits=setup.audits,
            concurrency=8,
        )

    return Worker(RolloutWorker(role, token="secret", build=build), policy, hold, followed)


@dataclass
class Fleet:
    """The workers, and the run's side of them."""

    workers: list[Worker]
    addresses: WorkerAddresses
    run: RolloutWorkers
    grown: list[GrownTree]
    weights: list[WeightsState]
    """The last one is that of the policy servers."""


def make_setup(tmp_path: Path, *, version: str = __version__) -> WorkerSetup:
    return WorkerSetup(
        version=version,
        settings=SETTINGS.model_dump(mode="json"),
        plan=0,
        run="this",
        num_workers=2,
        weights=WeightsState(0),
        policy_servers=(),
        transport="files",
        env_servers=(),
        list_file=None,
        start_s=None,
        journal=str(tmp_path),
        audits=True,
    )


@asynccontextmanager
async def fleet(tmp_path: Path, *, version: str = __version__, wait_s: float = 5.0) -> AsyncIterator[Fleet]:
    TurnJournal(tmp_path, run="this", version=0, staleness=0).close()
    async with AsyncExitStack() as stack:
        workers = [make_worker(role, tmp_path) for role in ROLES]
        for worker in workers:
            await worker.server.http.listen("127.0.0.1", 0)
            stack.push_async_callback(worker.server.close)
        urls = [worker.server.http.url for worker in workers]
        addresses = WorkerAddresses(dict(zip(ROLES, urls, strict=True)))
        weights, grown = [WeightsState(0)], list[GrownTree]()
        run = RolloutWorkers(
            addresses,
            make_setup(tmp_path, version=version),
            weights=lambda: weights[-1],
            on_grown=grown.append,
            token="secret",
            logs=Path("logs"),
            wait_s=wait_s,
        )
        stack.push_async_callback(run.close)
        yield Fleet(workers, addresses, run, grown, weights)


def play(tmp_path: Path, work: Callable[[Fleet], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with fleet(tmp_path, **options) as item, asyncio.timeout(20):
            await work(item)

    asyncio.run(whole())


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(0.01)


def untimed(tree: Tree) -> Tree:
    """Return a tree without what a clock has measured."""
    nodes = [replace(node, edge=replace(node.edge, cost=replace(node.edge.cost, seconds=0.0))) for node in tree.nodes]
    return replace(tree, nodes=tuple(nodes))


async def grown_here(item: TreeOrder) -> Tree:
    context = RolloutContext(
        agent=replace(char_agent(), settings=SETTINGS.agent),
        policy=ScriptedPolicy(words),
        sampling=SETTINGS.sampling.sampling,
        slots=asyncio.Semaphore(1),
    )
    grower = TreeGrower(env_sources=SOURCES, context=context, search=Chain(), seed=SETTINGS.run.seed)
    return await grower(item, AbortHandle())


def test_a_tree_of_a_worker_is_that_of_one_process(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        first = await grown_here(order())
        start = StartState(tree=first, node=1)
        for ordered in (order(), order(2, 3), order(hint="Be brief."), order(start=start), order(direct=True)):
            assert untimed(await item.run.grower()(ordered, AbortHandle())) == untimed(await grown_here(ordered))
        assert [len(grown.sampled) for grown in item.grown] == [3, 3, 3, 2, 3]

    play(tmp_path, work)


def test_the_turns_that_a_worker_reports_are_those_of_its_tree(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        tree = await item.run.grower()(order(), AbortHandle())
        requests = item.workers[0].policy.requests
        generations = [await ScriptedPolicy(words).generate(request) for request in requests]
        expected = [SampledTurn.of(*pair) for pair in zip(requests, generations, strict=True)]
        assert list(item.grown[0].sampled) == expected
        assert item.grown[0].tree == tree

    play(tmp_path, work)


def test_a_group_stays_with_its_worker_and_another_goes_to_the_least_busy_one(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        await item.run.set_up()
        for worker in item.workers:
            worker.hold.clear()
        grow = item.run.grower()
        orders = [order(0, 0), order(0, 1), order(1, 0), order(2, 0), order(0, 2)]
        growing = [asyncio.ensure_future(grow(ordered, AbortHandle())) for ordered in orders]
        await until(lambda: sum(worker.num_sampled for worker in item.workers) == len(orders))
        # group 0: the first worker; 1: the second, which has none; 2: the second, which has 1 of 3
        assert [worker.num_sampled for worker in item.workers] == [3, 2]
        for worker in item.workers:
            worker.hold.set()
        await asyncio.gather(*growing)

    play(tmp_path, work)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_tree_of_a_lost_worker_goes_on_elsewhere_without_a_turn_being_sampled_again(
    tmp_path: Path, is_restarted: bool
) -> None:
    async def work(item: Fleet) -> None:
        one, other = item.workers
        if is_restarted:
            item.addresses.note(ROLES[1], None)
        one.hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), AbortHandle()))
        await until(lambda: list(tmp_path.glob("turns-*")))
        one.die()
        if is_restarted:
            item.addresses.note(ROLES[0], None)
            other = make_worker(ROLES[0], tmp_path)
            url = await other.server.http.listen("127.0.0.1", 0)
            item.addresses.note(ROLES[0], {"url": url})
        tree = await growing
        assert untimed(tree) == untimed(await grown_here(order()))
        assert other.num_sampled == 2  # of three turns
        assert item.grown[0].reused == ReusedTurns(1, len(words(one.policy.requests[0])))
        assert len(item.grown[0].sampled) == 3  # the audit needs all
        await other.server.close()

    play(tmp_path, work)


def test_an_abort_ends_the_branches_under_way_and_keeps_what_was_played(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        for worker in item.workers:
            worker.hold.clear()
        abort, early = AbortHandle(), AbortHandle()
        growing = asyncio.ensure_future(item.run.grower()(order(), abort))
        await until(lambda: item.workers[0].num_sampled)
        abort.abort("a straggler")
        early.abort("not begun")
        for tree, reason in ((await growing, "a straggler"), (await item.run.grower()(order(1), early), "not begun")):
            (leaf,) = tree.leaves
            assert (tree.nodes[leaf].ending, tree.nodes[leaf].error) == (Ending.ERROR_ABORTED, reason)
        assert item.workers[1].num_sampled == 0

    play(tmp_path, work)


def test_a_tree_that_is_cancelled_ends_in_its_worker(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        item.workers[0].hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), AbortHandle()))
        await until(lambda: item.workers[0].num_sampled)
        growing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await growing
        await until(lambda: not item.workers[0].server._aborts)

    play(tmp_path, work)


def test_workers_are_told_of_other_weights_and_of_no_older_ones(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        await item.run.set_up()
        item.weights.append(WeightsState(1, "digest"))
        await item.run.grower()(order(), AbortHandle())
        await until(lambda: all(worker.followed for worker in item.workers))
        newest = WeightsState(1, "digest", revision=1)
        assert [worker.followed for worker in item.workers] == [[newest], [newest]]
        parts = item.workers[0].server._parts
        assert parts is not None
        parts.follow(WeightsState(0, revision=0))
        assert item.workers[0].followed == [newest]

    play(tmp_path, work)


def test_groups_that_were_begun_keep_their_settings(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        before = item.run.grower()
        await item.run.set_up()
        data = SETTINGS.model_dump(mode="json")
        item.run.change({**data, "agent": {**data["agent"], "max_turn_tokens": 1}})
        after = item.run.grower()
        first, second = await before(order(), AbortHandle()), await after(order(1), AbortHandle())
        assert untimed(first) == untimed(await grown_here(order()))
        costs = [tree.nodes[1].edge.cost.tokens_generated for tree in (first, second)]
        assert costs[0] > costs[1] == 1

    play(tmp_path, work)


def test_another_version_is_one_sentence(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        told = rf"envgym must be 9\.9, as in the run's process, got {__version__} \(rollout-worker-\d\); install"
        with pytest.raises(RunError, match=told):
            await item.run.set_up()
        with pytest.raises(RunError, match=told):
            await item.run.grower()(order(), AbortHandle())

    play(tmp_path, work, version="9.9")


def test_without_a_worker_the_run_ends_with_one_sentence(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        for role in ROLES:
            item.addresses.note(role, None)
        with pytest.raises(RunError, match=r"a rollout worker must serve within 0\.1 s, got none \(logs\)"):
            await item.run.grower()(order(), AbortHandle())

    play(tmp_path, work, wait_s=0.1)


def test_an_order_travels_whole() -> None:
    async def make() -> TreeTask:
        tree = await grown_here(order())
        sampling = Sampling(temperature=0.7, stop_token_ids=(3,))
        changes = {"start": StartState(tree=tree, node=1), "sampling": sampling, "prompts": {"a": "{task}!"}}
        return TreeTask(
            order(7, 2, **changes), 3, WeightsState(5, "d", 2, 9, ("http://one 1",)), ("rollout-worker-1#2",), "late"
        )

    task = asyncio.run(make())
    assert tree_task_from_json(tree_task_to_json(task)) == task
