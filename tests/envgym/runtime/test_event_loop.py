"""Running coroutines from ordinary functions, outside and inside a running event loop."""

import asyncio
import contextvars
import signal
import threading
from functools import partial

import pytest

from envgym.runtime.event_loop import DaemonThread, make_runner, run_coroutine, shared_loop
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
