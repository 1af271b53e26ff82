"""Envs on servers that are called in an event loop play as envs that are called in a thread do."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.agents.rollout.episode import EpisodeEnv, EpisodeJob
from envgym.core.messages import Action
from envgym.core.tasks import Split
from envgym.core.turns import Ending
from envgym.env import Env
from envgym.errors import ResetNeeded
from envgym.records import StepRecord
from envgym.serving.client import env_loop
from envgym.serving.held_session import EnvSession
from envgym.serving.pool import pool_of
from envgym.serving.remote_env import RemoteEnv
from envgym.serving.server import EnvServer
from envgym.serving.sessions import SessionLimits
from envgym.wrappers.base import AnyEnv, TextOnly
from envgym.wrappers.limits import TurnLimit
from envgym.wrappers.prompts import GivenHint
from envgym.wrappers.record import Record
from tests.support.env_server import COUNTER, SLOW_COUNTER, WAIT_S, redirect, running_server, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with running_server(COUNTER, SLOW_COUNTER) as server:
        yield server


def make(server: EnvServer, env_id: str = COUNTER) -> Env[None]:
    return envgym.make(f"{server.http.url}/{env_id}")


def episode(env: AnyEnv) -> EpisodeEnv:
    task = env.unwrapped.tasks.task(Split.TRAIN, 1)
    job = EpisodeJob(make_env=lambda: env, task=task, seed=5, tree_id="t", env_id="e")  # type: ignore[arg-type, return-value]  # wrappers too
    return EpisodeEnv(job)


def record_of(info: dict[str, object]) -> StepRecord:
    record = info["envgym"]
    assert isinstance(record, StepRecord)
    return record


@pytest.mark.parametrize("env_id", [COUNTER, SLOW_COUNTER])
def test_an_episode_and_its_fork_are_those_of_blocking_calls(server: EnvServer, env_id: str) -> None:
    with closing(make(server, env_id)) as env:
        task = env.unwrapped.tasks.task(Split.TRAIN, 1)
        first = env.reset(seed=5, options={"task": task}).info["envgym"]
        env.step("go")
        with closing(env.fork()) as twin:
            blocking = [record_of(each.step("go").info) for each in (env, twin)]

    async def play() -> list[object]:
        one = episode(make(server, env_id))
        threads = threading.active_count()
        again = await one.reset()
        await one.step(Action("go"))
        other = await one.fork()
        records = [record_of((await each.step(Action("go"))).info) for each in (one, other)]
        assert threading.active_count() <= threads + 2  # the loop of all envs, and the renewal of their leases
        await one.close()
        await other.close()
        return [again, records]

    assert asyncio.run(play()) == [first, blocking]
    wait_until(lambda: len(server.sessions) == 0)


def test_no_episode_has_a_thread(server: EnvServer) -> None:
    async def play() -> list[str]:
        episodes = [episode(make(server)) for _ in range(20)]
        await asyncio.gather(*[item.reset() for item in episodes])
        names = [thread.name for thread in threading.enumerate()]
        await asyncio.gather(*[item.close() for item in episodes])
        return names

    assert not [name for name in asyncio.run(play()) if name.startswith("env-t")]


def test_wrappers_that_only_look_at_results_keep_the_coroutines(server: EnvServer, tmp_path: Path) -> None:
    limited = TurnLimit(TextOnly(make(server)), 2)
    assert limited.async_calls() is not None
    assert GivenHint(make(server), metadata_key="how").async_calls() is not None
    assert GivenHint(make(server)).async_calls() is None  # it sends a request for the oracle's action
    recording = Record(TextOnly(make(server)), tmp_path / "episodes.jsonl")
    assert recording.async_calls() is None  # it writes a file

    async def play(env: AnyEnv) -> list[Ending | None]:
        one = episode(env)
        await one.reset()
        endings = [record_of((await one.step(Action("go"))).info).ending for _ in range(2)]
        await one.close()
        return endings

    assert asyncio.run(play(limited)) == [None, Ending.TRUNCATED_TURNS]
    assert asyncio.run(play(recording)) == [None, None]
    assert (tmp_path / "episodes.jsonl").read_text().count("\n") == 1


def test_a_server_that_is_gone_ends_the_episode_with_the_record_of_a_blocking_call(server: EnvServer) -> None:
    client = pool_of((server.http.url,)).clients[0]
    place, reconnect_s = client._place, client.reconnect_s

    async def play() -> StepRecord:
        one = episode(make(server))
        await one.reset()
        redirect(client, ("127.0.0.1", 9))
        client.close_idle()
        record = record_of((await one.step(Action("go"))).info)
        redirect(client, place)
        await one.close()
        return record

    with closing(make(server)) as env:
        env.reset(seed=5)
        client.reconnect_s = 0.0
        try:
            lost = asyncio.run(play())
            redirect(client, ("127.0.0.1", 9))
            client.close_idle()
            again = record_of(env.step("go").info)
        finally:
            redirect(client, place)
            client.reconnect_s = reconnect_s
    assert lost.ending is again.ending is Ending.ERROR_ENV
    assert (lost.error or "").partition(", got")[0] == (again.error or "").partition(", got")[0]
    wait_until(lambda: len(server.sessions) == 0)


def test_a_cancelled_call_leaves_no_session_on_the_server(server: EnvServer) -> None:
    async def play() -> None:
        one = episode(make(server, SLOW_COUNTER))
        await one.reset()
        waiting = asyncio.ensure_future(one.step(Action("wait 0.2")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        one.abandon()

    asyncio.run(play())
    wait_until(lambda: len(server.sessions) == 0)


@pytest.mark.parametrize("in_thread", [True, False])
def test_an_env_that_is_abandoned_while_it_opens_its_session_leaves_none(
    server: EnvServer, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    """The server has opened the session, and the env does not have it yet."""
    is_open, is_abandoned, hold = threading.Event(), threading.Event(), EnvSession.hold

    def hold_late(session: EnvSession) -> None:
        hold(session)
        is_open.set()
        assert is_abandoned.wait(WAIT_S)

    monkeypatch.setattr(EnvSession, "hold", hold_late)

    async def play() -> None:
        one = episode(make(server))
        if in_thread:  # as an episode of a program does
            one.make()
        waiting = asyncio.ensure_future(one.call("reset", one.env.reset, seed=5) if in_thread else one.reset())
        await asyncio.sleep(0)
        assert is_open.wait(WAIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        one.abandon()
        is_abandoned.set()

    asyncio.run(play())
    wait_until(lambda: len(server.sessions) == 0)


def cancelled_after_its_work(call: Coroutine[Any, Any, object], is_done: Callable[[], bool]) -> None:
    """Cancel a call between its end in the event loop of the envs and the return of its result."""

    async def play() -> None:
        waiting = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        wait_until(is_done)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(play())


def test_a_fork_whose_caller_is_cancelled_after_it_was_made_is_closed(server: EnvServer) -> None:
    with closing(make(server)) as env:
        env.reset(seed=5)
        calls, client = env.async_calls(), pool_of((server.http.url,)).clients[0]
        assert calls is not None
        cancelled_after_its_work(calls.fork(), lambda: len(client.held) == 2)
        wait_until(lambda: len(server.sessions) == 1)
        assert env.step("go").observation == "turn 1"


def test_after_a_step_whose_caller_is_cancelled_the_episode_does_not_go_on(server: EnvServer) -> None:
    with closing(make(server)) as env:
        env.reset(seed=5)
        assert isinstance(env, RemoteEnv)
        session = env._running()
        cancelled_after_its_work(
            env.async_calls().step("go"), lambda: session._number == 1 and not session._lock.locked()
        )
        record = record_of(env.step("go").info)
        assert record.ending is Ending.ERROR_ENV
        assert "session must have a reply to each call" in (record.error or "")
        with pytest.raises(ResetNeeded):
            env.step("go")
        env.reset(seed=5)
        assert env.step("go").observation == "turn 1"
        wait_until(lambda: len(server.sessions) == 1)  # the lost one was closed


@pytest.mark.parametrize("has_thread", [True, False])
def test_a_close_that_is_cancelled_closes_the_session(server: EnvServer, has_thread: bool) -> None:
    may_go_on = threading.Event()

    async def play() -> None:
        one = episode(make(server))
        await one.reset()
        if has_thread:
            await one.call("oracle", one.env.unwrapped.oracle)
            asyncio.ensure_future(one.call("wait", may_go_on.wait, WAIT_S))  # noqa: RUF006  # it ends before the close
        else:
            pool_of((server.http.url,)).clients[0].close_idle()  # so that the request waits for a connection
            env_loop().call(lambda: may_go_on.wait(WAIT_S))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(one.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        may_go_on.set()

    asyncio.run(play())
    wait_until(lambda: len(server.sessions) == 0)


def test_episodes_that_wait_for_a_free_session_do_not_keep_others_from_ending() -> None:
    limits = SessionLimits(sessions=1)

    async def play(url: str) -> list[Ending | None]:
        async def one() -> Ending | None:
            item = episode(envgym.make(f"{url}/{COUNTER}"))
            await item.reset()
            ending = record_of((await item.step(Action("end"))).info).ending
            await item.close()
            return ending

        return await asyncio.gather(*[one() for _ in range(3)])

    with running_server(COUNTER, limits=limits) as server:
        assert asyncio.run(play(server.http.url)) == [Ending.TERMINATED] * 3


def test_sessions_that_are_opened_at_the_same_time_are_shared_by_the_servers() -> None:
    with running_server(COUNTER) as first, running_server(COUNTER) as second:
        address = f"{first.http.url},{second.http.url.removeprefix('http://')}/{COUNTER}"

        async def play() -> None:
            episodes = [episode(envgym.make(address)) for _ in range(8)]
            await asyncio.gather(*[each.reset() for each in episodes])
            for each in episodes:
                await each.close()

        asyncio.run(play())
        assert (first.metrics.opened, second.metrics.opened) == (4, 4)
