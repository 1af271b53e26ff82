"""The server of machines: answers the requests of `envgym.sandbox.machines.wire` with a back-end of this machine.

A machine whose client is silent for the time of its lease is removed, so a client that is lost leaves nothing.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from envgym.errors import ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure, UnknownName
from envgym.runtime.error_log import log_error
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.sandbox.machines import wire
from envgym.sandbox.machines.records import Machine, MachineBackend
from envgym.sandbox.machines.requests import check_files

_NUM_BUILDS = 2
_STATUS: Final[tuple[tuple[type[Exception], HTTPStatus], ...]] = (
    (UnknownName, HTTPStatus.NOT_FOUND),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (ToolError, HTTPStatus.CONFLICT),
    (ForkUnsupported, HTTPStatus.CONFLICT),
)
Fields = dict[str, Any]  # JSON


class MachineLimits(NamedTuple):
    """What clients may take."""

    machines: int = 16
    """At the same time; more are refused, and clients ask again."""
    lease_s: float = 60.0
    """A machine whose client is silent for so long is removed."""


@dataclass(slots=True)
class _Held:
    """A machine of a client."""

    expires: float
    number: int = -1
    reply: "asyncio.Future[HttpReply] | None" = None
    """Of the last request."""
    machine: Machine | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class MachineServer:
    """Serves machines; `listen`, then `close`, in one event loop."""

    def __init__(
        self, back_end: MachineBackend, *, token: str | None = None, limits: MachineLimits | None = None
    ) -> None:
        """Serve nothing yet."""
        self._back_end, self._limits = back_end, limits or MachineLimits()
        self._held: dict[str, _Held] = {}
        http_limits = HttpLimits(body_bytes=wire.MAX_BODY_BYTES, request_s=600.0, reply_s=600.0)
        self.http = HttpServer(self._handle, token=token, limits=http_limits, error_form=_error_form)
        self._threads = ThreadPoolExecutor(self._limits.machines + 2, thread_name_prefix="machines")
        self._builders = ThreadPoolExecutor(_NUM_BUILDS, thread_name_prefix="images")

    @property
    def num_sessions(self) -> int:
        """Machines that clients hold."""
        return len(self._held)

    async def listen(self, host: str, port: int) -> str:
        """Begin to answer; return the address. Raises: InvalidInput: it cannot be used, or needs a token."""
        await self.http.listen(host, port)
        self._expiry = asyncio.ensure_future(self._expire())
        return self.http.url

    async def close(self) -> int:
        """Answer nobody any more, and remove every machine; return how many could not be removed."""
        self._expiry.cancel()
        await self.http.close()
        with suppress(asyncio.CancelledError):
            await self._expiry
        items, self._held = list(self._held.values()), {}
        results = await asyncio.gather(*(self._remove(item) for item in items), return_exceptions=True)
        await asyncio.gather(*(item.reply for item in items if item.reply is not None), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._builders.shutdown, cancel_futures=True)
        for machine in [item.machine for item in items if item.machine is not None]:
            with suppress(ToolInfraFailure):
                machine.close()  # one that was started meanwhile
        return sum(isinstance(result, BaseException) for result in results)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._limits.lease_s / 4))
            for id, item in list(self._held.items()):
                if self._held.get(id) is not item or time.monotonic() <= item.expires:
                    continue  # also of one that changed while another was removed
                del self._held[id]
                try:
                    await self._remove(item)
                except Exception as error:  # noqa: BLE001  # the leases of the others still end
                    log_error(error, "a machine whose client is lost was not removed")

    async def _remove(self, item: _Held) -> None:
        if item.reply is not None and item.machine is None:
            await asyncio.wait([item.reply])  # it is being started
        if item.machine is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, item.machine.close)

    # ---- requests

    async def _handle(self, request: HttpRequest) -> HttpReply:
        """Answer a request; whatever is wrong with it is the reply."""
        try:
            if request.method != "POST":
                got = f"{request.method} {request.path}"
                raise UnknownName.of("request", "be a POST", got, where="machine server", do="see docs/sandbox.md")
            order = wire.read_request(request.path, request.body)
            if isinstance(order, wire.OfMachine):
                return await self._answer_once(order)
            return _reply(await self._answer(order))
        except Exception as error:  # noqa: BLE001  # the client must learn of it
            return _error_reply(error)

    async def _answer_once(self, order: wire.OfMachine) -> HttpReply:
        """Answer a numbered request, with the reply that was given if its number was sent before."""
        item = self._held.get(order.machine)
        if item is None:
            if isinstance(order, wire.Close):
                return _reply({})
            if not isinstance(order, wire.Start):
                raise _lost()
            item = self._hold(order.machine)
        item.expires = time.monotonic() + self._limits.lease_s
        if order.number == item.number and item.reply is not None:
            return await asyncio.shield(item.reply)
        must, do = f"be above {item.number}, or the last one again", "send one request at a time"
        InvalidInput.unless(order.number > item.number, "number", must, order.number, where="request", do=do)
        if item.reply is not None and not item.reply.done():
            raise InvalidInput.of("request", "wait for the one before it", order.number, where="number", do=do)
        item.number = order.number
        item.reply = asyncio.ensure_future(self._answer_or_fail(order, item))
        return await asyncio.shield(item.reply)

    def _hold(self, id: str) -> _Held:
        if len(self._held) >= self._limits.machines:
            must, do = f"hold at most {self._limits.machines} machines", "ask again later"
            raise Busy.of("server", must, "one more", where="machine server", do=do)
        must, do = "have 32 hexadecimal digits", "draw 128 random bits"
        is_good = len(id) == 32 and set(id) <= set("0123456789abcdef")
        InvalidInput.unless(is_good, "machine", must, id, where="request", do=do)
        self._held[id] = _Held(time.monotonic() + self._limits.lease_s)
        return self._held[id]

    async def _answer_or_fail(self, order: wire.OfMachine, item: _Held) -> HttpReply:
        try:
            return _reply(await self._answer_for(order, item))
        except Exception as error:  # noqa: BLE001  # kept for a client that asks again
            if isinstance(order, wire.Start):
                self._held.pop(order.machine, None)
            if isinstance(error, Busy):
                item.number = order.number - 1  # asked again, it may find room
            return _error_reply(error)

    async def _answer_for(self, order: wire.OfMachine, item: _Held) -> Fields:
        if isinstance(order, wire.Start):
            await self._in_thread(lambda: setattr(item, "machine", self._back_end.start(order.spec)))
            if item.machine is not None and self._held.get(order.machine) is not item:  # its client was lost meanwhile
                await self._in_thread(item.machine.close)
            return {}
        machine = item.machine
        if machine is None:
            raise _lost()
        if isinstance(order, wire.Close):
            self._held.pop(order.machine, None)
            await self._in_thread(machine.close)
            return {}
        if isinstance(order, wire.Fork):
            return await self._fork(order, machine)
        fields: Fields = await self._in_thread(lambda: _carry_out(order, machine))
        return fields

    async def _fork(self, order: wire.Fork, machine: Machine) -> Fields:
        copy = self._hold(order.to)
        copy.number = 0
        copy.reply = asyncio.get_running_loop().create_future()
        try:
            await self._in_thread(lambda: setattr(copy, "machine", machine.fork()))
        except BaseException:
            self._held.pop(order.to, None)
            raise
        finally:
            copy.reply.set_result(_reply({}))
        return {}

    async def _answer(self, order: wire.Request) -> Fields:
        if isinstance(order, wire.Renew):
            now = time.monotonic()
            mine = [id for id in order.machines if id in self._held]
            for id in mine:
                self._held[id].expires = now + self._limits.lease_s
            return {"machines": mine}
        if isinstance(order, wire.Build):
            return {"image": await asyncio.get_running_loop().run_in_executor(self._builders, self._build, order)}
        reason = await self._in_thread(self._back_end.why_unavailable)
        return {"protocol": wire.PROTOCOL, "lease_s": self._limits.lease_s, "unavailable": reason}

    def _build(self, order: wire.Build) -> str:
        check_files(order.context, "/context", is_fresh=False)
        with tempfile.TemporaryDirectory(prefix="envgym-context-") as folder:
            for name, (content, mode) in order.context.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(mode & 0o755)
            options: Fields = {"dockerfile": order.dockerfile, "bases": order.bases, "network": order.network}
            return self._back_end.build(Path(folder), timeout_s=order.timeout_s, **options)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class Busy(ToolInfraFailure):
    """The server has no room for one more machine."""


def _carry_out(order: wire.OfMachine, machine: Machine) -> Fields:
    if isinstance(order, wire.Run):
        options = order.model_dump(exclude={"machine", "number", "command"})
        return wire.result_fields(machine.run(order.command, **options))
    if isinstance(order, wire.Get):
        files = machine.get(order.path, max_bytes=order.max_bytes)
        return {"files": wire.FILES.dump_python(files, mode="json")}
    if isinstance(order, wire.Put):
        return _put(order, machine)
    machine.end_processes()
    return {}


def _put(order: wire.Put, machine: Machine) -> Fields:
    """Write files, those of equal permissions at once."""
    is_fresh = order.is_fresh
    for mode in sorted({mode for _, mode in order.files.values()}) or [0o644]:
        files = {path: content for path, (content, its_mode) in order.files.items() if its_mode == mode}
        machine.put(files, order.directory, mode=mode, owner=order.owner, is_fresh=is_fresh)
        is_fresh = False
    return {}


def _lost() -> ToolInfraFailure:
    do = "start another one"
    return ToolInfraFailure.of("machine", "be held by the server", "none of this id", where="machine server", do=do)


def _reply(fields: Fields, status: HTTPStatus = HTTPStatus.OK) -> HttpReply:
    return HttpReply(status, wire.encode(fields))


def _error_reply(error: Exception) -> HttpReply:
    if isinstance(error, Busy):
        return _reply(wire.error_fields(error), HTTPStatus.SERVICE_UNAVAILABLE)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.BAD_GATEWAY)
    return _reply(wire.error_fields(error), status)


def _error_form(status: HTTPStatus, detail: str) -> HttpReply:
    return _reply(wire.error_fields(InvalidInput(detail)), status)
