"""An episode that a model plays through an endpoint: what is sent, what is tried again, and where the env is called."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import envgym
from envgym.chats.replies import BadResponse
from envgym.connect.chat_player import (
    ATTEMPTS,
    ChatConversation,
    ChatEndpoint,
    EpisodeCalls,
    ModelRefused,
    play_chat,
)
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.errors import PolicyFailure
from envgym.parsing import parse_action
from envgym.played import EpisodeResult, Opening, PlayedEpisode
from tests.agents.policies.fake_server import Pauses, Server, running
from tests.support.toys import Counter

COUNTER, SUMS = "tests.support.toys:Counter", "tests.support.toys:Sums"


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def completion(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


def listed(*calls: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return calls of (id, name, arguments as text) in the form of the protocol."""
    return [{"id": key, "type": "function", "function": {"name": name, "arguments": args}} for key, name, args in calls]


def reply_of(action: str, number: int) -> dict[str, Any]:
    """Return the reply of a model that plays an action."""
    read = action if isinstance(action, Action) else parse_action(action)
    calls = [(f"c{number}.{i}", call.name, json.dumps(dict(call.arguments))) for i, call in enumerate(read.tool_calls)]
    return completion(content=read.content or None, refusal=None, **({"tool_calls": listed(*calls)} if calls else {}))


def play(server: Server, episode: PlayedEpisode, *, needs_thread: bool = False, **where: Any) -> ChatConversation:
    """Play an episode to its end, and close its env."""

    async def run() -> ChatConversation:
        calls, endpoint = EpisodeCalls(needs_thread=needs_thread), ChatEndpoint(server.url, "secret", sleep=nap)
        try:
            conversation = ChatConversation(await calls.run(lambda: episode.open(**where)))
            await play_chat(episode, conversation, endpoint, calls, model="policy")
        finally:
            calls.end(episode.close)
            await endpoint.close()
        return conversation

    return asyncio.run(run())


async def nap(seconds: float) -> None:
    """Wait for nothing."""


def local(env_id: str, **where: Any) -> EpisodeResult:
    episode = PlayedEpisode(envgym.make(env_id))
    episode.open(**where)
    while episode.result().ending is None:
        episode.act(episode.oracle())
    episode.close()
    return episode.result()


@pytest.mark.parametrize("env_id", [COUNTER, SUMS, "puzzles/guess_number-v0", "tools/office-v0", "math/arithmetic-v0"])
def test_a_model_that_plays_the_oracle_is_paid_as_in_local_play(server: Server, env_id: str) -> None:
    where: dict[str, Any] = {"split": "test", "index": 1, "seed": 3}
    episode = PlayedEpisode(envgym.make(env_id))
    server.script = [lambda body: reply_of(episode.oracle(), len(body["messages"]))]
    conversation = play(server, episode, **where)
    assert episode.result() == local(env_id, **where)
    for index, (body, headers) in enumerate(zip(server.bodies, server.headers, strict=True)):
        assert (body["model"], headers["Authorization"]) == ("policy", "Bearer secret")
        assert sum(message["role"] == "assistant" for message in body["messages"]) == index
        assert body["messages"] == conversation.messages[: len(body["messages"])], "a conversation only grows"
    keys = [headers["Idempotency-Key"] for headers in server.headers]
    assert len(set(keys)) == len(keys) == episode.result().num_turns


def opening_of(env_id: str = COUNTER) -> Opening:
    episode = PlayedEpisode(envgym.make(env_id))
    try:
        return episode.open(split="train", index=0, seed=0)
    finally:
        episode.close()


def test_a_reply_goes_back_as_it_came() -> None:
    conversation = ChatConversation(opening_of())
    calls = listed(("c1", "add", '{ "amount":  3}'))
    action = conversation.take(completion(content=None, reasoning_content="hm", tool_calls=calls, audio=None))
    assert action.tool_calls == (ToolCall(name="add", arguments={"amount": 3}, id="c1"),)
    assert conversation.messages[-1] == {"role": "assistant", "reasoning_content": "hm", "tool_calls": calls}
    conversation.take(completion(content=None))
    assert conversation.messages[-1] == {"role": "assistant", "content": ""}


def test_every_call_is_answered_once_and_right_after_the_reply() -> None:
    conversation = ChatConversation(opening_of())
    calls = listed(("c1", "add", "{}"), ("c2", "add", "{broken"), ("c3", "add", "{}"))
    action = conversation.take(completion(tool_calls=calls))
    assert len(action.malformed) == 1
    begun = len(conversation.messages)
    conversation.answer(
        [
            Message(role=Role.TOOL, content="one", tool_call_id="c1"),
            Message(role=Role.USER, content="by the way"),
            Message(role=Role.TOOL, content="unreadable", is_error=True),
            Message(role=Role.TOOL, content="of a call in the text", tool_call_id="call_0"),
        ]
    )
    assert conversation.messages[begun:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "unreadable"},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
        {"role": "user", "content": "by the way"},
        {"role": "user", "content": "of a call in the text"},
    ]


@pytest.mark.parametrize(
    "given", [("c1", "c1"), ("", ""), (7, 7), (None, "c1"), ({"n": 1}, ["c1"]), ("call_2_1", None)]
)
def test_calls_without_ids_of_their_own_get_their_results(given: tuple[object, object]) -> None:
    episode = PlayedEpisode(envgym.make(COUNTER))
    conversation = ChatConversation(episode.open(index=0, seed=0))
    assert len(conversation.messages) == 2
    calls = listed(("", "add", '{"amount": 1}'), ("", "add", '{"amount": 2}'))
    calls = [{**call, "id": call_id} for call, call_id in zip(calls, given, strict=True)]
    conversation.answer(episode.act(conversation.take(completion(tool_calls=calls))).messages)
    episode.close()
    asked, *results = conversation.messages[2:]
    ids = [call["id"] for call in asked["tool_calls"]]
    assert [call["function"] for call in asked["tool_calls"]] == [call["function"] for call in calls]
    assert len(set(ids)) == 2
    assert all(ids)
    assert [result["tool_call_id"] for result in results] == ids
    assert [result["content"].partition(";")[0][-1] for result in results] == ["1", "3"]


def test_a_call_in_the_text_is_played_and_answered_as_text(server: Server) -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"amount": 1}}\n</tool_call>'
    episode = PlayedEpisode(envgym.make(COUNTER, max_turns=2))
    server.script = [completion(content=text)]
    conversation = play(server, episode, index=0, seed=0)
    assert episode.result().ending == "TRUNCATED_TURNS"
    assert [message["role"] for message in conversation.messages[2:]] == ["assistant", "user"] * 2


@pytest.mark.parametrize("finish", ["length", "model_context_window_exceeded"])
def test_a_reply_that_is_cut_is_not_played(server: Server, finish: str) -> None:
    episode = PlayedEpisode(envgym.make(SUMS))
    cut = completion(content="1")
    cut["choices"][0]["finish_reason"] = finish
    server.script = [cut]
    play(server, episode, index=0, seed=0)
    assert (episode.result().ending, episode.result().num_turns) == (None, 0)


def test_another_system_prompt_takes_the_place_of_that_of_the_env() -> None:
    opening = opening_of()
    first, *others = ChatConversation(opening, system_prompt="Count.").request("m")["messages"]
    assert first == {"role": "system", "content": "Count."}
    assert others == ChatConversation(opening).messages[1:]


def test_an_env_without_tools_offers_none() -> None:
    assert "tools" not in ChatConversation(opening_of(SUMS)).request("m")


# ---- failures of the model -------------------------------------------------------------------------------------------


def ask(server: Server, sleep: Any = nap) -> object:
    async def run() -> object:
        endpoint = ChatEndpoint(server.url, "secret", sleep=sleep)
        try:
            return await endpoint.complete({"model": "m", "messages": []})
        finally:
            await endpoint.close()

    return asyncio.run(run())


def test_a_failure_that_may_pass_is_tried_again_as_the_same_request(server: Server) -> None:
    passing = [(503, {"error": "busy"}, {}), (429, "slow down", {}), (200, {"error": "overloaded"}, {}), "no JSON"]
    server.script = [*passing, completion(content="hi")]
    assert ask(server) == completion(content="hi")
    assert len({headers["Idempotency-Key"] for headers in server.headers}) == 1
    assert len(server.bodies) == ATTEMPTS == 5


def test_a_pause_is_that_which_the_endpoint_asks_for(server: Server) -> None:
    asked = ["3", "1e9", "soon", "nan"]
    server.script = [*((429, "slow down", {"Retry-After": text}) for text in asked), completion(content="hi")]
    pauses = Pauses()
    ask(server, pauses)
    assert pauses.seen == [3.0, 60.0, 2.0, 4.0]


def test_a_failure_that_stays_is_one_of_the_policy(server: Server) -> None:
    server.script = [(503, {"error": "busy"}, {})]
    with pytest.raises(PolicyFailure, match=f"did not answer in {ATTEMPTS} attempts; the last error: 503 .*busy"):
        ask(server)
    assert len(server.bodies) == ATTEMPTS


@pytest.mark.parametrize(
    "status, message, is_full",
    [
        (400, "rollout stopped: max_turns", False),
        (409, "rollout concluded", False),
        (401, "unauthorized", False),
        (400, "Prompt length (300) exceeds maximum context length (256)", True),
        (400, "upstream 400: this model's maximum context length is 4096 tokens", True),
        (500, "the request exceeds the available context size", True),
        (200, "this model's maximum context length is 4096 tokens", True),
    ],
)
def test_a_refusal_is_not_tried_again(server: Server, status: int, message: str, is_full: bool) -> None:
    server.script = [(status, {"error": {"message": message}}, {})]
    with pytest.raises(ModelRefused, match=f"refused the request: {status}") as caught:
        ask(server)
    assert caught.value.is_context_full is is_full
    assert len(server.bodies) == 1


def test_a_model_that_cannot_be_reached_is_a_failure_of_the_policy(server: Server) -> None:
    async def run() -> None:
        endpoint = ChatEndpoint("http://127.0.0.1:9/v1", "secret", sleep=nap)
        try:
            await endpoint.complete({})
        finally:
            await endpoint.close()

    with pytest.raises(PolicyFailure, match="did not answer"):
        asyncio.run(run())


def test_an_answer_without_a_message_ends_the_episode(server: Server) -> None:
    episode = PlayedEpisode(envgym.make(SUMS))
    server.script = [{"choices": []}]
    with pytest.raises(BadResponse, match="holds no choice"):
        play(server, episode, index=0, seed=0)


# ---- threads ---------------------------------------------------------------------------------------------------------


class Watched(Counter):
    """Notes the threads that call it."""

    threads: list[int] = []  # noqa: RUF012  # of the test
    closed = threading.Event()

    def begin(self, task: envgym.Task) -> str:
        self.threads.append(threading.get_ident())
        return super().begin(task)

    def respond(self, action: Action) -> envgym.Reply:
        self.threads.append(threading.get_ident())
        return envgym.Reply(terminated=True)

    def close(self) -> None:
        self.threads.append(threading.get_ident())
        self.closed.set()


@pytest.mark.parametrize("needs_thread", [False, True])
def test_all_calls_of_an_env_that_may_wait_are_made_in_one_thread(server: Server, needs_thread: bool) -> None:
    Watched.threads.clear()
    Watched.closed.clear()
    server.script = [completion(content="DONE")]
    play(server, PlayedEpisode(envgym.make(f"{__name__}:Watched")), needs_thread=needs_thread, index=0, seed=0)
    assert Watched.closed.wait(60)
    (thread,) = set(Watched.threads)
    assert len(Watched.threads) == 3
    assert (thread == threading.get_ident()) is not needs_thread
