"""Running coroutines from ordinary functions, outside and inside a running event loop."""

import asyncio
import contextvars
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from envgym.runtime.event_loop import DaemonThread, LoopThread, make_runner, run_coroutine, shared_loop
from tests.support.loops import in_a_running_loop

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


async def add(left: int, right: int) -> int:
    await asyncio.sleep(0)
    return left + right


def test_result_is_the_same_outside_and_inside_a_running_loop() -> None:
    assert run_coroutine(add(1, 2)) == 3
    assert in_a_running_loop(lambda: run_coroutine(add(1, 2))) == 3


def test_error_inside_a_running_loop_is_that_of_the_coroutine() -> None:
    async def fail() -> None:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        in_a_running_loop(lambda: run_coroutine(fail()))


def test_a_daemon_thread_makes_calls_one_after_the_other() -> None:
    thread = DaemonThread("calls")
    order: list[int] = []

    def call(number: int) -> threading.Thread:
        order.append(number)
        return threading.current_thread()

    calls = [thread.begin(partial(call, number)) for number in range(3)]
    failing = thread.begin(lambda: 1 / 0)
    thread.end()
    (one,) = {call.result(60) for call in calls}
    assert order == [0, 1, 2]
    assert one.daemon, "the end of the process does not wait for it"
    with pytest.raises(ZeroDivisionError):
        failing.result(60)
    one.join(60)
    assert not one.is_alive()


def test_one_runner_keeps_its_loop_and_leaves_no_thread() -> None:
    async def loop_id() -> int:
        return id(asyncio.get_running_loop())

    def work() -> tuple[int, int, int]:
        before = threading.active_count()
        with make_runner() as runner:
            first, second = runner.run(loop_id()), runner.run(loop_id())
        return first, second, threading.active_count() - before

    first, second, threads = in_a_running_loop(work)
    assert first == second
    assert threads == 0


def test_context_of_the_caller_is_seen() -> None:
    async def read() -> str:
        return VARIABLE.get()

    def work() -> str:
        VARIABLE.set("mine")
        return run_coroutine(read())

    assert in_a_running_loop(work) == "mine"


def test_interrupt_of_the_caller_cancels_the_work_and_waits_for_its_end() -> None:
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)  # the thread that waits for this one
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append("cancelled")
            raise

    def work() -> None:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel has it while a cell runs
        try:
            run_coroutine(wait_for_ever())
        finally:
            signal.signal(signal.SIGINT, previous)

    with pytest.raises(KeyboardInterrupt):
        in_a_running_loop(work)
    assert ended == ["cancelled"]


def test_users_of_a_name_share_a_loop() -> None:
    async def thread() -> str:
        return threading.current_thread().name

    loop = shared_loop("one-for-all")
    assert shared_loop("one-for-all") is loop
    assert shared_loop("another") is not loop
    assert loop.run(thread()) == "one-for-all"
    for name in ("one-for-all", "another"):
        shared_loop(name).close(asyncio.sleep(0))


def test_work_that_exits_does_not_end_a_shared_loop() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def in_a_task() -> None:
        await asyncio.create_task(leave())

    loop = shared_loop("exits")
    with pytest.raises(SystemExit):
        loop.run(in_a_task())
    assert loop.run(add(1, 2)) == 3


# ---- work for the coroutines of another loop -------------------------------------------------------------------------


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    loop = LoopThread("other")
    yield loop
    if loop.is_running:
        loop.close(asyncio.sleep(0))


def test_calls_of_another_loop_get_their_own_results_errors_and_contexts(thread: LoopThread) -> None:
    async def work(number: int) -> tuple[int, str, str]:
        await asyncio.sleep(0.001 * (number % 3))
        if number % 5 == 4:
            raise ValueError(str(number))
        return number, VARIABLE.get(), threading.current_thread().name

    async def ask(number: int) -> tuple[int, str, str]:
        VARIABLE.set(f"of {number}")
        return await thread.run_for(work(number))

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*[ask(number) for number in range(50)], return_exceptions=True)

    for number, found in enumerate(asyncio.run(ask_all())):
        if number % 5 == 4:
            assert isinstance(found, ValueError)
            assert str(found) == str(number)
        else:
            assert found == (number, f"of {number}", "other")


def test_calls_that_come_together_wake_the_other_thread_once(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes: list[object] = []
    sound = asyncio.BaseEventLoop.call_soon_threadsafe

    def counted(loop: Any, *arguments: Any, **named: Any) -> Any:
        wakes.append(loop)
        return sound(loop, *arguments, **named)

    async def ask_all() -> None:
        held = threading.Event()
        thread.call(lambda: held.wait(10))  # so that none is begun before all have come
        wakes.clear()
        calls = [asyncio.ensure_future(thread.run_for(add(1, number))) for number in range(100)]
        await asyncio.sleep(0)
        held.set()
        assert await asyncio.gather(*calls) == [1 + number for number in range(100)]

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", counted)
    asyncio.run(ask_all())
    assert wakes.count(thread._loop) == 1
    assert 1 <= len(wakes) - 1 <= 3, "the results come back together, after one or a few passes"


def test_a_caller_that_is_cancelled_cancels_its_work_whether_it_has_begun_or_not(thread: LoopThread) -> None:
    ended = threading.Event()
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def leave_at_once() -> None:
        held = threading.Event()
        thread.call(lambda: held.wait(10))
        call = asyncio.ensure_future(thread.run_for(endless()))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        held.set()

    async def leave_later() -> None:
        call = asyncio.ensure_future(thread.run_for(endless()))
        await asyncio.to_thread(begun.wait, 10)
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(leave_at_once())
    thread.run(asyncio.sleep(0))
    assert not begun.is_set()
    asyncio.run(leave_later())
    assert ended.wait(10)


def test_the_end_of_the_thread_cancels_calls_and_refuses_later_ones(thread: LoopThread) -> None:
    async def ask() -> None:
        call = asyncio.ensure_future(thread.run_for(asyncio.sleep(60)))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(thread.close, asyncio.sleep(0))
        with pytest.raises(asyncio.CancelledError):
            await call
        for _ in range(3):  # each of them
            async with asyncio.timeout(5):
                with pytest.raises(RuntimeError, match="closed"):
                    await thread.run_for(asyncio.sleep(0))

    asyncio.run(ask())


def test_a_call_that_has_not_begun_when_the_thread_ends_is_refused(thread: LoopThread) -> None:
    async def ask() -> None:
        held = threading.Event()
        thread.call(lambda: held.wait(10))
        call = asyncio.ensure_future(thread.run_for(asyncio.sleep(0)))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(thread.close, asyncio.sleep(0)))
        while not thread._is_closed:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.001)
        held.set()
        await closing
        async with asyncio.timeout(5):
            with pytest.raises(RuntimeError, match="closed"):
                await call

    asyncio.run(ask())
