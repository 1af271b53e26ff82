"""Episodes side by side: at most so many at a time, in the order in which they were handed in."""

import asyncio
import gc
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from envgym.agents.episode import EpisodeJob
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, sentence


class Abort:
    """Gives up an episode that is under way: it ends as `ERROR_ABORTED`, with the reason, and is kept."""

    __slots__ = ("_task", "reason")

    def __init__(self) -> None:
        """Nothing is given up yet."""
        self.reason: str | None = None
        self._task: asyncio.Task[object] | None = None

    def __call__(self, reason: str) -> None:
        """Give the episode up; a second reason is not heard."""
        if self.reason is None:
            self.reason = reason
            if self._task is not None:
                self._task.cancel()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let the current task be woken from whatever it awaits, by a `CancelledError` that `caught` takes back."""
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def caught(self) -> bool:
        """Tell whether a `CancelledError` was this abort's; the task then goes on."""
        if self.reason is None or self._task is None:
            return False
        return self._task.uncancel() == 0


Run = Callable[[EpisodeJob, Abort], Awaitable[Tree]]
"""Runs one episode, which may be given up."""


class Ticket(NamedTuple):
    """An episode that was handed in."""

    tree: "asyncio.Future[Tree]"
    abort: Abort


class EpisodePool:
    """Runs episodes; more can be handed in while others run."""

    def __init__(self, run: Run, *, concurrency: int, on_idle: Callable[[], None] | None = None) -> None:
        """Begin without an episode.

        Args:
            run: runs one episode.
            concurrency: episodes under way at a time, at least 1.
            on_idle: called whenever a worker finds no more to do; there are as many as may be under way at a time.
        """
        if concurrency < 1:
            raise InvalidInput(sentence("concurrency", "be at least 1", concurrency, where="EpisodePool", do="pass 1"))
        self._run, self._concurrency, self._on_idle = run, concurrency, on_idle
        self._waiting: deque[tuple[EpisodeJob, Ticket]] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    def submit(self, job: EpisodeJob) -> Ticket:
        """Hand an episode in, behind the others."""
        ticket = Ticket(asyncio.get_running_loop().create_future(), Abort())
        self._waiting.append((job, ticket))
        if len(self._workers) < self._concurrency:
            self._start(self._work())
        return ticket

    def abort(self, ticket: Ticket, reason: str) -> None:
        """Give an episode up; one that has not begun ends before it does."""
        ticket.abort(reason)
        for item in self._waiting:
            if item[1] is ticket:
                self._waiting.remove(item)
                self._start(self._one(*item))
                break

    async def close(self) -> None:
        """Cancel what runs, and forget what waits."""
        self._waiting.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._waiting:
            await self._one(*self._waiting.popleft())
        if self._on_idle is not None:
            self._on_idle()

    async def _one(self, job: EpisodeJob, ticket: Ticket) -> None:
        try:
            tree = await self._run(job, ticket.abort)
        except asyncio.CancelledError:
            ticket.tree.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # whoever waits for the tree gets it
            ticket.tree.set_exception(error)
        else:
            ticket.tree.set_result(tree)


async def run_pool(
    jobs: Sequence[EpisodeJob],
    run: Callable[[EpisodeJob], Awaitable[Tree]],
    *,
    concurrency: int,
    on_finished: Callable[[Tree], None] | None,
    on_idle: Callable[[], None] | None = None,
) -> list[Tree]:
    """Run all jobs, at most `concurrency` at a time, and return their trees in the order of the jobs.

    Args:
        jobs: what to run.
        run: runs one episode.
        concurrency: episodes under way at a time, at least 1.
        on_finished: called with every tree as its episode ends; what it raises ends the run.
        on_idle: called whenever one of the `min(concurrency, len(jobs))` workers finds no more to do.
    """

    async def run_and_tell(job: EpisodeJob, abort: Abort) -> Tree:
        del abort
        tree = await run(job)
        if on_finished is not None:
            on_finished(tree)
        return tree

    pool = EpisodePool(run_and_tell, concurrency=concurrency, on_idle=on_idle)
    with rare_collections():
        tickets = [pool.submit(job) for job in jobs]
        try:
            return await asyncio.gather(*[ticket.tree for ticket in tickets])
        finally:
            await pool.close()


_NEW_OBJECTS = 50_000
"""New objects before the garbage collector looks at them: a third of the cost of a turn at Python's default of 700."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector run less often: whatever episodes keep is reachable, so it would search in vain.

    A caller who has switched it off, or set a higher threshold, keeps that. Pools may overlap: only the one that
    raised the threshold sets it back.
    """
    young, *older = gc.get_threshold()
    if not 0 < young < _NEW_OBJECTS:
        yield
        return
    gc.set_threshold(_NEW_OBJECTS, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
