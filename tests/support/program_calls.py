"""A host of programs in a thread, whose matcher and policy do what a test says."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
from openai import OpenAI

from envgym.agents.loop.state import FailureEvent
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.programs.calls import Call, CallRefused, CallReply, RefusalKind, ReplyFinish
from envgym.agents.rollout.programs.dialects.base import CallDialect
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.host import ProgramHost
from envgym.agents.rollout.programs.sessions import ConversationMatcher, ProgramSession
from envgym.core.messages import Message, Role, ToolCall
from envgym.runtime.event_loop import LoopThread

PATIENCE_S = 30.0
TLS = ssl.create_default_context()
"""Made once: it takes longer than a request."""

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
    }
]


@dataclass(slots=True, eq=False)
class FakeTurn:
    call: Call
    request: GenerateRequest


@dataclass(slots=True)
class FakeMatcher:
    """Answers with the words of `respond`, and keeps what was asked, delivered and dropped."""

    respond: Callable[[Call], Message] = lambda call: Message(role=Role.ASSISTANT, content=f"re: {last_text(call)}")
    turns: int = 64
    refusal: CallRefused | None = None
    calls: list[Call] = field(default_factory=list)
    recorded: list[Call] = field(default_factory=list)
    lost: list[Call] = field(default_factory=list)
    failures: list[FailureEvent] = field(default_factory=list)
    pending: list[FakeTurn] = field(default_factory=list)

    def ask(self, call: Call) -> FakeTurn | CallRefused:
        if self.failures:
            return CallRefused(kind=RefusalKind.CLOSED, reason="over")
        if self.refusal is not None:
            return self.refusal
        if len(self.pending) + len(self.recorded) >= self.turns:
            return CallRefused(kind=RefusalKind.TURN_LIMIT, reason=f"All {self.turns} turns of the episode are used.")
        self.calls.append(call)
        request = GenerateRequest(token_ids=(len(self.calls),), sampling=Sampling(), seed=len(self.calls))
        self.pending.append(FakeTurn(call, request))
        return self.pending[-1]

    def answered(self, turn: FakeTurn, generation: Generation, seconds: float = 0.0) -> CallReply | CallRefused:
        message = self.respond(turn.call)
        finish = ReplyFinish.TOOL_CALLS if message.tool_calls else ReplyFinish.STOP
        num_tokens = len(generation.token_ids)
        return CallReply(message=message, finish=finish, prompt_tokens=5, completion_tokens=num_tokens)

    def failed(self, turn: FakeTurn, failure: FailureEvent) -> CallRefused:
        self.failures.append(failure)
        return CallRefused(kind=RefusalKind.POLICY_FAILED, reason=f"The model failed: {failure.reason}.")

    def delivered(self, turn: FakeTurn) -> None:
        self.pending.remove(turn)
        self.recorded.append(turn.call)

    def dropped(self, turn: FakeTurn) -> None:
        self.pending.remove(turn)
        self.lost.append(turn.call)


def last_text(call: Call) -> str:
    return call.messages[-1].content


def calling(name: str, *arguments: dict[str, str]) -> Message:
    calls = tuple(ToolCall(name=name, arguments=item, id=f"call_{index}") for index, item in enumerate(arguments))
    return Message(role=Role.ASSISTANT, tool_calls=calls)


def generation_of(request: GenerateRequest) -> Generation:
    return Generation(
        token_ids=(1, 2),
        behavior_logprobs=(-0.5, -0.5),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )


async def generate_at_once(request: GenerateRequest) -> Generation:
    return generation_of(request)


class Gate:
    """A policy that samples only when the test opens it."""

    def __init__(self) -> None:
        self._opened: asyncio.Future[None] | None = None
        self._is_open = False
        self.num_waiting = 0
        self.num_cancelled = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.num_waiting += 1
        try:
            if not self._is_open:
                self._opened = self._opened or asyncio.get_running_loop().create_future()
                await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_waiting -= 1
        return generation_of(request)

    def open(self) -> None:
        self._is_open = True
        if (opened := self._opened) is not None:
            opened.get_loop().call_soon_threadsafe(opened.set_result, None)


@dataclass(slots=True)
class RunningHost:
    """A host that answers."""

    host: ProgramHost
    thread: LoopThread

    def begin(
        self,
        matcher: ConversationMatcher[Any],
        generate: Callable[[GenerateRequest], Awaitable[Generation]] = generate_at_once,
    ) -> ProgramSession:
        async def begin() -> ProgramSession:
            session = ProgramSession(matcher, generate)
            self.host.begin(session)
            return session

        return self.thread.run(begin())

    def end(self, session: ProgramSession) -> None:
        self.thread.run(self.host.end(session))

    def url(self, session: ProgramSession) -> str:
        return self.host.url_of(session)


@contextmanager
def running_host(dialects: Sequence[CallDialect] = (ChatDialect(),), *, refuses: bool = False) -> Iterator[RunningHost]:
    thread = LoopThread("program-host")
    host = ProgramHost(dialects, refuses=refuses)
    thread.run(host.listen())
    try:
        yield RunningHost(host, thread)
    finally:
        thread.close(host.close())


# ---- requests over HTTP ------------------------------------------------------------------------------------------


@contextmanager
def sdk(server: RunningHost, session: ProgramSession, *, retries: int = 0, **options: Any) -> Iterator[OpenAI]:
    settings = {"base_url": f"{server.url(session)}/v1", "api_key": "unused", "timeout": PATIENCE_S, **options}
    with OpenAI(max_retries=retries, http_client=httpx2.Client(verify=TLS, trust_env=False), **settings) as client:
        yield client


def post(
    server: RunningHost, session: ProgramSession, body: object, path: str = "/v1/chat/completions", **headers: str
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    with httpx.Client(verify=TLS, trust_env=False, timeout=PATIENCE_S) as client:
        return client.post(server.url(session) + path, content=content, headers=names)


class BrokenOnce(httpx2.BaseTransport):
    """Loses the first response after it was received."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner, self._is_broken = inner, False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        if self._is_broken:
            return response
        self._is_broken = True
        response.read()
        response.close()
        raise httpx2.ReadError("the connection broke", request=request)

    def close(self) -> None:
        self._inner.close()


def say(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}
