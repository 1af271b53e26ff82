"""Run coroutines from ordinary functions, also where an event loop runs already, as in a notebook.

A loop that runs cannot be entered a second time: the work then goes to the loop of another thread, and the caller
waits for it.
"""

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Protocol, Self, TypeVar

from envgym.runtime.processes.interrupts import interrupt, interrupts_passed_on

T = TypeVar("T")

_WAKE_S = 0.2
"""An interrupt that arrives just before a thread begins to wait is handled when it wakes."""


class Runner(Protocol):
    """Runs coroutines one after the other in one event loop, as `asyncio.Runner` does."""

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result."""
        ...


def make_runner() -> AbstractContextManager[Runner]:
    """Return a runner that works wherever it is called from."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        is_main = threading.current_thread() is threading.main_thread()
        return _ProgramRunner() if is_main and signal.getsignal(signal.SIGINT) is interrupt else asyncio.Runner()
    return _ThreadRunner()


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result, as `asyncio.run` does, also inside a running loop."""
    with make_runner() as runner:
        return runner.run(work)


def run_without_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of which nothing waits for an event loop, since what it calls blocks; return its result.

    Raises: RuntimeError: something waits for an event loop. Whatever the work raises.
    """
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("the coroutine waits for an event loop")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Wait for what may block for long, in a thread that neither the end of the process nor a pool waits for.

    Raises: whatever the work raises.
    """
    thread = DaemonThread("daemon-work")
    done = thread.begin(work)
    thread.end()
    return await asyncio.wrap_future(done)


class DaemonThread:
    """Makes calls one after the other in a thread that the end of the process does not wait for."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        """Make a call after those before it, also if nobody waits any more."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        self._calls.put(partial(_settle, done, work))
        return done

    def end(self) -> None:
        """End the thread after the calls that were begun, and do not wait for it."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # so that the call and its result are freed while the thread waits


def _settle(done: "Future[T]", work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001  # whoever waits gets it
        done.set_exception(error)


async def stop_accepting(listener: asyncio.Server) -> None:
    """Close a listener when the sockets that it has just accepted have become connections: later they would be lost."""
    for listening in listener.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    try:
        for _ in range(3):
            await asyncio.sleep(0)
    finally:
        listener.close()


class _Call:
    """Work that a coroutine of one event loop waits for while another event loop does it."""

    __slots__ = ("answer", "context", "loop", "task", "work")

    def __init__(self, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.work, self.loop, self.context = work, loop, context
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.task: asyncio.Task[Any] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
        """Start the work on the loop that does it; None: the caller waits no longer."""
        if self.answer.cancelled():
            self.work.close()
        else:
            self.task = loop.create_task(self.work, context=self.context)
        return self.task

    def cancel(self) -> None:
        """Cancel the work if it has started."""
        if self.task is not None:
            self.task.cancel()

    def refuse(self) -> None:
        """Fail work that was not started, from any thread."""
        self.work.close()
        with suppress(RuntimeError):  # the caller's loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self._fail)

    def _fail(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(RuntimeError("the event loop was closed"))

    def settle(self) -> None:
        """Give the result of the finished work to the caller, on the caller's loop."""
        task = self.task
        assert task is not None, "the work has finished"
        if self.answer.done():
            return
        if task.cancelled():
            self.answer.cancel()
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


def _settle_calls(calls: list[_Call]) -> None:
    for call in calls:
        call.settle()


class LoopThread:
    """An event loop in a daemon thread of its own, for work that goes on beside the threads that began it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: deque[_Call] = deque()
        """Calls of `run_for` that the loop has not begun."""
        self._is_told = False
        """Whether the loop will look at `_calls`."""
        self._is_closed = False
        """Whether calls of `run_for` are refused."""
        self._finished: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
        """Calls whose callers have not been given the result, by the caller's loop."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with suppress(SystemExit, KeyboardInterrupt):  # of work under way, whose caller gets it, too
                self._loop.run_forever()
                return

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":  # of any coroutine
        """Begin work, and do not wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # of any coroutine
        """Do work, and wait for it."""
        return self.begin(work).result()

    async def run_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work, and wait for it in the caller's event loop.

        Calls that come together wake the other thread once, and so do their results. A caller that is cancelled
        cancels the work.

        Raises: RuntimeError: the loop was closed. Whatever the work raises.
        """
        call = _Call(work, asyncio.get_running_loop(), copy_context())
        self._calls.append(call)  # before the flag is read: who resets it looks at the calls afterwards
        if self._is_closed:
            self._refuse_calls()
        elif not self._is_told:
            self._is_told = True
            try:
                self._loop.call_soon_threadsafe(self._begin_calls)
            except RuntimeError:  # the loop was closed since the flag was read
                self._refuse_calls()
        try:
            result: T = await call.answer
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        return result

    def _begin_calls(self) -> None:
        self._is_told = False
        if self._is_closed:
            self._refuse_calls()
        while self._calls:
            call = self._calls.popleft()
            task = call.begin(self._loop)
            if task is not None:
                task.add_done_callback(partial(self._finish_call, call))

    def _refuse_calls(self) -> None:
        with suppress(IndexError):  # none is left, or another thread has refused it
            while True:
                self._calls.popleft().refuse()

    def _finish_call(self, call: _Call, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # so that it counts as seen, though the caller may have left
        calls = self._finished.setdefault(call.loop, [])
        calls.append(call)
        if len(calls) == 1:
            self._loop.call_soon(self._hand_over, call.loop)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_settle_calls, self._finished.pop(loop))

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the loop, and do not wait for it."""
        self._loop.call_soon_threadsafe(function)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel all work that is under way and wait until it has ended, do the last work, and end the thread.

        Calls of `run_for` are refused from now on.
        """

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await last

        self._is_closed = True
        self.run(end())
        self.call(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._refuse_calls()


def shared_loop(name: str) -> LoopThread:
    """Return the loop of this name, which all its users in this process share; a forked child has another one."""
    return _loop_of(os.getpid(), name)


@cache
def _loop_of(process: int, name: str) -> LoopThread:
    return LoopThread(name)


class _ProgramRunner:
    """A runner for `envgym.runtime.processes.interrupts`: while its loop runs, Ctrl-C cancels what runs there."""

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        return self

    def run(self, coro: Coroutine[Any, Any, T]) -> T:

        async def work() -> T:
            with interrupts_passed_on():
                return await coro

        signal.signal(signal.SIGINT, signal.default_int_handler)  # in place of which the runner puts its own
        try:
            return self._runner.run(work())
        finally:
            signal.signal(signal.SIGINT, interrupt)

    def __exit__(self, *error: object) -> None:
        self._runner.close()


class _ThreadRunner:
    """A runner whose loop is in a thread of its own; an interrupt of the caller cancels what runs there."""

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="event-loop")
        self._runner = asyncio.Runner()
        self._loop = self._thread.submit(self._runner.get_loop).result()
        return self

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Raises: whatever it raises, or the interrupt of the caller, once it has ended."""
        tasks: list[asyncio.Task[Any]] = []  # of any result
        is_interrupted = False

        async def work() -> T:
            task = asyncio.current_task()
            assert task is not None, "a runner makes one"
            tasks.append(task)
            if is_interrupted:
                task.cancel()
            return await coro

        try:
            return _result(self._thread.submit(self._runner.run, work(), context=copy_context()))
        except KeyboardInterrupt:
            is_interrupted = True
            for task in tasks:
                self._loop.call_soon_threadsafe(task.cancel)
            _result(self._thread.submit(bool))  # its turn comes when the work has ended
            raise

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


def _result(future: Future[T]) -> T:
    while not wait([future], timeout=_WAKE_S).done:
        pass
    return future.result()
