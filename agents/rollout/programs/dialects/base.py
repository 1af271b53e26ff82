"""What the wire formats share: their protocol, and how the options of a request are checked."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

from envgym.agents.rollout.programs.calls import Call, CallReply
from envgym.chats.fields import REMEDY, Json, is_absent
from envgym.core.json_types import JsonObject, JsonValue, well_formed
from envgym.core.messages import Message
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec

T = TypeVar("T")
CONTEXT_FULL: Final = "context_length_exceeded"
"""The code by which clients of OpenAI's formats know a full context."""
P = ParamSpec("P")
REQUEST: Final = "request"
_DO: Final = "correct the request"
Transcripts = Mapping[str, tuple[Message, ...]]
"""Id of a response -> the conversation up to and with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """A call with what its response depends on."""

    call: Call
    num_standing: int = 0
    """First messages that are no part of the conversation that a later request may name."""
    model: str
    """As the program wrote it; the response repeats it."""
    is_streamed: bool = False
    has_usage: bool = True
    """Whether a streamed response ends with the numbers of tokens."""
    has_logprobs: bool = False
    ignored: tuple[str, ...] = ()
    """Names of options that have no effect although the program may expect one."""


class ReplyIds(NamedTuple):
    """What a response is named by."""

    number: str
    """Unique among the responses of a session; hex digits."""
    created: int
    """Seconds since 1970."""


class CallDialect(Protocol):
    """One wire format."""

    @property
    def name(self) -> str:
        """Its name in `agent.program.dialects`."""
        ...

    @property
    def path(self) -> str:
        """Path of its requests, after `/v1`."""
        ...

    @property
    def count_path(self) -> str | None:
        """Path of requests that count the tokens of a conversation; None: the format has none."""
        ...

    @property
    def has_transcripts(self) -> bool:
        """Whether a request may name an earlier response in place of its messages."""
        ...

    def read(self, body: Json, *, refuses: bool, transcripts: Transcripts) -> CallRequest:
        """Read the body of a request.

        Args:
            body: Decoded JSON.
            refuses: Whether an option that would be ignored is refused.
            transcripts: Earlier responses of the session, for formats that name them.

        Raises: InvalidInput: the request cannot be answered, in one sentence.
        """
        ...

    def write(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> JsonObject:
        """Write a response."""
        ...

    def write_events(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> Iterable[bytes]:
        """Write a response as server-sent events."""
        ...

    def write_error(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> JsonObject:
        """Write an error that the libraries of this format read."""
        ...

    def write_error_event(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> bytes:
        """Write an error as an event of a response that has begun."""
        ...

    def response_id(self, ids: ReplyIds) -> str:
        """Return the id of a response."""
        ...


def event(data: JsonValue, name: str | None = None) -> bytes:
    """Write one server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return head + b"data: " + well_formed(text).encode() + b"\n\n"


# ---- the options of a request ----------------------------------------------------------------------------------------


def reading(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a reader of chat data. Raises: InvalidInput: as the reader, with a remedy for programs in place of rows."""
    try:
        return read(*args, **kwargs)
    except InvalidInput as error:
        raise InvalidInput(str(error).replace(f"; {REMEDY}.", f"; {_DO}.")) from None
    except RecursionError:
        raise refused("body", "be nested less deep", "lists or objects beyond the limit") from None


def refused(what: str, must: str, got: object) -> InvalidInput:
    """Return the error of an option that cannot be accepted."""
    return InvalidInput.of(what, must, got, where=REQUEST, do=_DO)


def check_absent(body: Json, names: Iterable[str]) -> None:
    """Check that a request has none of some options, which would change what the model samples.

    Raises: InvalidInput: it has one.
    """
    for name in names:
        if not is_absent(body.get(name)) and body[name] is not False:
            raise InvalidInput.of(name, "not be set", body[name], where=REQUEST, do="leave it out")


def read_max_tokens(body: Json, *names: str) -> int | None:
    """Return the limit of new tokens, at least 1; None: there is none. Raises: InvalidInput: it is out of range."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise refused(name, "be a whole number of at least 1", value)
        return value
    return None


def read_stop(value: object, name: str) -> tuple[str, ...]:
    """Return stop strings. Raises: InvalidInput: they are no texts, or one is empty."""
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise refused(name, "be texts that are not empty", value)
    return tuple(texts)


def read_flag(body: Json, name: str) -> bool:
    """Return an option that is true or false; absent: false. Raises: InvalidInput: it is something else."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise refused(name, "be true or false", value)


def check_refusals(ignored: tuple[str, ...], *, refuses: bool) -> tuple[str, ...]:
    """Return the options that are ignored. Raises: InvalidInput: they are to be refused, and there is one."""
    if refuses and ignored:
        do = "leave it out, or set agent.program.unsupported: ignore"
        raise InvalidInput.of(ignored[0], "not be set", "a value", where=REQUEST, do=do)
    return ignored


def read_model(body: Json) -> str:
    """Return the name of the model. Raises: InvalidInput: it is no text."""
    model = body.get("model", "")
    if not isinstance(model, str):
        raise refused("model", "be text", model)
    return model


def read_tool_choice(body: Json, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """Return the tools that the model is shown: none if the request forbids to call one."""
    return () if body.get("tool_choice") == "none" else tools
