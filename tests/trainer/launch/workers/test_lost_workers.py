"""Rollout workers that are lost, or do not answer, and what the others are told meanwhile."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.turns import Ending
from envgym.errors import RunError
from envgym.runtime.http.connections import HttpConnections
from envgym.runtime.processes.restarts import REISSUED, failure_counts
from envgym.trainer.launch.workers.parts import PartsResources, WorkerParts
from envgym.trainer.launch.workers.server import RolloutWorker
from envgym.trainer.launch.workers.wire import ABORT, SETUP, TreeTask, WorkerSetup
from envgym.trainer.rollout.journal import TurnJournal
from tests.trainer.launch.workers.test_fleet import (
    ROLES,
    Fleet,
    grown_here,
    make_setup,
    make_worker,
    order,
    play,
    until,
    untimed,
)


def test_workers_are_told_of_other_weights_while_a_tree_is_under_way(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        await item.run.set_up()
        item.workers[0].hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), AbortHandle()))
        await until(lambda: item.workers[0].num_sampled)
        item.weights.append(WeightsState(1, "digest"))
        await item.run.tell_weights()
        newest = WeightsState(1, "digest", revision=1)
        assert [worker.followed for worker in item.workers] == [[newest], [newest]]
        assert not growing.done()
        item.workers[0].hold.set()
        await growing

    play(tmp_path, work)


def test_a_tree_that_loses_two_workers_comes_back_invalid_and_each_loss_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("envgym.trainer.launch.workers.fleet.warn_user", warnings.append)
    monkeypatch.setattr("envgym.trainer.launch.workers.fleet._AGAIN_S", 0.05)

    async def work(item: Fleet) -> None:
        before = failure_counts()
        await item.run.set_up()
        for worker in item.workers:
            worker.hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), AbortHandle()))
        for role, worker in zip(ROLES, item.workers, strict=True):
            await until(lambda worker=worker: worker.server._aborts)  # type: ignore[misc]  # bound at once
            worker.die()
            await asyncio.sleep(0.3)  # some attempts, before the death is known
            item.addresses.note(role, None)
        other = make_worker(ROLES[0], tmp_path)
        item.addresses.note(ROLES[0], {"url": await other.server.http.listen("127.0.0.1", 0)})
        tree = await growing
        (leaf,) = tree.leaves
        told = "2 rollout workers were lost while they played it"
        assert (tree.nodes[leaf].ending, tree.nodes[leaf].error) == (Ending.ERROR_ABORTED, told)
        assert (failure_counts() - before)[REISSUED] == 2
        assert warnings == [f"{order().tree_id} is not played any more: {told}"]
        assert other.num_sampled == 0
        await other.server.close()

    play(tmp_path, work)


def test_a_worker_that_is_not_set_up_in_time_is_one_sentence(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        item.workers[0].die()
        with pytest.raises(
            RunError, match=r"rollout-worker-0 must be set up within 0\.2 s, got ConnectionFailed: .*log"
        ):
            await item.run.set_up()

    play(tmp_path, work, wait_s=0.2)


def test_a_worker_that_dies_while_it_is_set_up_is_set_up_when_it_serves_again(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        item.workers[0].die()
        setting_up = asyncio.ensure_future(item.run.set_up())
        await asyncio.sleep(0.1)
        other = make_worker(ROLES[0], tmp_path)
        item.addresses.note(ROLES[0], {"url": await other.server.http.listen("127.0.0.1", 0)})
        await setting_up
        assert other.server._parts is not None
        await other.server.close()

    play(tmp_path, work)


def test_a_tree_whose_abort_is_not_answered_ends_in_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(item: Fleet) -> None:
        item.addresses.note(ROLES[1], None)
        await item.run.set_up()
        (worker, _), abort = item.workers, AbortHandle()
        worker.hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), abort))
        await until(lambda: worker.num_sampled)
        sound = item.run._ask

        async def ask(link: Any, path: str, body: Any, **options: Any) -> Any:  # as there
            if path == ABORT:
                raise TimeoutError
            return await sound(link, path, body, **options)

        monkeypatch.setattr(item.run, "_ask", ask)
        abort.abort("a straggler")
        tree = await growing  # which was sent once more, aborted
        (leaf,) = tree.leaves
        assert tree.nodes[leaf].ending is Ending.ERROR_ABORTED
        await until(lambda: not worker.server._aborts)

    play(tmp_path, work)


def test_a_second_break_of_the_same_worker_costs_no_turn_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envgym.trainer.launch.workers.fleet._AGAIN_S", 0.5)
    turns = tmp_path / f"turns-00000000.{ROLES[0]}.jsonl"

    async def work(item: Fleet) -> None:
        await item.run.set_up()
        breaking, other = item.workers
        breaking.hold.clear()
        port = urlsplit(breaking.server.http.url).port or 0
        for number in range(2):
            await until(lambda: all(time.monotonic() >= link.usable_from for link in item.run._synchronized()))
            growing = asyncio.ensure_future(item.run.grower()(order(number), AbortHandle()))
            await until(lambda: turns.exists() and turns.read_bytes().count(b"\n") == number + 1)  # noqa: B023  # awaited
            breaking.die()
            await until(lambda: item.run._links[ROLES[0]].usable_from > time.monotonic())
            await breaking.server.http.listen("127.0.0.1", port)
            assert untimed(await growing) == untimed(await grown_here(order(number)))
            assert item.grown[number].reused.turns == 1
            assert (breaking.num_sampled, other.num_sampled) == (number + 1, 2 * (number + 1))  # of three turns each

    play(tmp_path, work)


def test_an_order_that_is_sent_again_over_another_connection_goes_on_from_its_turns(tmp_path: Path) -> None:
    turns = tmp_path / f"turns-00000000.{ROLES[0]}.jsonl"

    async def work(item: Fleet) -> None:
        await item.run.set_up()  # over the connection that the order takes, too
        (worker, _) = item.workers
        worker.hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), AbortHandle()))
        await until(lambda: turns.exists() and b"\n" in turns.read_bytes())
        worker.break_connections()
        await until(lambda: worker.server.http.connections)
        worker.hold.set()
        assert untimed(await growing) == untimed(await grown_here(order()))
        assert item.grown[0].reused.turns == 1
        assert worker.num_sampled == 3  # turns of the tree

    play(tmp_path, work)


def test_a_worker_that_dies_during_an_update_goes_on_with_the_new_weights(tmp_path: Path) -> None:
    async def work(item: Fleet) -> None:
        item.addresses.note(ROLES[1], None)
        await item.run.set_up()
        dying = item.workers[0]
        dying.hold.clear()
        growing = asyncio.ensure_future(item.run.grower()(order(), AbortHandle()))
        await until(lambda: list(tmp_path.glob("turns-*")))
        item.weights.append(WeightsState(1, "digest"))  # the policy servers are updated
        dying.die()
        await item.run.tell_weights()
        item.addresses.note(ROLES[0], None)
        other = make_worker(ROLES[0], tmp_path)
        item.addresses.note(ROLES[0], {"url": await other.server.http.listen("127.0.0.1", 0)})
        assert untimed(await growing) == untimed(await grown_here(order()))
        assert other.num_sampled == 2  # of three turns
        parts = other.server._parts
        assert parts is not None
        assert parts._weights == WeightsState(1, "digest", revision=1)
        assert dying.followed == other.followed == []  # the new one was set up with them
        await other.server.close()

    play(tmp_path, work)


def test_a_worker_whose_first_setup_failed_is_set_up_by_the_next(tmp_path: Path) -> None:
    sound, errors = make_worker(ROLES[0], None).server._build, [OSError("the disk is gone")]

    def build(setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
        if errors:
            raise errors.pop()
        return sound(setup, resources)

    async def work() -> None:
        worker = RolloutWorker(ROLES[0], token=None, build=build)
        with pytest.raises(OSError, match="the disk is gone"):
            await worker._set_up(make_setup(tmp_path).to_json())
        assert await worker._set_up(make_setup(tmp_path).to_json()) == {}
        assert worker._parts is not None
        await worker.close()

    asyncio.run(work())


def test_setups_that_come_at_once_are_carried_out_one_after_another(tmp_path: Path) -> None:
    sound, opened, closed, may_go_on = (
        make_worker(ROLES[0], None).server._build,
        list[int](),
        list[int](),
        threading.Event(),
    )

    def build(setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
        resources.callback(closed.append, len(opened))
        opened.append(len(opened))
        may_go_on.wait(20)
        return sound(setup, resources)

    async def work() -> None:
        worker = RolloutWorker(ROLES[0], token=None, build=build)
        setups = [asyncio.ensure_future(worker._set_up(make_setup(tmp_path).to_json())) for _ in range(3)]
        await until(lambda: opened)
        may_go_on.set()
        assert await asyncio.gather(*setups) == [{}, {}, {}]
        assert (opened, closed) == ([0, 1, 2], [0, 1])
        await worker.close()

    asyncio.run(work())
    assert closed == [0, 1, 2]


@pytest.mark.parametrize("num_breaks", [1, 2, 3])
def test_no_break_of_a_tree_costs_a_turn(tmp_path: Path, num_breaks: int) -> None:
    TurnJournal(tmp_path, run="this", version=0, staleness=0).close()
    worker, task = make_worker(ROLES[0], tmp_path), TreeTask(order(), 0, WeightsState(0))
    worker.hold.clear()

    async def work() -> None:
        with PartsResources() as resources:
            parts = worker.server._build(make_setup(tmp_path), resources)
            for number in range(num_breaks):
                growing = asyncio.ensure_future(parts.grow(task, AbortHandle()))
                await until(lambda: worker.num_sampled)
                if number:
                    await until(lambda: parts.take_reused().turns)
                growing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await growing
            worker.hold.set()
            tree, _ = await parts.grow(task, AbortHandle())
            assert untimed(tree) == untimed(await grown_here(order()))
            assert worker.num_sampled == 3  # turns of the tree
            assert parts.take_reused().turns == 1

    asyncio.run(work())


def test_a_setup_that_is_given_up_builds_no_further_part(tmp_path: Path) -> None:
    begun, may_go_on, parts = threading.Event(), threading.Event(), list[str]()

    def build(setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
        resources.callback(parts.append, "first part closed")
        begun.set()
        may_go_on.wait(20)
        resources.check_wanted()
        parts.append("second part")
        raise AssertionError

    async def work() -> None:
        worker = RolloutWorker(ROLES[0], token=None, build=build)
        connections = HttpConnections(await worker.http.listen("127.0.0.1", 0))
        with pytest.raises(TimeoutError):
            await connections.ask("POST", SETUP, make_setup(tmp_path).to_json(), timeout_s=0.2)
        assert begun.is_set()
        await until(lambda: worker._resources.is_abandoned)
        may_go_on.set()
        await until(lambda: parts)
        await connections.close()
        await worker.close()

    asyncio.run(work())
    assert parts == ["first part closed"]
