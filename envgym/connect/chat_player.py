"""An episode that a model plays through an endpoint of chat completions, for a program that has the model's address.

A reply goes back as it came: a server that recognises a conversation by its messages then finds it again.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from secrets import token_hex
from typing import Any, Final, TypeVar

from envgym.chats.fields import Json
from envgym.chats.openai import listed_tools, messages_to_wire
from envgym.chats.replies import field_of, first_choice, is_context_full, is_cut, read_message
from envgym.core.messages import Action, Message, Role
from envgym.errors import PolicyFailure
from envgym.played import Opening, PlayedEpisode
from envgym.runtime.backoff import PASSING, Backoff, read_retry_after
from envgym.runtime.event_loop import DaemonThread
from envgym.runtime.http.client import ConnectionFailed
from envgym.runtime.http.connections import HttpConnections

T = TypeVar("T")
ATTEMPTS: Final = 5
"""Of one call of the model."""
ANSWER_S: Final = 24 * 3600.0
"""Longest wait for one answer: the caller's own limits end an episode long before."""
_BACKOFF: Final = Backoff(0.5, 8.0)
_LONGEST_REQUESTED_S: Final = 60.0
"""Longest pause that is made because the endpoint asks for it."""
_SHOWN: Final = 300


class ChatConversation:
    """The messages of one episode in the form of OpenAI's chat completions."""

    def __init__(self, opening: Opening, *, system_prompt: str | None = None) -> None:
        """Begin with the first messages; `system_prompt` takes the place of the system message."""
        first = opening.messages
        if system_prompt is not None:
            spoken = [message for message in first if message.role is not Role.SYSTEM]
            first = (Message(role=Role.SYSTEM, content=system_prompt), *spoken)
        self.messages: list[Json] = messages_to_wire(first)
        self._tools = listed_tools(opening.tools)
        self._call_ids: list[str] = []
        self._unread_ids: list[str] = []

    def request(self, model: str) -> Json:
        """Return the body of the next request."""
        body: Json = {"model": model, "messages": self.messages}
        return {**body, "tools": self._tools} if self._tools else body

    def take(self, completion: object) -> Action:
        """Add the reply of the model, and return it as an action. Raises: BadResponse: the answer holds no message."""
        message: Mapping[str, Any] = field_of(first_choice(completion), "message", dict, "the choice")
        fields = {key: value for key, value in message.items() if value is not None}
        calls = fields.get("tool_calls") or []
        if calls and isinstance(calls, list) and all(isinstance(call, dict) for call in calls):  # else not readable
            fields["tool_calls"] = calls = _with_own_ids(calls, len(self.messages))
        action = read_message(fields, has_tools=bool(self._tools))
        if not calls:
            fields.setdefault("content", "")
        self.messages.append({**fields, "role": Role.ASSISTANT.value})
        read = {call.id for call in action.tool_calls}
        self._call_ids = [call["id"] for call in calls]
        self._unread_ids = [call_id for call_id in self._call_ids if call_id not in read]
        return action

    def answer(self, replies: Sequence[Message]) -> None:
        """Add what the env shows. Each call of the reply gets one answer, right after the reply, as services demand."""
        results: dict[str, Json] = {}
        others: list[Json] = []
        unread = iter(self._unread_ids)
        for message, wire in zip(replies, messages_to_wire(replies), strict=True):
            call_id = message.tool_call_id
            if message.role is Role.TOOL and call_id is None:
                call_id = next(unread, None)
            if call_id in self._call_ids and call_id not in results:
                results[call_id] = {"role": Role.TOOL.value, "tool_call_id": call_id, "content": wire["content"]}
            elif message.role is Role.TOOL:
                others.append({"role": Role.USER.value, "content": wire["content"]})
            else:
                others.append(wire)
        nothing = {"role": Role.TOOL.value, "content": ""}
        answered = [results.get(call_id, {**nothing, "tool_call_id": call_id}) for call_id in self._call_ids]
        self.messages += [*answered, *others]


def _with_own_ids(calls: Sequence[Json], number: int) -> list[Json]:
    """Return the calls of message `number`; one whose id is missing, no text, or that of another call gets its own."""
    seen: set[str] = set()
    read: list[Json] = []
    for index, call in enumerate(calls):
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id or call_id in seen:
            call_id = f"call_{number}_{index}"
            while call_id in seen:
                call_id += "_"
            call = {**call, "id": call_id}
        seen.add(call_id)
        read.append(call)
    return read


class ModelRefused(PolicyFailure):
    """The endpoint refused a request in a way that another attempt would not change."""

    def __init__(self, status: int, content: object) -> None:
        """Take the status and the body of the answer."""
        self.is_context_full = is_context_full(status, content, 0)
        super().__init__(f"the model refused the request: {status} {str(content)[:_SHOWN]}")


class ChatEndpoint:
    """An endpoint whose failures that may pass are tried again, as the same logical request."""

    def __init__(
        self, url: str, token: str, *, sleep: Callable[[float], Any] = asyncio.sleep
    ) -> None:  # any awaitable of the sleep
        """Prepare to ask `url`, up to and with the version."""
        self._connections = HttpConnections(url, token=token)
        self._sleep = sleep

    async def complete(self, body: Json) -> object:
        """Return the answer to a request.

        Raises: ModelRefused: the request is refused. PolicyFailure: no answer came in several attempts.
        """
        headers = {"Idempotency-Key": token_hex(16)}
        reason = ""
        requested_s: float | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                own_s = _BACKOFF.pause_s(attempt - 1)
                await self._sleep(own_s if requested_s is None else min(requested_s, _LONGEST_REQUESTED_S))
            requested_s = None
            try:
                answer = await self._connections.ask(
                    "POST", "/chat/completions", body, timeout_s=ANSWER_S, headers=headers
                )
                content = json.loads(answer.body)
            except ConnectionFailed as error:
                reason = str(error)
                continue
            except ValueError:
                content = answer.body.decode(errors="replace")
            is_ok = answer.status == HTTPStatus.OK
            if is_ok and isinstance(content, dict) and not content.get("error"):
                return content
            refusal = ModelRefused(answer.status, content)
            if refusal.is_context_full or not (is_ok or answer.status in PASSING):
                raise refusal
            requested_s = read_retry_after(answer.headers.get("retry-after"))
            reason = f"{answer.status} {str(content)[:_SHOWN]}"
        raise PolicyFailure(f"the model did not answer in {ATTEMPTS} attempts; the last error: {reason}")

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()


class EpisodeCalls:
    """Calls the methods of an episode: in the event loop, or, where they may wait, in a thread of their own."""

    def __init__(self, *, needs_thread: bool) -> None:
        self._thread = DaemonThread("played-episode") if needs_thread else None
        self.was_left = False
        """Whether the caller was cancelled while a call ran, whose result is then lost."""

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call, and return its result."""
        if self._thread is None:
            return call()
        try:
            return await asyncio.wrap_future(self._thread.begin(call))
        except asyncio.CancelledError:
            self.was_left = True
            raise

    def end(self, last: Callable[[], object]) -> None:
        """Make the last call after those that still run, and wait for none of them."""
        if self._thread is None:
            last()
            return
        self._thread.begin(last)
        self._thread.end()


async def play_chat(
    episode: PlayedEpisode, conversation: ChatConversation, endpoint: ChatEndpoint, calls: EpisodeCalls, *, model: str
) -> bool:
    """Play the episode to its end, or until a reply is cut, which is not played.

    Returns: whether a reply was cut.

    Raises: ModelRefused, PolicyFailure: as `ChatEndpoint.complete`. BadResponse: an answer holds no message.
    """
    while episode.result().ending is None:
        completion = await endpoint.complete(conversation.request(model))
        if is_cut(first_choice(completion)):
            return True
        action = conversation.take(completion)
        turn = await calls.run(partial(episode.act, action))
        conversation.answer(turn.messages)
    return False
