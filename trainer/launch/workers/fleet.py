"""The rollout workers of a run, as its own process uses them: which one grows a tree, and what follows its death.

All trees of a group go to one worker, the one with the fewest trees when the group begins. A tree whose worker is lost
is given to another one, or to the same after its restart, which goes on from the turns in the journal.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.tree import Tree
from envgym.errors import RunError
from envgym.runtime.http.client import ConnectionFailed, HttpAnswer
from envgym.runtime.http.connections import HttpConnections
from envgym.runtime.membership import warn_user
from envgym.runtime.processes.log import Ids, about, log_event
from envgym.runtime.processes.restarts import REISSUED, count_failure
from envgym.trainer.launch.workers.addresses import WorkerAddress, WorkerAddresses
from envgym.trainer.launch.workers.wire import (
    ABORT,
    CHANGE,
    SETUP,
    TREES,
    GrownTree,
    Json,
    TreeTask,
    WorkerSetup,
    grown_tree_from_json,
    tree_task_to_json,
)
from envgym.trainer.rollout.trees import GrowTree, TreeOrder

_TREE_S: Final = 7 * 86400.0
"""Longest wait for a tree; a worker that hangs is found by its health."""
_SHORT_S: Final = 30.0
"""For an answer that takes no sampling."""
_PAUSE_S: Final = 0.05
"""Until a worker is looked for again."""
_MAX_LOST: Final = 2
"""Workers that may be lost with one tree."""
_TOO_MANY_LOST: Final = f"{_MAX_LOST} rollout workers were lost while they played it"
_AGAIN_S: Final = 1.0
"""Until a worker whose connection broke is used again, if it has not died."""


@dataclass(slots=True, eq=False)
class _WorkerLink:
    """The connections to one worker, as it was started."""

    role: str
    address: WorkerAddress
    connections: HttpConnections
    num_trees: int = 0
    """Trees that it grows."""
    plans: set[int] = field(default_factory=set)
    """Numbers of the settings that it has; empty: it is not set up."""
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    usable_from: float = 0.0
    """`time.monotonic()` from which it is used."""

    @property
    def name(self) -> str:
        return f"{self.role}#{self.address.number}"


class RolloutWorkers:
    """Grows trees in workers; used in one event loop, which must close it."""

    def __init__(
        self,
        addresses: WorkerAddresses,
        setup: WorkerSetup,
        *,
        weights: Callable[[], WeightsState],
        on_grown: Callable[[GrownTree], None],
        token: str | None,
        logs: Path,
        wait_s: float,
    ) -> None:
        """Connect to nothing yet.

        Args:
            addresses: of the workers.
            setup: that each is sent before its first tree; its settings may change.
            weights: returns those of the policy servers.
            on_grown: called with every tree that arrives.
            token: that the workers ask for.
            logs: folder of the workers' logs, for errors.
            wait_s: longest wait for a worker where none serves.
        """
        self._addresses, self._token, self._logs, self._wait_s = addresses, token, logs, wait_s
        self._get_weights, self._on_grown = weights, on_grown
        self._setup = setup
        self._settings: dict[int, Json] = {setup.plan: setup.settings}
        """By plan."""
        self._weights = setup.weights
        self._links: dict[str, _WorkerLink] = {}
        """By role; one that died is replaced."""
        self._groups: dict[str, tuple[_WorkerLink, int]] = {}
        """Key of a group -> its worker, and how many of its trees are growing."""
        self._tasks = set[asyncio.Task[None]]()
        self._dropped: list[HttpConnections] = []
        """Of workers that have died."""
        self._is_closed = False

    def change(self, settings: Json) -> None:
        """Grow the trees of groups that begin from now on by other settings."""
        plan = self._setup.plan + 1
        self._settings[plan] = settings
        self._setup = replace(self._setup, plan=plan, settings=settings)

    def grower(self) -> GrowTree:
        """Return the function that grows the trees of the groups that begin now."""
        return partial(self._grow, plan=self._setup.plan)

    async def set_up(self) -> None:
        """Set up all workers that serve; one that dies meanwhile is set up later, with its first tree.

        Raises: RunError: one refuses, or does not answer in time.
        """
        self._begin()
        deadline = time.monotonic() + self._wait_s
        while links := [link for link in self._synchronized() if self._setup.plan not in link.plans]:
            preparing = [self._prepare(link, self._setup.plan) for link in links]
            for link, failure in zip(links, await asyncio.gather(*preparing, return_exceptions=True), strict=True):
                if isinstance(failure, ConnectionFailed | TimeoutError):
                    must, do = f"be set up within {self._wait_s:g} s", "look into its log"
                    where, got = str(self._logs / f"{link.role}.jsonl"), f"{type(failure).__name__}: {failure}"
                    RunError.unless(time.monotonic() < deadline, link.role, must, got, where=where, do=do)
                elif failure is not None:
                    raise failure
            await asyncio.sleep(_PAUSE_S)

    async def tell_weights(self) -> None:
        """Tell all workers which weights the policy servers have now: turns under way go on with them."""
        self._newest_weights()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections; what is growing was cancelled before."""
        self._addresses.on_change = lambda: None
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connections in [*self._dropped, *[link.connections for link in self._links.values()]]:
            await connections.close()

    # ---- one tree ------------------------------------------------------------------------------------------------

    async def _grow(self, order: TreeOrder, abort: AbortHandle, *, plan: int) -> Tree:
        """Grow a tree. Raises: RunError: a worker refuses it, or none serves in time."""
        lost: list[str] = []
        while True:
            link = await self._acquire(order.group_key, plan)
            try:
                aborted = abort.reason or (_TOO_MANY_LOST if len(lost) >= _MAX_LOST else None)
                task = TreeTask(order, plan, self._newest_weights(), tuple(lost), aborted)
                grown = grown_tree_from_json(await self._answer(link, task, abort))
            except (ConnectionFailed, TimeoutError) as error:
                self._lose(link)
                if link.name in lost:  # it is not known yet whether it has died
                    continue
                lost.append(link.name)
                count_failure(REISSUED)
                if len(lost) == _MAX_LOST:
                    warn_user(f"{order.tree_id} is not played any more: {_TOO_MANY_LOST}")
                with about(Ids(order.tree_id)):
                    log_event("reissue", worker=link.role, reason=str(error))
            else:
                self._on_grown(grown)
                return grown.tree
            finally:
                self._release(order.group_key, link)

    async def _answer(self, link: _WorkerLink, task: TreeTask, abort: AbortHandle) -> Json:
        asking = asyncio.ensure_future(self._ask(link, TREES, tree_task_to_json(task), timeout_s=_TREE_S))
        try:
            try:
                if task.aborted is not None:
                    return await asking
                with abort:
                    return await asyncio.shield(asking)
            except asyncio.CancelledError:
                if asking.cancelled() or not abort.caught():
                    raise
            while not asking.done():  # until the worker knows the tree
                body = {"tree": task.order.tree_id, "reason": abort.reason}
                if (await self._ask(link, ABORT, body))["is_growing"]:
                    break
                await asyncio.sleep(_PAUSE_S)
            return await asking
        finally:
            asking.cancel()  # the tree ends in the worker, too, if nobody waits for it any more

    async def _ask(self, link: _WorkerLink, path: str, body: Json, *, timeout_s: float = _SHORT_S) -> Json:
        """Return the answer of a worker. Raises: ConnectionFailed, TimeoutError: no answer. RunError: it refuses."""
        answer: HttpAnswer = await link.connections.ask("POST", path, body, timeout_s=timeout_s)
        content: Json = json.loads(answer.body)
        if answer.status == 200:
            return content
        detail = str(content.get("detail", answer.status))
        if answer.status == 422:  # one sentence
            raise RunError(detail)
        log = str(self._logs / f"{link.role}.jsonl")
        raise RunError.of(link.role, f"answer {path}", detail, where=log, do="look into its log")

    # ---- which worker --------------------------------------------------------------------------------------------

    async def _acquire(self, group: str, plan: int) -> _WorkerLink:
        """Return a worker for a tree that is ready for it. Raises: RunError: none is in time, or one refuses."""
        deadline = time.monotonic() + self._wait_s
        while True:
            now = time.monotonic()
            links = [link for link in self._synchronized() if now >= link.usable_from]
            if not links:
                must, do = f"serve within {self._wait_s:g} s", "look into the logs"
                RunError.unless(now < deadline, "a rollout worker", must, "none", where=str(self._logs), do=do)
                await asyncio.sleep(_PAUSE_S)
                continue
            link, num_trees = self._groups.get(group, (None, 0))
            if link not in links:
                link, num_trees = min(links, key=lambda item: item.num_trees), 0
            assert link is not None, "it is one of those that serve"
            self._groups[group] = link, num_trees + 1
            link.num_trees += 1
            try:
                await self._prepare(link, plan)
            except (ConnectionFailed, TimeoutError):
                self._release(group, link)
                self._lose(link)
            except BaseException:
                self._release(group, link)
                raise
            else:
                return link

    def _release(self, group: str, link: _WorkerLink) -> None:
        link.num_trees -= 1
        of_group, num_trees = self._groups.get(group, (None, 0))
        if of_group is not link:
            return  # another worker has the group now
        if num_trees > 1:
            self._groups[group] = link, num_trees - 1
        else:
            del self._groups[group]

    def _lose(self, link: _WorkerLink) -> None:
        """Use a worker whose connection broke no more for a while: it has died, which is known soon, or it has not."""
        link.usable_from = time.monotonic() + _AGAIN_S

    def _synchronized(self) -> list[_WorkerLink]:
        """Return the workers that serve; what was asked of those that do not any more fails."""
        if self._is_closed:
            return []
        up = self._addresses.up()
        for role, link in list(self._links.items()):
            if up.get(role) != link.address:
                link.connections.drop()
                self._dropped.append(link.connections)
                del self._links[role]
        for role, address in up.items():
            if role not in self._links:
                self._links[role] = _WorkerLink(role, address, HttpConnections(address.url, token=self._token))
        return list(self._links.values())

    def _begin(self) -> None:
        """Learn at once of workers that die, whose connections may stay open where a machine is lost."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._synchronized)

        self._addresses.on_change = tell

    # ---- what a worker knows -------------------------------------------------------------------------------------

    async def _prepare(self, link: _WorkerLink, plan: int) -> None:
        """Let a worker have the settings of a plan. Raises: as `_ask`."""
        if plan in link.plans:
            return
        async with link.preparing:
            if not link.plans:
                setup = replace(self._setup, weights=self._newest_weights())
                await self._ask(link, SETUP, setup.to_json(), timeout_s=self._wait_s)
                link.plans.add(setup.plan)
            if plan not in link.plans:
                body = {"plan": plan, "settings": self._settings[plan], "weights": self._newest_weights()}
                await self._ask(link, CHANGE, body)
                link.plans.add(plan)

    def _newest_weights(self) -> WeightsState:
        """Return the weights of the policy servers; every worker is told when they change."""
        newest = self._get_weights()._replace(revision=self._weights.revision)
        if newest != self._weights:
            self._weights = newest._replace(revision=newest.revision + 1)
            for link in self._links.values():
                if link.plans:
                    self._start(self._tell_weights(link))
        return self._weights

    async def _tell_weights(self, link: _WorkerLink) -> None:
        try:
            await self._ask(link, CHANGE, {"weights": self._weights})
        except (ConnectionFailed, TimeoutError, RunError) as error:  # the next tree tells it, too
            log_event("not told", worker=link.role, reason=str(error))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
