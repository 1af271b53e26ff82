"""What client and server of machines say to each other: paths, JSON forms and errors; docs/sandbox.md has the protocol.

Every request is a POST with a JSON object, every reply a JSON object. The client draws the id of a machine, 128 random
bits, so that nobody else can name it, and numbers its requests: a number that is sent again gets the reply that was
given, and no command runs twice.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter, ValidationError

from envgym.core.json_types import parse_json
from envgym.errors import EnvgymError, ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure, UnknownName
from envgym.sandbox.machines.records import DEFAULT_OUTPUT, MAX_GET, ROOT, CommandResult, MachineSpec
from envgym.sandbox.records import MIB, RunEnding

PROTOCOL: Final = 1
"""Raised by every change that the other side must know of."""
PREFIX: Final = "/v1/machines"
TOKEN_VARIABLE: Final = "ENVGYM_SANDBOX_TOKEN"
"""The environment variable with the token that a server demands and a client sends."""
DEFAULT_PORT: Final = 8710
MAX_BODY_BYTES: Final = 256 * MIB
_MAX_PARTS = 1_000_000
_ERRORS: Mapping[str, type[EnvgymError]] = {
    error.__name__: error for error in (InvalidInput, UnknownName, ToolError, ForkUnsupported, ToolInfraFailure)
}


def _decoded(text: object) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return base64.b64decode(str(text).encode(), validate=True)
    except binascii.Error as error:
        raise ValueError(f"base64: {error}") from None


Content = Annotated[
    bytes,
    BeforeValidator(_decoded),
    PlainSerializer(lambda content: base64.b64encode(content).decode(), when_used="json"),
]
"""Bytes; base64 in JSON."""
Files = dict[str, tuple[Content, int]]
"""Relative path -> content and mode."""


class Request(BaseModel):
    """A request; `machine` and `number` are empty in those that concern no machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Describe(Request):
    """Ask what the server is, and whether it can start machines."""


class Build(Request):
    """Build an image from the files of a context."""

    context: Files
    dockerfile: str = "Dockerfile"
    bases: dict[str, str] = {}
    network: bool = False
    timeout_s: float = 600.0


class Renew(Request):
    """Tell that the client of some machines lives."""

    machines: list[str]


class OfMachine(Request):
    """A request to one machine."""

    machine: str
    number: int


class Start(OfMachine):
    """Start a machine; its request 0."""

    spec: MachineSpec


class Run(OfMachine):
    """Run a command."""

    command: str | list[str]
    timeout_s: float
    output: int = DEFAULT_OUTPUT
    workdir: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    stdin: Content = b""
    shell: str | None = None


class Put(OfMachine):
    """Write files."""

    files: Files
    directory: str
    owner: str = ROOT
    is_fresh: bool = False


class Get(OfMachine):
    """Read files."""

    path: str
    max_bytes: int = MAX_GET


class EndProcesses(OfMachine):
    """Kill all processes."""


class Fork(OfMachine):
    """Start a copy; this is request 0 of the new machine `to`."""

    to: str


class Close(OfMachine):
    """Remove the machine."""


PATHS: Final[Mapping[str, type[Request]]] = {
    f"{PREFIX}/describe": Describe,
    f"{PREFIX}/build": Build,
    f"{PREFIX}/renew": Renew,
    f"{PREFIX}/start": Start,
    f"{PREFIX}/run": Run,
    f"{PREFIX}/put": Put,
    f"{PREFIX}/get": Get,
    f"{PREFIX}/end_processes": EndProcesses,
    f"{PREFIX}/fork": Fork,
    f"{PREFIX}/close": Close,
}
_PATHS_OF = {kind: path for path, kind in PATHS.items()}
FILES: Final = TypeAdapter(dict[str, Content])


class Result(BaseModel):
    """A command that has ended, as it is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exit_code: int
    output: Content
    ending: str
    seconds: float
    dropped: int
    is_shell_lost: bool
    is_machine_lost: bool


def path_of(request: Request) -> str:
    """Return the path that a request is sent to."""
    return _PATHS_OF[type(request)]


def read_request(path: str, body: bytes) -> Request:
    """Read a request. Raises: InvalidInput: it has another form. UnknownName: nothing answers at the path."""
    kind = PATHS.get(path)
    if kind is None:
        raise UnknownName.of("path", "be one of the protocol", path, where="machine server", do="see docs/sandbox.md")
    try:
        return kind.model_validate(parse_json(body, _MAX_PARTS))
    except ValidationError as error:
        first = error.errors()[0]
        got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InvalidInput.of(
            "request", "have the form of the protocol", got, where=path, do="send its fields"
        ) from None
    except (ValueError, InvalidInput) as error:
        raise InvalidInput.of("request", "be a JSON object", str(error), where=path, do="send one") from None


def result_fields(result: CommandResult) -> dict[str, Any]:
    """Return a result as it is sent."""
    names = CommandResult.__dataclass_fields__
    return Result(**{name: getattr(result, name) for name in names}).model_dump(mode="json")


def read_result(fields: Mapping[str, Any]) -> CommandResult:
    """Read a result. Raises: ValueError: it has another form."""
    values = Result.model_validate(fields).model_dump()
    return CommandResult(**{**values, "ending": RunEnding(values["ending"])})


def error_fields(error: Exception) -> dict[str, Any]:
    """Return an error as it is sent; one of another kind is a failure of the server."""
    name = next((name for name, kind in _ERRORS.items() if type(error) is kind), None)
    if name is None:
        name = InvalidInput.__name__ if isinstance(error, InvalidInput) else ToolInfraFailure.__name__
    text = str(error) if isinstance(error, EnvgymError) else f"{type(error).__name__}: {error}"
    return {"error": {"type": name, "message": text}}


def read_error(reply: Mapping[str, Any]) -> EnvgymError | None:
    """Return the error of a reply; None: it has another form."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return None
    return _ERRORS.get(str(error.get("type")), ToolInfraFailure)(str(error.get("message"))[:10_000])


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return a reply as it is sent."""
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode(content: bytes) -> dict[str, Any]:
    """Read a reply. Raises: ValueError: it is no JSON object."""
    value = parse_json(content, _MAX_PARTS)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return dict(value)
