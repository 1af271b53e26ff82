"""Rollout workers that are lost, or do not answer, and what the others are told meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.turns import Ending
from envgym.errors import RunError
from envgym.runtime.processes.restarts import REISSUED, failure_counts
from envgym.trainer.launch.workers.wire import ABORT
from tests.trainer.launch.workers.test_fleet import ROLES, Fleet, make_worker, order, play, until


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
