"""The client of OpenEnv servers: what a server describes over HTTP, and a WebSocket connection that plays episodes."""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import httpx

from envgym.connect.openenv_frames import (
    MAX_FRAME_BYTES,
    TOKEN_VARIABLE,
    Json,
    Observed,
    decode,
    encode,
    read_observed,
)
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split
from envgym.errors import EnvFailure, InvalidInput
from envgym.runtime.http.access import is_loopback
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SCHEME: Final = "openenv://"
_CONNECT_S: Final = 10.0
_CLOSE_S: Final = 2.0
_MAX_BODY_BYTES: Final = 4 << 20
_WHO_ANSWERS: Final = "check that an OpenEnv server answers at this address"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an environment is served."""

    host: str
    """With the port."""
    path: str
    """Of the environment on its server; empty for the only one."""
    tls: bool

    @classmethod
    def parse(cls, env_id: str, *, tls: bool) -> "Address":
        """Read an id such as `openenv://127.0.0.1:8000`. Raises: InvalidInput: it has no host."""
        host, slash, path = env_id.removeprefix(SCHEME).partition("/")
        try:
            name = httpx.URL(f"http://{host}").host
        except httpx.InvalidURL:
            name = ""
        if not name or "@" in host:
            must, do = "have a host after its scheme", "write e.g. openenv://127.0.0.1:8000"
            raise InvalidInput.of("id", must, env_id, where="openenv", do=do)
        return cls(host, (slash + path).rstrip("/"), tls)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.host}{self.path}"

    @property
    def name(self) -> str:
        """The environment's name on its server; empty for the only one."""
        return self.path.lstrip("/")

    @property
    def is_local(self) -> bool:
        return is_loopback(httpx.URL(self.url).host)


def _headers() -> dict[str, str]:
    token = os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token}"} if token else {}


# ---- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextForm:
    """An action is a text."""

    field: str
    takes_calls: bool
    """Whether it also has a field `tool_calls`, with name and arguments of each call."""


@dataclass(frozen=True, slots=True)
class ToolForm:
    """An action is a call of one of the server's tools."""


@dataclass(frozen=True, slots=True)
class ActForm:
    """An action has several fields, or one that is no text: they are the arguments of one tool."""

    tool: ToolSpec


ActionForm = TextForm | ToolForm | ActForm


def action_form(schema: object, *, where: str) -> ActionForm:
    """Return how an agent writes an action of a JSON schema. Raises: InvalidInput: an agent cannot write it."""
    fields = schema.get("properties", {}) if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(fields, dict) or schema.get("type", "object") != "object":
        raise InvalidInput.of("schema of actions", "be of an object", schema, where=where, do=_WHO_ANSWERS)
    properties = {name: field for name, field in fields.items() if name != "metadata"}
    listed = schema.get("required")
    required = [name for name in properties if isinstance(listed, list) and name in listed]
    kind = properties.get("type")
    if not properties or (isinstance(kind, dict) and "call_tool" in (kind.get("const"), kind.get("default"))):
        return ToolForm()
    candidates = required or list(properties)
    if len(candidates) == 1 and _is_text(properties[candidates[0]]):
        return TextForm(candidates[0], takes_calls="tool_calls" in properties)
    description = str(schema.get("description") or "Play a turn.")
    parameters: Json = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    return ActForm(ToolSpec(name="act", description=description, parameters=parameters))


def _is_text(field: object) -> bool:
    return isinstance(field, dict) and field.get("type") == "string" and not {"enum", "const"} & field.keys()


def call_data(form: ActionForm, name: str, arguments: JsonObject) -> Json:
    """Return the data of the step that calls a tool."""
    if isinstance(form, TextForm):
        return {form.field: "", "tool_calls": [{"name": name, "arguments": arguments}]}
    if isinstance(form, ToolForm):
        return {"type": "call_tool", "tool_name": name, "arguments": arguments}
    return dict(arguments)


# ---- what a server describes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """An environment on an OpenEnv server."""

    form: ActionForm
    tools: tuple[ToolSpec, ...]
    splits: Mapping[Split, str] | None
    """Split -> its name on the server; None: the server has no tasks but seeds."""
    sizes: Mapping[Split, int | None]
    """Number of tasks; None: they have no end, or the server does not count them."""


def describe(address: Address, *, splits: Mapping[str, str] | None, timeout_s: float) -> Description:
    """Request what an environment is.

    Args:
        address: where it is served.
        splits: `train` and `test` -> names of the server's splits; None: chosen by their names.
        timeout_s: of each request.

    Raises: InvalidInput: no OpenEnv server answers, or it cannot be played.
    """
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
    with httpx.Client(headers=_headers(), timeout=timeout, trust_env=not address.is_local) as http:
        schema = _request(http, address, "GET", "/schema")
        if not isinstance(schema, dict) or "action" not in schema:
            must, do = (
                "describe its actions at GET /schema",
                "check the path, and the version of OpenEnv (0.3 or later)",
            )
            got = "no such page" if schema is None else schema
            raise InvalidInput.of("OpenEnv server", must, got, where=address.url, do=do)
        form = action_form(schema["action"], where=address.url)
        env_name = _env_name(http, address)
        names = _choose_splits(_list_splits(http, address, env_name), splits, where=address.url)
        sizes: dict[Split, int | None] = dict.fromkeys(Split, 0)
        for split, name in (names or {}).items():
            sizes[split] = _num_tasks(http, address, f"/{env_name}/num_tasks", name)
        return Description(form=form, tools=_list_tools(http, address, form), splits=names, sizes=sizes)


_MISSING: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


def _request(http: httpx.Client, address: Address, method: str, path: str, data: Json | None = None) -> Any:  # JSON
    """Return the decoded answer; None: the server does not have what was requested. Raises: InvalidInput."""
    url = f"{address.url}{path}"
    try:
        with http.stream(method, url, json=data) as response:
            text = _text_of(response, url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        got, do = f"{type(error).__name__}: {error}", "start the server, or check the address"
        raise InvalidInput.of("OpenEnv server", "answer", got, where=url, do=do) from error
    if response.status_code in _MISSING:
        return None
    if response.status_code != HTTPStatus.OK:
        got = f"status {response.status_code}: {text}"
        do = f"set {TOKEN_VARIABLE} to the server's token" if response.status_code in (401, 403) else "read its log"
        raise InvalidInput.of("OpenEnv server", "answer with status 200", got, where=url, do=do)
    try:
        return decode(text)
    except InvalidInput as error:
        raise InvalidInput.of("OpenEnv server", "answer with JSON", text, where=url, do=_WHO_ANSWERS) from error


def _text_of(response: httpx.Response, url: str) -> str:
    """Return the body of an answer. Raises: InvalidInput: it is longer than any that is needed."""
    body = b""
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            must = f"answer with at most {_MAX_BODY_BYTES} bytes"
            raise InvalidInput.of("OpenEnv server", must, "more", where=url, do=_WHO_ANSWERS)
    return body.decode(errors="replace")


def _env_name(http: httpx.Client, address: Address) -> str | None:
    names = _request(http, address, "GET", "/list_environments")
    if not isinstance(names, list) or not names:
        return None
    return address.name if address.name in names else str(names[0])


def _list_splits(http: httpx.Client, address: Address, env_name: str | None) -> Mapping[str, str] | None:
    """Return the type of each of the server's splits by name; None: it has no tasks."""
    items = None if env_name is None else _request(http, address, "GET", f"/{env_name}/splits")
    if not isinstance(items, list):
        return None
    return {str(item.get("name")): str(item.get("type")) for item in items if isinstance(item, dict)} or None


def _choose_splits(
    types: Mapping[str, str] | None, setting: Mapping[str, str] | None, *, where: str
) -> Mapping[Split, str] | None:
    """Return the server's split for each of ours. Raises: InvalidInput: there is none."""
    if setting is not None:
        names = {Split.parse(split, where="splits"): name for split, name in setting.items()}
        if not names or len(set(names.values())) != len(names) or not set(names.values()) <= set(types or ()):
            must, do = f"name different splits among {', '.join(types or ()) or 'none'}", "choose among them"
            raise InvalidInput.of("splits", must, dict(setting), where=where, do=do)
        return names
    if types is None:
        return None
    names = {}
    for split, kinds in ((Split.TRAIN, ("train",)), (Split.TEST, ("test", "validation"))):
        fitting = [name for kind in kinds for name in types if kind in (name, types[name])]
        if fitting:
            names[split] = fitting[0]
    if not names:
        do = "set splits, e.g. splits={train: NAME, test: OTHER}"
        raise InvalidInput.of("splits of the server", "be train or test", ", ".join(types), where=where, do=do)
    return names


def _num_tasks(http: httpx.Client, address: Address, path: str, split: str) -> int | None:
    answer = _request(http, address, "POST", path, {"split": split})
    count = answer.get("num_tasks") if isinstance(answer, dict) else None
    if isinstance(count, bool) or not isinstance(count, int | None) or (count or 0) < 0:
        must, do = "be a number from 0", "correct num_tasks of the server"
        raise InvalidInput.of(f"num_tasks of {split}", must, count, where=address.url, do=do)
    return count


def _list_tools(http: httpx.Client, address: Address, form: ActionForm) -> tuple[ToolSpec, ...]:
    """Return the tools of an environment. Raises: InvalidInput: its actions are calls of tools, and it lists none."""
    if isinstance(form, ActForm):
        return (form.tool,)
    if isinstance(form, TextForm) and not form.takes_calls:
        return ()
    answer = _request(http, address, "POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    result = answer.get("result") if isinstance(answer, dict) else None
    listed = result.get("tools") if isinstance(result, dict) else None
    if isinstance(form, ToolForm) and not listed:
        do = "serve an environment with tools, or one whose actions have fields"
        raise InvalidInput.of("OpenEnv server", "list its tools at POST /mcp", answer, where=address.url, do=do)
    return read_tools(listed or [], where=address.url)


def read_tools(items: object, *, where: str) -> tuple[ToolSpec, ...]:
    """Read the tools that a server lists. Raises: InvalidInput: one has no name, or no schema."""
    tools = []
    for item in items if isinstance(items, list) else [items]:
        fields = item if isinstance(item, dict) else {}
        name, schema = fields.get("name"), fields.get("inputSchema", fields.get("input_schema"))
        if not isinstance(name, str) or not isinstance(schema, dict):
            do = "correct the tools of the server"
            raise InvalidInput.of("tool", "have a name and a schema of its arguments", item, where=where, do=do)
        tools.append(ToolSpec(name=name, description=str(fields.get("description") or ""), parameters=schema))
    return tuple(tools)


# ---- connections -----------------------------------------------------------------------------------------------------


class Connection:
    """One session on a server."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Connect. Raises: EnvFailure: the server does not answer."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._where, self._timeout_s = address.url, timeout_s
        self._stack = ExitStack()
        try:
            connecting = connect(
                f"ws{address.url.removeprefix('http')}/ws",
                additional_headers=_headers(),
                compression=None,
                open_timeout=min(timeout_s, _CONNECT_S),
                ping_interval=None,  # the server's pings are answered, which is enough
                close_timeout=_CLOSE_S,
                max_size=MAX_FRAME_BYTES,
                proxy=None if address.is_local else True,
            )
            self._socket: ClientConnection = self._stack.enter_context(connecting)
        except (OSError, TimeoutError, WebSocketException) as error:
            raise self._failure("accept a connection", error) from error

    def ask(self, kind: str, data: Json) -> Observed:
        """Send a reset or a step, and return the answer.

        Raises: ErrorReply: the server answered with an error. EnvFailure: it did not answer, and the connection is
            closed.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            with suppress(ConnectionClosed):  # a server that refuses a session sends the reason, and closes
                self._socket.send(encode({"type": kind, "data": data}))
            answer = self._socket.recv(timeout=self._timeout_s)
        except (ConnectionClosed, TimeoutError) as error:
            self.close()
            raise self._failure("answer", error) from error
        text = answer if isinstance(answer, str) else answer.decode(errors="replace")
        return read_observed(text, where=self._where)

    def close(self) -> None:
        """End the session."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            self._socket.send(encode({"type": "close"}))
        self._stack.close()

    def _failure(self, must: str, error: Exception) -> EnvFailure:
        is_silent = isinstance(error, TimeoutError)
        got = f"nothing for {self._timeout_s:g} s" if is_silent else f"{type(error).__name__}: {error}"
        return EnvFailure.of("OpenEnv server", must, got, where=self._where, do="read its log, or raise timeout_s")
