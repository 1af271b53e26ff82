"""The environment server: answers the requests of `envgym.serving.wire`."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from envgym.core.messages import Action
from envgym.core.serialize import action_to_json, task_to_json
from envgym.core.tasks import Split
from envgym.env import Env
from envgym.errors import EnvgymError, InfrastructureError, InvalidInput, UnknownName, sentence
from envgym.runtime.error_log import log_error
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.runtime.processes.log import Ids, about, log_event
from envgym.serving import wire
from envgym.serving.fields import check_opening, check_request
from envgym.serving.metrics import CONTENT_TYPE, ServerMetrics
from envgym.serving.sessions import (
    PendingReply,
    Session,
    SessionLimits,
    SessionTable,
    attempt,
    error_reply,
    json_reply,
)
from envgym.serving.templates import EnvTemplate, Templates
from envgym.serving.wire import Json, ServerBusy, SessionLost

_STATUS: Final[tuple[tuple[type[EnvgymError], HTTPStatus], ...]] = (
    (UnknownName, HTTPStatus.NOT_FOUND),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (ServerBusy, HTTPStatus.SERVICE_UNAVAILABLE),
    (SessionLost, HTTPStatus.GONE),
)
_NUM_HELPERS = 4
_CLOSE_S = 20.0
"""Until the envs must be closed when the server ends."""


class EnvServer:
    """Serves environments; `listen`, then `close`, in one event loop."""

    def __init__(
        self,
        templates: Templates,
        *,
        token: str | None = None,
        limits: SessionLimits | None = None,
        http_limits: HttpLimits | None = None,
        has_oracle: bool = True,
    ) -> None:
        """Serve nothing yet; with `has_oracle` clients may ask an env for its best next action, which tells answers."""
        self.templates, self.has_oracle = templates, has_oracle
        self.metrics = ServerMetrics()
        self.sessions = SessionTable(
            limits or SessionLimits(), on_end=lambda reason: self.metrics.ended.update([reason])
        )
        http_limits = http_limits or HttpLimits(body_bytes=wire.MAX_BODY_BYTES)
        self.http = HttpServer(
            self._handle,
            token=token,
            limits=http_limits,
            error_form=lambda status, detail: error_reply(InvalidInput(detail), status),
        )
        self._helpers = ThreadPoolExecutor(max_workers=_NUM_HELPERS, thread_name_prefix="env-server")
        """For what may wait and belongs to no session: making an environment known, drawing tasks."""
        self._routes: Mapping[str, Callable[[Json], PendingReply]] = {
            wire.DESCRIBE: partial(self._help, self._describe),
            wire.TASKS: partial(self._help, self._tasks),
            wire.OPEN: self._open,
            wire.RESET: partial(self._call, _reset),
            wire.STEP: partial(self._call, _step),
            wire.ORACLE: self._oracle,
            wire.FORK: self._fork,
            wire.CLOSE: self._close,
            wire.RENEW: self._renew,
        }

    @property
    def num_sessions(self) -> int:
        """Sessions that are open, those that are being closed included."""
        return len(self.sessions)

    async def listen(self, host: str, port: int) -> str:
        """Begin to answer; return the address. Raises: InvalidInput: it cannot be used, or needs a token."""
        await self.http.listen(host, port)
        self._expiry = asyncio.ensure_future(self.sessions.expire())
        return self.http.url

    async def close(self) -> int:
        """Answer nobody any more, and close every env; return how many did not close in time."""
        self._expiry.cancel()
        await self.http.close()
        self._helpers.shutdown(wait=False, cancel_futures=True)
        return await self.sessions.close(_CLOSE_S)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, request: HttpRequest) -> PendingReply:
        """Answer a request; whatever is wrong with it is the reply."""
        reply = self._reply(request.method, request.path, request.body)
        _after(reply, lambda reply: self._count(request.path, reply))
        return reply

    def _reply(self, method: str, path: str, body: bytes) -> PendingReply:
        if method == "GET":
            return self._get(path)
        route = self._routes.get(path)
        if route is None:
            return _not_found("POST", path, self._routes)
        try:
            data = wire.decode(body)
            check_request(data, path)
            return route(data)
        except EnvgymError as error:
            return self._refuse(error)
        except RecursionError:
            do = "send what envgym sends"
            return self._refuse(InvalidInput.of("message", "not be nested so deep", "more", where=path, do=do))

    def _get(self, path: str) -> HttpReply:
        if path == wire.METRICS:
            gauges = {"sessions": len(self.sessions), "sessions_limit": self.sessions.limits.sessions}
            gauges["connections"] = len(self.http.connections)
            return HttpReply(HTTPStatus.OK, self.metrics.text(gauges).encode(), CONTENT_TYPE)
        if path == wire.HEALTH:
            used = {"sessions": len(self.sessions), "max_sessions": self.sessions.limits.sessions}
            return json_reply({"status": "ok", **wire.versions(), "envs": self.templates.env_ids, **used})
        return _not_found("GET", path, (wire.HEALTH, wire.METRICS))

    def _refuse(self, error: EnvgymError) -> HttpReply:
        self.metrics.busy += isinstance(error, ServerBusy)
        default = HTTPStatus.INTERNAL_SERVER_ERROR
        return error_reply(error, next((status for kind, status in _STATUS if isinstance(error, kind)), default))

    def _count(self, path: str, reply: HttpReply) -> None:
        route = path if path in self._routes or path in (wire.HEALTH, wire.METRICS) else "other"
        self.metrics.requests[route, str(reply.status.value)] += 1

    # ---- environments ------------------------------------------------------------------------------------------------

    def _help(self, answer: Callable[[Json], Json], data: Json) -> PendingReply:
        return asyncio.get_running_loop().run_in_executor(self._helpers, attempt, partial(answer, data))

    def _describe(self, data: Json) -> Json:
        """Answer who knows nothing of an environment. Raises: InvalidInput: a client of another version, or time."""
        _check_client(data, self.http.url)
        template = self.templates.get(data.get("env"), data.get("settings"))
        limits = {"call_s": self.sessions.limits.call_s, "lease_s": self.sessions.limits.lease_s}
        return {**template.description, **limits}

    def _tasks(self, data: Json) -> Json:
        template = self.templates.get(data.get("env"), data.get("settings"))
        start, count = data.get("start"), data.get("count")
        if start is None or count is None or not 0 <= start < 2**63 or count < 1:
            must, do = "be whole numbers, of at least 0 and 1", "send e.g. 0 and 64"
            raise InvalidInput.of("start and count", must, (start, count), where=wire.TASKS, do=do)
        return {"tasks": template.page(Split.parse(str(data.get("split")), where=wire.TASKS), start, count)}

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def _open(self, data: Json) -> PendingReply:
        template = self.templates.known(data.get("env"), data.get("settings"))
        if template is None:  # such as after a restart
            return asyncio.ensure_future(self._open_unknown(data))
        return self._open_known(template, data)

    async def _open_unknown(self, data: Json) -> HttpReply:
        get = partial(self.templates.get, data.get("env"), data.get("settings"))
        try:
            template = await asyncio.get_running_loop().run_in_executor(self._helpers, get)
            reply = self._open_known(template, data)
        except EnvgymError as error:
            return self._refuse(error)
        except Exception as error:  # noqa: BLE001  # what an env's constructor raises is told to its client
            log_error(error, "an env could not be made")
            return error_reply(error, HTTPStatus.INTERNAL_SERVER_ERROR)
        return reply if isinstance(reply, HttpReply) else await reply

    def _open_known(self, template: EnvTemplate, data: Json) -> PendingReply:
        if data.get("digest") != template.description["digest"]:
            must, do = "be as it was described to this client", "start the client again"
            raise InvalidInput.of(template.env_id, must, "another version or settings", where=self.http.url, do=do)
        repeated = self.sessions.repeated(data["session"], data) if "session" in data else None
        if repeated is not None:
            return repeated
        session = self.sessions.add(data.get("session"), template, data)
        self.metrics.opened += 1
        reply = session.submit(0, partial(_logged, _reset, session, data))
        _after(reply, lambda _: self._end_without_env(session))
        return reply

    def _end_without_env(self, session: Session) -> None:
        if session.env is None:
            self.sessions.end(session.id, "failed")

    def _call(self, answer: Callable[[Session, Json], Json], data: Json) -> PendingReply:
        session = self.sessions.get(data.get("session"))
        number: int = data.get("number", -1)
        repeated = session.repeated(number)
        if repeated is not None:
            return repeated
        started = time.perf_counter()
        reply = session.submit(number, partial(_logged, answer, session, data))
        _after(reply, lambda _: self.metrics.time_call(time.perf_counter() - started))
        return reply

    def _oracle(self, data: Json) -> PendingReply:
        if not self.has_oracle:
            do = "start the server without --no-oracle"
            raise InvalidInput.of("oracle", "be allowed by the server", "--no-oracle", where=self.http.url, do=do)
        return self._call(_tell_oracle, data)

    def _fork(self, data: Json) -> PendingReply:
        session = self.sessions.get(data.get("session"))
        repeated = self.sessions.repeated(data["to"], data) if "to" in data else None
        if repeated is not None:
            return repeated
        child = self.sessions.add(data.get("to"), session.template, data)
        child.is_kept = data.get("keep") is True
        self.metrics.forked += 1
        reply = child.submit(0, partial(_copy, session, child), of=session)
        _after(reply, lambda _: self._end_without_env(child))
        return reply

    def _close(self, data: Json) -> PendingReply:
        closing = self.sessions.end(data.get("session"), "closed")
        return json_reply({}) if closing is None else asyncio.ensure_future(_when_closed(closing))

    def _renew(self, data: Json) -> PendingReply:
        self.sessions.renew(data.get("sessions"))
        return json_reply({})


# ---- calls of an env, in the session's thread where it has one ------------------------------------------------------


def _logged(answer: Callable[[Session, Json], Json], session: Session, data: Json) -> Json:
    """Answer; the lines of the log that this causes have the ids that the client sent."""
    ids = data.get("ids")
    with about(Ids.of_header(ids if isinstance(ids, str) else None)):
        started = time.perf_counter()
        try:
            return answer(session, data)
        finally:
            name = answer.__name__.strip("_")
            log_event("env_call", call=name, env=session.template.env_id, seconds=time.perf_counter() - started)


def _reset(session: Session, data: Json) -> Json:
    template = session.template
    if session.env is None:
        session.env = template.make()
    check_opening(data, wire.RESET)
    options = data.get("options") or {}
    task = options.get("task")
    if task is not None:
        options = {**options, "task": template.resolve(task)}
    record = session.env.reset(seed=data.get("seed"), options=options).info["envgym"]
    if task is None:
        template.remember(record.task)
    return {
        "task": None if task is not None else task_to_json(wire.without_payload(record.task)),
        "observation": wire.observation_to_wire(record.observation),
        "plain": None if record.plain is None else wire.observation_to_wire(record.plain),
        "tools": None if record.tools == template.tools else wire.tools_to_wire(record.tools),
        "facts": template.changed_facts(session.env, record.system_prompt),
    }


def _step(session: Session, data: Json) -> Json:
    action = wire.action_from_wire(data.get("action"))
    return wire.step_to_wire(_env_of(session).step(action).info["envgym"])


def _tell_oracle(session: Session, data: Json) -> Json:
    action = _env_of(session).oracle()
    return {"action": action_to_json(action) if isinstance(action, Action) else action}


def _copy(session: Session, child: Session) -> Json:
    child.env = _env_of(session).fork()
    if child.is_ended:  # while it was made
        child.env.close()
    return {}


def _check_client(data: Json, url: str) -> None:
    """See that a client speaks as this server does. Raises: InvalidInput: its version or its clock is another."""
    for name, own in wire.versions().items():
        if data.get(name) != own:
            got, do = f"{data.get(name)} of the client", "install one version of envgym on both machines"
            raise InvalidInput.of(f"{name} of envgym", f"be {own} as on the server", got, where=url, do=do)
    ahead = data.get("time")
    ahead_s = float(ahead) - time.time() if isinstance(ahead, int | float) else 0.0
    if not abs(ahead_s) <= wire.MAX_CLOCK_DIFFERENCE_S:
        must = f"agree with the client's within {wire.MAX_CLOCK_DIFFERENCE_S:g} s"
        do = "set both clocks, as with NTP: the logs of a run are put in order by time"
        raise InvalidInput.of("clock of the server", must, f"{-ahead_s:.0f} s", where=url, do=do)


def _after(reply: PendingReply, action: Callable[[HttpReply], None]) -> None:
    """Call `action` with a reply, now or once it is there."""
    if isinstance(reply, HttpReply):
        action(reply)
    else:
        reply.add_done_callback(lambda done: None if done.cancelled() else action(done.result()))


def _env_of(session: Session) -> Env[Any]:
    if session.env is None:
        raise InfrastructureError(f"session {session.id[:8]} has no env")
    return session.env


def _not_found(method: str, path: str, paths: Sequence[str] | Mapping[str, object]) -> HttpReply:
    must, do = f"be one of {', '.join(paths)}", "check that this is the server that is meant"
    return error_reply(UnknownName(sentence("path", must, path, where=method, do=do)), HTTPStatus.NOT_FOUND)


async def _when_closed(closing: "asyncio.Future[None]") -> HttpReply:
    await asyncio.wait([closing])
    return json_reply({})
