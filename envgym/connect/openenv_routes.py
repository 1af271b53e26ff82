"""The HTTP routes of an OpenEnv server: what an environment is, its tasks, and one reset without a session.

Each answer is a function of the decoded body that returns JSON. One to a POST may block.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

from envgym.connect.openenv_frames import (
    Json,
    RpcError,
    observation_data,
    read_reset,
    read_rpc,
    rpc_failure,
    rpc_result,
)
from envgym.connect.openenv_session import OpenEnvSession, answer_rpc, no_episode
from envgym.core.tasks import Split
from envgym.core.version import __version__
from envgym.errors import InvalidInput, UnknownName
from envgym.registry import find
from envgym.serving.templates import EnvTemplate

MAX_TASKS: Final = 10_000
"""In one answer."""
_TEXT: Final = {"type": "string"}
_OBJECT: Final = {"type": "object"}
_CALL: Final = {
    "type": "object",
    "properties": {"name": _TEXT, "arguments": _OBJECT, "id": {"type": ["string", "null"]}},
    "required": ["name"],
    "additionalProperties": False,
}
ACTION_SCHEMA: Final = {
    "title": "Action",
    "description": "A turn of the agent: its text, in which tool calls are read too, or its text and its tool calls.",
    "type": "object",
    "properties": {"text": _TEXT, "tool_calls": {"type": "array", "items": _CALL}},
    "required": ["text"],
    "additionalProperties": False,
}
_MESSAGES: Final = {
    "type": "array",
    "items": _OBJECT,
    "description": "Chat messages in the form of OpenAI's chat completions.",
}
_SHOWN: Final = {
    "text": {**_TEXT, "description": "Text of the messages."},
    "messages": _MESSAGES,
    "ending": {"type": ["string", "null"], "description": "How the episode ended; null while it continues."},
    "tool_errors": {"type": "integer", "description": "Tool calls of this turn that failed."},
}
OBSERVATION_SCHEMA: Final = {"title": "Observation", "type": "object", "properties": _SHOWN, "required": list(_SHOWN)}
RESET_SCHEMA: Final = {
    "title": "ResetObservation",
    "type": "object",
    "properties": {
        **_SHOWN,
        "tools": {"type": "array", "items": _OBJECT},
        "system_prompt": _TEXT,
        "task_id": _TEXT,
    },
    "required": [*_SHOWN, "tools", "system_prompt", "task_id"],
}
STATE_SCHEMA: Final = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "env_id": _TEXT,
        "task_id": _TEXT,
        "split": _TEXT,
        "ending": {"type": ["string", "null"]},
        "total_reward": {"type": ["number", "null"]},
    },
    "required": ["episode_id", "step_count", "env_id"],
}


class NotSupported(InvalidInput):
    """A request that this environment cannot answer."""


Answer = Callable[[Any], Any]  # decoded JSON -> JSON


def env_routes(template: EnvTemplate) -> Mapping[tuple[str, str], Answer]:
    """Return the answers of an environment's routes by method and path, which follows its address."""
    return {
        ("GET", "/health"): lambda _: {"status": "healthy"},
        ("GET", "/metadata"): lambda _: _metadata(template.env_id),
        ("GET", "/schema"): lambda _: {
            "action": ACTION_SCHEMA,
            "observation": OBSERVATION_SCHEMA,
            "reset_observation": RESET_SCHEMA,
            "state": STATE_SCHEMA,
        },
        ("GET", "/state"): lambda _: no_episode(template.env_id),
        ("POST", "/reset"): lambda data: _reset(template, data),
        ("POST", "/step"): _refuse_step,
        ("POST", "/mcp"): lambda data: _mcp(template, data),
    }


def task_routes(template: EnvTemplate) -> Mapping[tuple[str, str], Answer]:
    """Return the answers of the routes of an environment's tasks, by method and path."""
    api = path_of(template.env_id)
    return {
        ("GET", f"{api}/splits"): lambda _: _splits(template),
        ("POST", f"{api}/tasks"): lambda data: {"tasks": _range(template, data), "env_name": template.env_id},
        ("POST", f"{api}/num_tasks"): lambda data: {"num_tasks": _size(template, _split(data))},
        ("POST", f"{api}/task"): lambda data: {"task": _task(template, _split(data), _number(data, "index"))},
        ("POST", f"{api}/task_range"): lambda data: {"tasks": _range(template, data)},
    }


def path_of(env_id: str) -> str:
    """Return the path below which an environment is served."""
    return f"/{env_id.lstrip('/')}"


def _reset(template: EnvTemplate, data: object) -> Json:
    """Return the first observation of an episode that nobody plays."""
    frame = read_reset(data)
    with closing(OpenEnvSession(template.env_id, template.make, template.tools)) as session:
        return observation_data(session.reset(frame))


def _refuse_step(data: object) -> Json:
    do = "connect to /ws, and send reset and step there"
    raise InvalidInput.of("step", "follow a reset of the same session", "a request without one", where="HTTP", do=do)


def _mcp(template: EnvTemplate, data: object) -> Json:
    try:
        request = read_rpc(data)
        return rpc_result(request, answer_rpc(request, template.tools))
    except RpcError as error:
        return rpc_failure(error)


def _metadata(env_id: str) -> Json:
    try:
        summary = find(env_id).summary
    except UnknownName:
        summary = ""
    return {"name": env_id, "description": summary or f"The environment {env_id}.", "version": f"envgym {__version__}"}


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _splits(template: EnvTemplate) -> list[Json]:
    sizes = template.description["sizes"]
    return [{"name": split.value, "type": split.value} for split in Split if sizes[split.value] != 0]


def _range(template: EnvTemplate, data: object) -> list[Json]:
    """Return the tasks of a slice of a split. Raises: NotSupported: neither the split nor the slice has an end."""
    split, start, stop = _split(data), _number(data, "start"), _number(data, "stop")
    size = template.tasks.size(split)
    if size is not None or stop is None or stop < 0 or (start or 0) < 0:
        start, stop, _ = slice(start, stop).indices(_size(template, split))
    start = start or 0
    if stop - start > MAX_TASKS:
        do = "request them in parts, from task_range"
        raise InvalidInput.of("tasks of one answer", f"be at most {MAX_TASKS}", stop - start, where="HTTP", do=do)
    return [_task(template, split, index) for index in range(start, stop)]


def _task(template: EnvTemplate, split: Split, index: int | None) -> Json:
    """Return a task without its answer. Raises: InvalidInput: there is no such task."""
    if index is None or not 0 <= index < 2**63:
        raise InvalidInput.of("index", "be a whole number from 0", index, where="HTTP", do="choose another")
    task = template.tasks.task(split, index)
    return {"id": task.id, "prompt": task.prompt, "split": split.value, "index": index}


def _size(template: EnvTemplate, split: Split) -> int:
    """Return the number of tasks of a split. Raises: NotSupported: they have no end."""
    size = template.tasks.size(split)
    if size is None:
        do = "choose any index, or request task_range with start and stop"
        raise NotSupported.of(f"split {split}", "have a number of tasks", "tasks without end", where="HTTP", do=do)
    return size


def _split(data: object) -> Split:
    name = data.get("split") if isinstance(data, dict) else None
    return Split.parse(str(name), where="HTTP")


def _number(data: object, name: str) -> int | None:
    value = data.get(name) if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise InvalidInput.of(name, "be a whole number", value, where="HTTP", do="send e.g. 0")
    return value
