"""Rollouts side by side: at most so many at a time, in the order in which they were submitted, each can be aborted."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from envgym.agents.rollout.episode import EpisodeJob
from envgym.core.tree import Tree
from envgym.errors import InvalidInput
from envgym.runtime.garbage import rare_collections


class AbortHandle:
    """Aborts a rollout: its episodes under way end as `ERROR_ABORTED`, with the reason, and are kept."""

    __slots__ = ("_cancelled", "_watched", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why the rollout was aborted; None: it was not."""
        self._watched: set[asyncio.Task[object] | None] = set()
        self._cancelled: set[asyncio.Task[object] | None] = set()

    def abort(self, reason: str) -> None:
        """Abort the rollout; later calls change nothing."""
        if self.reason is None:
            self.reason = reason
            self._cancelled |= self._watched
            for task in self._watched:
                assert task is not None, "what is watched runs in a task"
                task.cancel()

    def __enter__(self) -> None:
        """Let an abort wake the current task from what it awaits, by a `CancelledError` that `caught` recognizes."""
        self._watched.add(asyncio.current_task())

    def __exit__(self, *error: object) -> None:
        """Leave the current task alone from here on."""
        self._watched.discard(asyncio.current_task())

    def caught(self) -> bool:
        """Return whether the current task's `CancelledError` comes from this abort; the task then continues."""
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return False
        self._cancelled.discard(task)
        return task.uncancel() == 0


class PendingTree(NamedTuple):
    """A rollout that was submitted."""

    tree: "asyncio.Future[Tree]"
    abort_handle: AbortHandle


GrowTreeFn = Callable[[AbortHandle], Awaitable[Tree]]
"""Grows one tree; it ends soon after the handle is aborted."""


class RolloutPool:
    """Runs rollouts; more can be submitted while others run."""

    def __init__(self, *, concurrency: int) -> None:
        """Begin without a rollout, and run up to `concurrency` of them at a time, at least 1."""
        if concurrency < 1:
            raise InvalidInput.of("concurrency", "be at least 1", concurrency, where="RolloutPool", do="pass 1")
        self._concurrency = concurrency
        self._waiting: deque[tuple[GrowTreeFn, PendingTree]] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    def submit(self, grow_tree: GrowTreeFn) -> PendingTree:
        """Run a rollout after those that were submitted before."""
        pending = PendingTree(asyncio.get_running_loop().create_future(), AbortHandle())
        self._waiting.append((grow_tree, pending))
        if len(self._workers) < self._concurrency:
            self._start(self._work())
        return pending

    def abort(self, pending: PendingTree, reason: str) -> None:
        """Abort a rollout; one that has not begun ends without waiting for its turn."""
        pending.abort_handle.abort(reason)
        for item in self._waiting:
            if item[1] is pending:
                self._waiting.remove(item)
                self._start(self._run(*item))
                break

    async def close(self) -> None:
        """Cancel the rollouts under way, and drop those that wait."""
        self._waiting.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._workers.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Let a worker go; what was submitted after it had found nothing to do, and before it was gone, is run."""
        self._workers.discard(task)
        if self._waiting and len(self._workers) < self._concurrency:
            self._start(self._work())

    async def _work(self) -> None:
        while self._waiting:
            await self._run(*self._waiting.popleft())

    async def _run(self, grow_tree: GrowTreeFn, pending: PendingTree) -> None:
        try:
            tree = await grow_tree(pending.abort_handle)
        except asyncio.CancelledError:
            pending.tree.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # whoever waits for the tree gets it
            settle = partial(pending.tree.set_exception, error)
        else:
            settle = partial(pending.tree.set_result, tree)
        if not pending.tree.cancelled():  # else nobody waits any more
            settle()


async def run_pool(
    jobs: Sequence[EpisodeJob],
    run: Callable[[EpisodeJob], Awaitable[Tree]],
    *,
    concurrency: int,
    on_finished: Callable[[Tree], None] | None = None,
    leaves_cycles: bool = False,
) -> list[Tree]:
    """Run all jobs, at most `concurrency` at a time, and return their trees in the order of the jobs.

    Args:
        jobs: the episodes.
        run: runs one episode.
        concurrency: episodes under way at a time, at least 1.
        on_finished: called with every tree as its episode ends; an error that it raises ends the run.
        leaves_cycles: whether episodes leave cycles of objects, as of `rare_collections`.
    """

    async def run_job(job: EpisodeJob, abort: AbortHandle) -> Tree:
        del abort
        tree = await run(job)
        if on_finished is not None:
            on_finished(tree)
        return tree

    pool = RolloutPool(concurrency=concurrency)
    with rare_collections(leaves_cycles=leaves_cycles):
        pending = [pool.submit(partial(run_job, job)) for job in jobs]
        try:
            return await asyncio.gather(*[item.tree for item in pending])
        finally:
            await pool.close()
