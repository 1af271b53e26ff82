"""One policy server as the client knows it: what it is, whether it can be used, and how it takes new weights."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import nullcontext
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from envgym.agents.policies.endpoint import error_text
from envgym.agents.policies.serving.group_update import GroupUpdate
from envgym.agents.policies.serving.routing import ConcurrencyLimit
from envgym.agents.policies.serving.wire import INFO, PROTOCOL, ServerInfo
from envgym.agents.policies.weights.collective import RunGroup
from envgym.agents.policies.weights.transport import WeightUpdate
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.http.client import ConnectionFailed
from envgym.runtime.http.connections import HttpConnections

UNNAMED = "default"
"""What vLLM calls weights that nobody named."""
BASE_ONLY = str((1 << 31) - 1)
"""Version of weights that still lack the adapters of an update. No run gets so far."""
_SHORT_S = 10.0
"""For an answer that takes no computing."""


class ServerState(StrEnum):
    """Whether a server can be used."""

    UP = "up"
    DOWN = "down"
    """It did not answer; it is used again when it does, with the newest weights."""
    BROKEN = "broken"
    """A weight update failed, or it samples from other weights than it should: it must be started again."""


class ExpectedModel(NamedTuple):
    """What servers must serve; None: that is not compared."""

    model_digest: str | None = None
    tokenizer_digest: str | None = None
    dtype: str | None = None


class PolicyServerUnreachable(InvalidInput):
    """The server does not answer: it may do so later."""


class ServerRefused(Exception):
    """The server answered, and not with what was asked for."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status} {detail}")
        self.status = status


class ServerLink:
    """The connections to one server, and its state."""

    def __init__(self, number: int, url: str, *, token: str | None, ceiling: int) -> None:
        self.number, self.url = number, url.rstrip("/")
        self._connections = HttpConnections(self.url, token=token)
        self.state, self.reason = ServerState.DOWN, "it was not asked yet"
        self.info = ServerInfo("", "", PROTOCOL, "", None)
        address = urlsplit(self.url)
        self._host, self._port = address.hostname or "", address.port or 80
        self.under_way, self.version = 0, 0
        self._used_instance: str | None = None
        """The server as it was started when it was last used; None: it was not."""
        self.digests: Mapping[str, str] | None = None
        """Of the weights that the server, as it was started this time, was proved to have; None: it took none."""
        self._base: Mapping[str, str] | None = None
        """Digests of the weights that the server adds adapters to; None: none was proved."""
        self.is_leaving = False
        """Whether it is asked nothing new, and let go when it has answered what it was asked."""
        self.limit = ConcurrencyLimit(limit=float(min(8, ceiling)), ceiling=ceiling)

    @property
    def is_usable(self) -> bool:
        """Whether it may be sent requests."""
        return self.state is ServerState.UP and not self.is_leaving

    @property
    def started(self) -> str:
        """Address and instance: the server as it was started this time."""
        return f"{self.url} {self.info.instance}"

    def __str__(self) -> str:
        return f"{self.url} is {'leaving' if self.is_leaving else self.state}" + (
            f" ({self.reason})" if self.reason else ""
        )

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = _SHORT_S
    ) -> object:  # JSON
        """Return the answer's JSON.

        Raises: ConnectionFailed, TimeoutError: no answer. ServerRefused: another status than success.
        """
        answer = await self._connections.ask(method, path, body, timeout_s=timeout_s)
        value = _decode(answer.body)
        if not 200 <= answer.status < 300:
            raise ServerRefused(answer.status, error_text(value)[:300])
        return value

    async def send(self, path: str, body: bytes, *, timeout_s: float) -> bytes:
        """Post bytes, and return those of the answer. Raises: as `ask`."""
        answer = await self._connections.ask("POST", path, body, timeout_s=timeout_s)
        if not 200 <= answer.status < 300:
            raise ServerRefused(answer.status, error_text(_decode(answer.body))[:300])
        return answer.body

    async def close(self) -> None:
        await self._connections.close()

    def fail(self, state: ServerState, reason: object) -> None:
        """Use the server no more, for now or until it is started again: then what it was asked for fails at once."""
        if self.state is not ServerState.BROKEN:
            self.state, self.reason = state, f"{type(reason).__name__}: {reason}".rstrip(": ")
            if state is ServerState.BROKEN:
                self._connections.drop()

    async def read_info(self) -> ServerInfo:
        """Ask what the server is. Raises: as `ask`; InvalidInput: it is no policy server."""
        try:
            reply = await self.ask("GET", INFO)
        except ServerRefused as error:
            if error.status != 404:
                raise
            return await self._read_vllm()
        try:
            fields: Any = reply
            return ServerInfo(**fields)
        except TypeError as error:
            raise self._foreign("an answer of another shape") from error

    async def _read_vllm(self) -> ServerInfo:
        try:
            models: Any = await self.ask("GET", "/v1/models")
            weights: Any = await self.ask("GET", "/weight_info")
            card = models["data"][0]
            name, length = str(card["id"]), card.get("max_model_len")
            version = str(weights["weight_version"])
            return ServerInfo("vllm", name, PROTOCOL, version, length, transports=())
        except (ServerRefused, KeyError, TypeError, IndexError) as error:
            raise self._foreign(f"{error}") from error

    def _foreign(self, got: str) -> InvalidInput:
        do = "start it with envgym policy-server, or vLLM as docs/policy_servers.md says"
        return InvalidInput.of("server", "be a policy server", got, where=self.url, do=do)

    async def connect(self, expected: ExpectedModel, version: int) -> bool:
        """See what the server serves; return whether it has gone on with its weights since it was used.

        Args:
            expected: what it must serve.
            version: of the weights that it should have, or may have missed to be told.

        Raises: PolicyServerUnreachable: it does not answer. InvalidInput: it refuses the token, serves another
            protocol, model or tokenizer, or was left in the middle of a weight update.
        """
        try:
            info = await self.read_info()
            self._check(info, expected)
            must, got = "have finished its last weight update", "a base whose adapters are missing"
            is_whole = info.weight_version != BASE_ONLY
            InvalidInput.unless(is_whole, "server", must, got, where=self.url, do="start it again")
            await self._resume()
            is_named = info.weight_version != UNNAMED
            if not is_named:
                await self.ask("POST", "/update_weight_version", {"new_version": str(version)})
        except ServerRefused as error:
            must, do = "accept the token", "export the token it was started with, and name the variable in token_env"
            what = must if error.status in {401, 403} else "answer"
            raise InvalidInput.of("server", what, str(error), where=self.url, do=do) from error
        except (ConnectionFailed, TimeoutError) as error:
            got, do = f"{type(error).__name__}: {error}".rstrip(": "), "check the address and that the server runs"
            raise PolicyServerUnreachable.of("server", "be reachable", got, where=self.url, do=do) from error
        named = int(info.weight_version) if is_named else version
        is_same = is_named and info.instance == self._used_instance and named in (self.version, version)
        if not is_same:
            self._used_instance = None
        if not is_same or named != self.version:
            self.digests = self._base = None
        self.info, self.version = info, named
        return is_same

    def use(self) -> None:
        """Let the server be sent requests from now on."""
        self.state, self.reason, self._used_instance = ServerState.UP, "", self.info.instance

    async def rename(self, version: int) -> None:
        """Name the weights that it has. Raises: as `ask`."""
        await self.ask("POST", "/update_weight_version", {"new_version": str(version)})
        self.version = version

    async def _resume(self) -> None:
        """Let a server go on that a client, which died in an update, has left paused. Raises: as `connect`."""
        try:
            answer = await self.ask("GET", "/is_paused")
            if isinstance(answer, dict) and answer.get("is_paused"):
                await self.ask("POST", "/resume")
        except ServerRefused as error:
            if error.status != 404:
                do = "start it again: its last weight update was not finished"
                raise InvalidInput.of("server", "go on sampling", str(error), where=self.url, do=do) from error

    def _check(self, info: ServerInfo, expected: ExpectedModel) -> None:
        pairs = {
            "protocol": (PROTOCOL, info.protocol, "install the same version of envgym on both sides"),
            "model": (expected.model_digest, info.model_digest, "serve the model of the settings"),
            "tokenizer": (
                expected.tokenizer_digest,
                info.tokenizer_digest,
                "serve it with the settings' tokenizer",
            ),
            "dtype": (
                expected.dtype,
                info.dtype,
                f"start the server with --dtype {expected.dtype}, as model.precision requires",
            ),
        }
        for name, (must, got, do) in pairs.items():
            if must is not None and got is not None and must != got:
                prefixes = [str(value)[:12] for value in (must, got)]
                where = f"{info.model} at {self.url}"
                raise InvalidInput.of(f"{name} of the server", f"be {prefixes[0]}", prefixes[1], where=where, do=do)

    async def update(self, update: WeightUpdate, *, timeout_s: float, groups: GroupUpdate | None = None) -> None:
        """Put new weights in place and prove that they are; where that fails, the server is broken.

        Requests under way stand still meanwhile, and go on with the new weights.

        Args:
            update: the weights.
            timeout_s: longest time for all of it.
            groups: those of the update, which this server is one of; None: the update has no sender.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._update(update, timeout_s, groups)
        except (ConnectionFailed, TimeoutError, ServerRefused, PolicyFailure, OSError) as error:
            self.fail(ServerState.BROKEN, error)
            if groups is not None:
                groups.fail(self.started)
        except BaseException:  # cancelled, as the server leaves
            if groups is not None:
                groups.fail(self.started)
            raise
        else:
            self.version, self.digests = update.version, update.digests
            self._base = None if update.base is None else update.base.digests

    async def _update(self, update: WeightUpdate, timeout_s: float, groups: GroupUpdate | None) -> None:
        short_s = timeout_s if groups is None else min(timeout_s, groups.timeout_s)  # other servers wait for this one
        async with nullcontext() if groups is None else groups.preparing(self.started):
            await self.ask("POST", "/pause?mode=keep", timeout_s=short_s)
            has_base = update.base is None or await self._has_base(update.base, timeout_s)
        group: RunGroup | None = None
        if groups is not None:
            group = await groups.find_group(self.started, self._host, self._port, has_base=has_base)
            join = partial(self.ask, "POST", "/init_weight_transfer_engine", timeout_s=timeout_s)
            await groups.meet(group, self.started, join)

        async def bring(update: WeightUpdate, weight_version: str) -> None:
            """Put weights in place under a version, and prove that they are. Raises: as `_update`."""
            await self.ask("POST", "/start_weight_update", timeout_s=short_s)
            loading = self.ask("POST", "/update_weights", {"update_info": update.update_info}, timeout_s=timeout_s)
            if groups is None or group is None or update.sender is None:
                await loading
            else:
                await groups.send(update.sender, group, self.started, loading)
            await self.ask("POST", "/finish_weight_update", {"weight_version": weight_version}, timeout_s=timeout_s)
            _check_digests(await self._read_checksums(timeout_s), update)

        if update.base is not None and not has_base:
            await bring(update.base, BASE_ONLY)
        await bring(update, str(update.version))
        await self.ask("POST", "/resume", timeout_s=timeout_s)

    async def _has_base(self, base: WeightUpdate, timeout_s: float) -> bool:
        """Return whether the server adds adapters to this base, or has these weights and no adapters yet."""
        if self._base == base.digests:
            return True
        checksums = await self._read_checksums(timeout_s)
        return all(checksums.get(name) == digest for name, digest in base.digests.items())

    async def _read_checksums(self, timeout_s: float) -> Mapping[str, object]:
        answer = await self.ask("POST", "/weight_checker", {"action": "checksum"}, timeout_s=timeout_s)
        checksums = answer.get("checksums") if isinstance(answer, dict) else None
        return checksums if isinstance(checksums, dict) else {}


def _check_digests(digests: Mapping[str, object], update: WeightUpdate) -> None:
    wrong = sorted(
        name for name in digests.keys() | update.digests.keys() if digests.get(name) != update.digests.get(name)
    )
    if wrong:
        raise PolicyFailure(f"{len(wrong)} weights are not those of version {update.version}, the first {wrong[0]}")


def _decode(content: bytes) -> object:
    try:
        value: object = json.loads(content)
    except ValueError:
        value = content.decode(errors="replace")
    return value
