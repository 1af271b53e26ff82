"""What client and server of environments say to each other: paths, JSON forms, errors.

Every request is a POST with a JSON object, every reply a JSON object. A session is one env with its episode; its id is
chosen by the client, 128 random bits, so that nobody else can name it. The requests of a session are numbered from 0,
one at a time: a number that is sent again gets the reply that was given, and nothing is played twice.

    describe  {protocol, version, time, env, settings} -> what a client must know of an env, with its `digest`
    tasks     {env, settings, split, start, count} -> {tasks}, payloads and metadata left out
    open      {session, number: 0, env, settings, digest, seed, options} -> as reset
    reset     {session, number, seed, options} -> {task, observation, plain, tools, facts}; `facts`: those that changed
    step      {session, number, action} -> the turn's record
    oracle    {session, number} -> {action}
    fork      {session, to, keep} -> {}; `to` is the new session, and this is its request 0
    close     {session} -> {}
    renew     {sessions} -> {}; sessions whose client lives, though it calls none of their envs

Requests of a session may have `ids`, which `envgym.runtime.processes.log` puts into the lines that they cause.

An error has another status than 200, and is `{"error": {"type", "message"}}`; `type` is a class of
`envgym.errors`, or one of this module.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import Any, Final

from envgym.core.json_types import JsonObject, parse_json
from envgym.core.messages import Action, Observation
from envgym.core.serialize import (
    action_from_json,
    action_to_json,
    observation_from_json,
    observation_to_json,
    reward_from_json,
    reward_to_json,
)
from envgym.core.tasks import HiddenPayload, Task
from envgym.core.turns import Ending
from envgym.core.version import __version__
from envgym.env import NoOracle
from envgym.errors import EnvFailure, EnvgymError, InfrastructureError, InvalidInput
from envgym.records import StepRecord
from envgym.serving.fields import check_action
from envgym.tools import ToolSpec

PROTOCOL: Final = 2
"""Raised by every change that the other side must know of."""
DESCRIBE, TASKS, OPEN, RESET = "/v1/describe", "/v1/tasks", "/v1/open", "/v1/reset"
STEP, ORACLE, FORK, CLOSE, RENEW = "/v1/step", "/v1/oracle", "/v1/fork", "/v1/close", "/v1/renew"
HEALTH, METRICS = "/health", "/metrics"
DEFAULT_PORT: Final = 8700
TOKEN_VARIABLE: Final = "ENVGYM_ENV_SERVER_TOKEN"
"""The environment variable with the token that a server demands and a client sends."""
MAX_BODY_BYTES: Final = 16 << 20
"""Of one message, either way."""
MAX_CLOCK_DIFFERENCE_S: Final = 300.0
_SMALL_BYTES = 64 << 10
UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading a reply of another form raises."""
_MAX_MESSAGE_CHARS = 10_000
"""Of the text of an error that a server sends."""
_MAX_PARTS = 1_000_000
"""Of the JSON of one message."""

Json = dict[str, Any]  # JSON that was just decoded, or is about to be encoded


class SessionLost(EnvFailure):
    """The server does not have the session: it was idle for too long, or the server is another one."""


class ServerUnreachable(EnvFailure):
    """A server does not answer."""


class ServerBusy(InfrastructureError):
    """All sessions of a server are taken."""

    retry_after_s = 0.25
    """When a client may ask again."""


def _classes(root: type[EnvgymError]) -> dict[str, type[EnvgymError]]:
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes |= _classes(child)
    return classes


def error_to_json(error: Exception) -> Json:
    """Write an error; one that is not ours is a failure of the env."""
    if isinstance(error, EnvgymError | NoOracle):
        return {"error": {"type": type(error).__name__, "message": str(error)}}
    return {"error": {"type": EnvFailure.__name__, "message": f"{type(error).__name__}: {error}"}}


def error_of(reply: Mapping[str, Any]) -> Exception | None:
    """Return the error of a reply whose status is not 200; None: it is of another kind of server."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return None
    name, message = str(error.get("type")), str(error.get("message"))[:_MAX_MESSAGE_CHARS]
    if name == NoOracle.__name__:
        return NoOracle(message)
    try:
        return _classes(EnvgymError).get(name, EnvFailure)(message)
    except TypeError:  # an error of another kind, which is not made of its message
        return EnvFailure(message)


def encode(value: JsonObject) -> bytes:
    """Write a message. Raises: TypeError: a value that JSON has no form for. RecursionError: it is nested too deep."""
    return json.dumps(value, separators=(",", ":"), default=_plain).encode("ascii")


def _plain(value: object) -> object:
    item = getattr(value, "item", None)
    if isinstance(value, Number) and callable(item):
        plain: object = item()
        return plain
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode(content: bytes) -> Json:
    """Read a message. Raises: InvalidInput: it is no JSON object."""
    try:
        if len(content) > _SMALL_BYTES:
            parse_json(content, _MAX_PARTS)
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        do = "send what envgym sends"
        raise InvalidInput.of("message", "be JSON", str(error), where="body", do=do) from error
    if not isinstance(value, dict):
        raise InvalidInput.of("message", "be a JSON object", value, where="body", do="send what envgym sends")
    return value


def versions() -> Json:
    """The versions on which both sides must agree."""
    return {"protocol": PROTOCOL, "version": __version__}


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Read a reply in a block. Raises: EnvFailure: it has another form than the server's of envgym."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(error, url) from error


def unreadable(error: Exception, url: str) -> EnvFailure:
    """Return the failure that a reply of another form is."""
    got = f"{type(error).__name__}: {error}" if not isinstance(error, EnvgymError) else str(error)
    return EnvFailure.of("reply", "have the form of envgym's", got, where=url, do="look who answers at this address")


# ---- records --------------------------------------------------------------------------------------------------------


def action_to_wire(action: Action) -> str | Json:
    """Write an action: as its text, where nothing was parsed out of it."""
    is_plain = not (action.tool_calls or action.malformed or action.thinking is not None or action.content != action)
    return str(action) if is_plain else action_to_json(action)


def action_from_wire(data: object) -> Action:
    """Read what `action_to_wire` wrote. Raises: InvalidInput: it has another form."""
    if isinstance(data, str):
        return Action(data)
    check_action(data)
    return action_from_json(data)  # type: ignore[arg-type]  # checked above


def observation_to_wire(observation: Observation) -> str | Json:
    """Write an observation: as its text, where it is one user message."""
    is_plain = observation.messages == Observation(str(observation)).messages
    return str(observation) if is_plain else observation_to_json(observation)


def observation_from_wire(data: str | Json) -> Observation:
    """Read what `observation_to_wire` wrote."""
    return Observation(data) if isinstance(data, str) else observation_from_json(data)


def step_to_wire(record: StepRecord) -> Json:
    """Write the record of a turn, without its action, which the client has."""
    return {
        "turn": record.turn,
        "observation": observation_to_wire(record.observation),
        "reward": reward_to_json(record.reward),
        "ending": record.ending,
        "tool_calls": record.tool_calls,
        "tool_errors": record.tool_errors,
        "error": record.error,
    }


def step_from_wire(data: Json, action: Action) -> StepRecord:
    """Read what `step_to_wire` wrote, as the record of `action`."""
    ending = data["ending"]
    return StepRecord(
        turn=data["turn"],
        action=action,
        observation=observation_from_wire(data["observation"]),
        reward=reward_from_json(data["reward"]),
        ending=None if ending is None else Ending(ending),
        tool_calls=data["tool_calls"],
        tool_errors=data["tool_errors"],
        error=data["error"],
    )


def without_payload(task: Task, index: int | None = None) -> Task:
    """Return a task as a client may have it: payload and metadata, which may tell answers, stay here."""
    return Task(id=task.id, prompt=task.prompt, payload=HiddenPayload(key=task.key, index=index), split=task.split)


def tools_to_wire(tools: tuple[ToolSpec, ...]) -> list[Json]:
    """Write tools."""
    return [{"name": item.name, "description": item.description, "parameters": dict(item.parameters)} for item in tools]


def tools_from_wire(data: list[Json]) -> tuple[ToolSpec, ...]:
    """Read what `tools_to_wire` wrote."""
    return tuple(ToolSpec(**item) for item in data)
