"""An env on a server, in place of the local one: the same observations, rewards, endings, tools, tasks, forks.

Its id is an address and the id that the server has: `http://HOST:PORT/math/arithmetic-v0`, or several addresses of
servers that serve the same, `http://HOST:PORT,HOST:PORT/...`. What tells answers stays on the server: of a task's
payload the client knows the content hash, and its metadata are empty.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache, partial
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from envgym.core.json_types import JsonObject
from envgym.core.messages import Action
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.tasks import Split, Task
from envgym.env import AsyncCalls, Env, ForkCapability
from envgym.errors import InvalidInput, ResetNeeded, ToolError
from envgym.party import Party
from envgym.records import ResetRecord, ResetResult, StepRecord, StepResult
from envgym.runtime.event_loop import run_without_loop
from envgym.seeds import read_seed
from envgym.serving import wire
from envgym.serving.client import BLOCKING, LOOP, ClientIo, env_loop
from envgym.serving.fields import FACTS, check_beginning, check_task, check_turn
from envgym.serving.held_session import EnvSession
from envgym.serving.pool import ServerPool, pool_of
from envgym.serving.wire import Json, ServerUnreachable, SessionLost
from envgym.tools import Tool

_REMOTE = re.compile(r"(?P<scheme>https?)://(?P<places>[^/\s]+)/(?P<env_id>.+)")
_MAX_TASKS: Final = 10_000
"""Tasks that a client keeps."""
_PAGE: Final = 64
"""Tasks that are fetched at once where they are taken one after the other."""
_TOO_DEEP = "A tool call was not run: its arguments are nested too deep."


class RemoteId(NamedTuple):
    """The id of an env on servers."""

    urls: tuple[str, ...]
    env_id: str

    @classmethod
    def parse(cls, text: str) -> "RemoteId | None":
        """Read an id; None: it is that of a local env."""
        match = _REMOTE.fullmatch(text)
        if match is None:
            return None
        return cls(tuple(f"{match['scheme']}://{place}" for place in match["places"].split(",")), match["env_id"])


def remote_id(urls: tuple[str, ...], env_id: str) -> str:
    """Return the id of an env on servers. Raises: InvalidInput: an address is none, or the env has one already."""
    places = [url.rstrip("/").removeprefix("http://") for url in urls]
    if not all(url.startswith("http://") for url in urls) or any("/" in place for place in places):
        do = "write them as in http://127.0.0.1:8700"
        raise InvalidInput.of("servers", "be addresses that begin with http://", list(urls), where=env_id, do=do)
    if RemoteId.parse(env_id) is not None:
        raise InvalidInput.of("id", "have no address beside servers", env_id, where="envs", do="leave out one of them")
    return f"http://{','.join(places)}/{env_id}"


class RemoteTasks:
    """The tasks of an env on a server, without their payloads and metadata."""

    def __init__(self, pool: ServerPool, env_id: str, settings: Json, sizes: Mapping[str, int | None]) -> None:
        """Know how many there are; tasks are fetched when they are asked for."""
        self._pool, self._request = pool, {"env": env_id, "settings": settings}
        self._sizes = sizes
        self._kept: OrderedDict[tuple[Split, int], Task] = OrderedDict()
        self._last: tuple[Split, int] | None = None
        self._lock = Lock()

    def size(self, split: Split) -> int | None:
        return self._sizes[split.value]

    def task(self, split: Split, index: int) -> Task:
        """Return a task. Raises: InvalidInput: beyond the end of the split. EnvFailure: the server does not answer."""
        place = (split, index)
        with self._lock:
            if place not in self._kept:
                count = _PAGE if self._last == (split, index - 1) else 1
                data = {**self._request, "split": split.value, "start": index, "count": count}
                self._keep(split, index, self._pool.request(wire.TASKS, data))
                while len(self._kept) > _MAX_TASKS:
                    self._kept.popitem(last=False)
            self._last = place
            return self._kept[place]

    def _keep(self, split: Split, start: int, reply: Json) -> None:
        """Keep the tasks of a reply; the first is that of index `start`. Raises: EnvFailure: it holds none."""
        with wire.reading(str(self._request["env"])):
            page = reply["tasks"][:_PAGE]
            for item in page:
                check_task(item)
            self._kept |= {(split, start + number): task_from_json(item) for number, item in enumerate(page)}
            self._kept.move_to_end((split, start))  # of a page without a task there is none


class RemoteEnvKind:
    """What a client knows of an environment with its settings."""

    def __init__(self, pool: ServerPool, env_id: str, settings: Json) -> None:
        """Ask the servers. Raises: InvalidInput, UnknownName: as `ServerPool.describe`."""
        self.pool = pool
        self.description = data = pool.describe(env_id, settings)
        self.url = pool.clients[0].url if pool.clients else "environment server"
        self.tools = wire.tools_from_wire(data["tools"])
        self.tasks = RemoteTasks(pool, env_id, settings, data["sizes"])
        self.opening: Json = {"env": env_id, "settings": settings, "digest": data["digest"]}


@cache
def _kind(pool: ServerPool, env_id: str, settings: bytes) -> RemoteEnvKind:
    return RemoteEnvKind(pool, env_id, wire.decode(settings))


class RemoteEnv(Env[None]):
    """The client's side of an env on a server."""

    blocking = True

    def __init__(
        self,
        env_id: str,
        /,
        *,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
        **settings: Any,  # the env's own keyword arguments
    ) -> None:
        """Point at an env on a server; its first reset opens a session there.

        Args:
            env_id: as `RemoteId` reads it.
            parties: none, as they live in this process.
            render_mode: as for any env.
            settings: keyword arguments of the env.

        Raises: InvalidInput, UnknownName: no server there, or no such env or setting on it.
        """
        remote = RemoteId.parse(env_id)
        assert remote is not None, "the registry asked"
        if parties:
            do = "let the server's env have them, or make the env in this process"
            raise InvalidInput.of("parties", "be none for an env on a server", sorted(parties), where=env_id, do=do)
        super().__init__(render_mode=render_mode)
        try:
            encoded = wire.encode(settings)
        except (TypeError, ValueError) as error:
            do = "pass numbers, texts, lists and mappings"
            raise InvalidInput.of("settings", "have a form in JSON", str(error), where=env_id, do=do) from error
        self._kind = _kind(pool_of(remote.urls), remote.env_id, encoded)
        data = self._kind.description
        self.fork_capability = ForkCapability(data["fork_capability"])  # type: ignore[misc]  # here, of each env
        self._take_facts({})
        self.tasks = self._kind.tasks
        self._session: EnvSession | None = None
        self._losses: list[str] = []
        """Why sessions of this env, or of one forked from it, were lost."""

    def _take_facts(self, changed: Json) -> None:
        """Say of itself what the env on the server says; `changed`: what its last reset changed."""
        facts = {**{name: self._kind.description[name] for name in FACTS}, **changed}
        facts["reward_range"] = tuple(facts["reward_range"])
        vars(self).update(facts)

    @property
    def has_lost_session(self) -> bool:
        """Whether a server went away with an episode of this env, or of one forked from it, or none was there."""
        return bool(self._losses)

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools that every task has; they run on the server."""
        return MappingProxyType({spec.name: Tool(spec=spec, call=_refuse_call) for spec in self._kind.tools})

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Start an episode, in a session that is opened where there is none. Raises: as `Env.reset`."""
        return run_without_loop(self._start(BLOCKING, seed, options))

    async def _start(self, io: ClientIo, seed: int | None, options: Mapping[str, Any] | None) -> ResetResult:
        if seed is not None:
            seed = read_seed(seed, where=self.name)
        is_first = self._np_random_seed is None
        self._take_seed(seed)
        self._is_over = True
        task = (options or {}).get("task")
        if task is not None and not isinstance(task, Task):
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("options['task']", "be a Task", task, where=self.name, do=do)
        fields = dict(options or {})
        if task is not None:
            fields["task"] = task_to_json(task)
        reply = await self._begin(io, {"seed": self._np_random_seed if is_first else seed, "options": fields})
        with wire.reading(self._kind.url):
            check_beginning(reply)
            record = ResetRecord(
                task=task_from_json(reply["task"]) if task is None else task,
                observation=wire.observation_from_wire(reply["observation"]),
                system_prompt=reply["facts"].get("system_prompt", self._kind.description["system_prompt"]),
                tools=self._kind.tools if reply["tools"] is None else wire.tools_from_wire(reply["tools"]),
                seed=seed,
                plain=None if reply["plain"] is None else wire.observation_from_wire(reply["plain"]),
            )
        self._take_facts(reply["facts"])
        self._task, self._turn, self._is_over, self._last = record.task, 0, False, record.observation
        return ResetResult(record.observation, {"envgym": record})

    async def _begin(self, io: ClientIo, data: Json) -> Json:
        """Reset the env of the session; where there is none any more, that of a new one if a seed makes it the same."""
        if self._session is not None:
            with suppress(*((SessionLost, ServerUnreachable) if data["seed"] is not None else ())):
                return await self._session.call(io, wire.RESET, **data)
            self._session.close_soon()  # the server may still have it
            self._session = None
        with self._noting_loss():
            self._session, reply = await self._kind.pool.open(io, {**self._kind.opening, **data})
        return reply

    def _play(self, action: Action) -> StepRecord:
        return run_without_loop(self._play_on_server(BLOCKING, action))

    async def _play_on_server(self, io: ClientIo, action: Action) -> StepRecord:
        """Play one turn. Raises: InfrastructureError: the server does not answer, or has lost the session."""
        message = wire.action_to_wire(action)
        try:
            reply = await self._call(io, wire.STEP, action=message)
        except RecursionError:
            unread = Action(str(action), content=action.content, thinking=action.thinking, malformed=(_TOO_DEEP,))
            reply = await self._call(io, wire.STEP, action=wire.action_to_wire(unread))
        try:
            check_turn(reply)
            return wire.step_from_wire(reply, action)
        except wire.UNREADABLE as error:
            raise wire.unreadable(error, self._kind.url) from error

    def oracle(self) -> str:
        """Return the best next action. Raises: NoOracle: the env has none. InvalidInput: the server does not tell."""
        reply = run_without_loop(self._call(BLOCKING, wire.ORACLE))
        with wire.reading(self._kind.url):
            action = reply["action"]
            return action if isinstance(action, str) else wire.action_from_wire(action)

    def fork(self) -> Self:
        """Return an independent copy on the same server. Raises: as `Env.fork`."""
        return run_without_loop(self._copy(BLOCKING))

    async def _copy(self, io: ClientIo) -> Self:
        if self._task is None:
            raise ResetNeeded.of("fork", "follow a reset", "no episode", where=self.name, do="call reset first")
        twin = object.__new__(type(self))  # a shallow copy; `copy.copy` would send this one through `__reduce__`
        vars(twin).update(vars(self))
        with self._noting_loss():
            twin._session = await self._running().fork(io)
        twin.own_generator()
        return twin

    def close(self) -> None:
        run_without_loop(self._end(BLOCKING))

    async def _end(self, io: ClientIo) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close(io)

    def async_calls(self) -> AsyncCalls:
        return _RemoteCalls(self)

    async def _call(self, io: ClientIo, path: str, **data: object) -> Json:
        with self._noting_loss():
            return await self._running().call(io, path, **data)

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        try:
            yield
        except (SessionLost, ServerUnreachable) as error:
            self._losses.append(str(error))
            raise

    def _running(self) -> EnvSession:
        if self._session is None:
            raise ResetNeeded.of("call", "follow a reset", "no session", where=self.name, do="call reset first")
        return self._session

    def __reduce__(self) -> tuple[object, ...]:
        """Travel with a copy of the session, which the server keeps for a while; what is read from it forks it."""
        state = {name: value for name, value in vars(self).items() if name not in ("_kind", "_session", "tasks")}
        copy = None
        if self._session is not None:
            copy = run_without_loop(self._session.fork(BLOCKING, keep=True))
        return partial(_restore, type(self)), (*self._made_with, state, copy and (copy.client.url, copy.id))


class _RemoteCalls:
    """The calls of an env on a server, in the event loop of all of them."""

    __slots__ = ("_env",)

    def __init__(self, env: RemoteEnv) -> None:
        self._env = env

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        return await env_loop().run_for(self._env._start(LOOP, seed, options))

    async def step(self, action: str) -> StepResult:
        env = self._env
        parsed = env._begin_turn(action)
        try:
            record = await env_loop().run_for(env._play_on_server(LOOP, parsed))
        except asyncio.CancelledError:
            if env._session is not None:
                env._session.is_lost = True  # the server may have played the turn, and nobody has got its record
            raise
        except Exception as error:  # noqa: BLE001  # a failed turn is a record
            record = env._failed_turn(parsed, error)
        return env._end_turn(record)

    async def fork(self) -> RemoteEnv:
        twins: list[RemoteEnv] = []

        async def copy() -> None:
            twins.append(await self._env._copy(LOOP))

        try:
            await env_loop().run_for(copy())
        except asyncio.CancelledError:
            env_loop().call(lambda: [_RemoteCalls(twin).close() for twin in twins])  # no caller has got them
            raise
        return twins[0]

    def close(self) -> "Future[None]":
        return env_loop().begin(self._env._end(LOOP))  # after a cancelled reset that may still set the session


def _restore(
    cls: type[RemoteEnv],
    args: tuple[Any, ...],  # of its constructor
    kwargs: dict[str, Any],
    state: dict[str, Any],
    session: tuple[str, str] | None,
) -> RemoteEnv:
    env = cls(*args, **kwargs)
    vars(env).update(state)
    if session is not None:
        url, session_id = session
        env._session = run_without_loop(EnvSession(env._kind.pool.client_of(url), session_id).fork(BLOCKING))
    return env


def _refuse_call(owner: object, arguments: JsonObject) -> object:
    raise ToolError("This tool runs on the server of its environment.")
