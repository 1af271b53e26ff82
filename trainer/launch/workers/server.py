"""The rollout worker: an HTTP server that grows trees for the run's process, in one event loop."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.version import __version__
from envgym.errors import EnvgymError, RunError
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer, detail_reply
from envgym.runtime.processes.restarts import failure_counts
from envgym.runtime.processes.supervision import HEALTH
from envgym.trainer.launch.workers.parts import PartsResources, WorkerParts, build_parts
from envgym.trainer.launch.workers.wire import (
    ABORT,
    CHANGE,
    SETUP,
    TREES,
    GrownTree,
    Json,
    WorkerSetup,
    grown_tree_to_json,
    tree_task_from_json,
)
from envgym.trainer.settings import train_settings

_LIMITS: Final = HttpLimits(connections=8192, body_bytes=256 << 20)
BuildParts = Callable[[WorkerSetup, PartsResources], WorkerParts]


class RolloutWorker:
    """Answers the routes; `http` is the server to start and close."""

    def __init__(
        self,
        name: str,
        *,
        token: str | None,
        build: BuildParts | None = None,
        on_settings: Callable[[Json], None] = lambda data: None,
    ) -> None:
        """Prepare to serve.

        Args:
            name: of the worker.
            token: that requests must carry; None: no request needs one.
            build: builds the parts; None: those of a run.
            on_settings: called with the run's settings before they are used.
        """
        self._name, self._on_settings = name, on_settings
        self._build = build or self._build_parts
        self._parts: WorkerParts | None = None
        self._resources = PartsResources()
        self._building: asyncio.Future[WorkerParts] | None = None
        self._setting_up = asyncio.Lock()
        """Held by the one setup that builds parts."""
        self._aborts: dict[str, AbortHandle] = {}
        """By the id of the tree that is growing."""
        self._failures = failure_counts()
        """Those that were reported."""
        self._routes: Mapping[str, Callable[[Json], Awaitable[Json]]] = {
            SETUP: self._set_up,
            TREES: self._grow,
            ABORT: self._abort,
            CHANGE: self._change,
        }
        self.http = HttpServer(self._handle, token=token, limits=_LIMITS, cancels_abandoned=True)

    async def close(self) -> None:
        """Stop serving, and close the parts."""
        await self.http.close()
        await self._close_parts()

    async def _handle(self, request: HttpRequest) -> HttpReply:
        if request.method == "GET" and request.path == HEALTH:
            return HttpReply(HTTPStatus.OK, b"", "text/plain")
        answer = self._routes.get(request.path)
        if request.method != "POST" or answer is None:
            got = f"{request.method} {request.path}"
            return detail_reply(HTTPStatus.NOT_FOUND, f"path must be one of the routes, got {got}.")
        try:
            return HttpReply.of_json(await answer(json.loads(request.body)))
        except EnvgymError as error:
            return detail_reply(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))

    async def _set_up(self, body: Json) -> Json:
        version, do = body.get("version"), "install the same version on every machine"
        must = f"be {version}, as in the run's process"
        RunError.unless(version == __version__, "envgym", must, __version__, where=self._name, do=do)
        setup = WorkerSetup.from_json(body)
        self._on_settings(setup.settings)
        async with self._setting_up:
            await self._close_parts()  # of a setup whose answer was lost
            resources = self._resources = PartsResources()
            building = self._building = asyncio.ensure_future(asyncio.to_thread(self._build_whole, setup, resources))
            try:
                self._parts = await asyncio.shield(building)
            except asyncio.CancelledError:
                resources.is_abandoned = True
                raise
        return {}

    async def _close_parts(self) -> None:
        """Close the parts; those that are being built are not finished."""
        self._parts, self._resources.is_abandoned = None, True
        if self._building is not None:
            with suppress(Exception):  # the request that began the building has got the error
                await asyncio.shield(self._building)
        await asyncio.to_thread(self._resources.close)

    def _build_whole(self, setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
        """Build the parts, or nothing."""
        try:
            parts = self._build(setup, resources)
            resources.check_wanted()
        except BaseException:
            resources.close()
            raise
        return parts

    def _build_parts(self, setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
        return build_parts(setup, resources, worker=self._name)

    @property
    def _ready_parts(self) -> WorkerParts:
        if self._parts is None:
            raise RunError.of("rollout worker", "be set up", "nothing", where=self._name, do="send /setup first")
        return self._parts

    async def _grow(self, body: Json) -> Json:
        parts, task, abort = self._ready_parts, tree_task_from_json(body), AbortHandle()
        self._aborts[task.order.tree_id] = abort
        try:
            tree, sampled = await parts.grow(task, abort)
        finally:
            if self._aborts.get(task.order.tree_id) is abort:  # else the tree was sent once more
                del self._aborts[task.order.tree_id]
        counts = failure_counts()
        failures, self._failures = counts - self._failures, counts
        return grown_tree_to_json(GrownTree(tree, tuple(sampled), parts.take_reused(), failures))

    async def _abort(self, body: Json) -> Json:
        abort = self._aborts.get(body["tree"])
        if abort is not None:
            abort.abort(body["reason"])
        return {"is_growing": abort is not None}

    async def _change(self, body: Json) -> Json:
        parts, settings = self._ready_parts, body.get("settings")
        if settings is not None:
            parts.add_plan(body["plan"], train_settings(settings))
        parts.follow(WeightsState.from_json(body["weights"]))
        return {}
