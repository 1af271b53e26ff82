"""Calls over HTTP become the rows of the native loop, in every wire format; habits of real clients become rows too."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from envgym import Message, Role
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.dialects.messages import MessagesDialect
from envgym.agents.rollout.programs.dialects.responses import ResponsesDialect
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.chats.anthropic import read_anthropic, write_blocks
from envgym.chats.openai import listed_tools, messages_to_wire, read_openai
from envgym.chats.responses import read_items, write_items
from envgym.core.tree import Rewrite
from envgym.core.turns import Scored
from envgym.tools import ToolSpec
from tests.agents.rollout.programs.playing import LOOK, Client, play_env, sample
from tests.agents.rollout.programs.test_program_rows import native, user
from tests.support.env_server import wait_until
from tests.support.parrots import CharRenderer, Parrot, char_agent, parrot_job, show
from tests.support.program_calls import RunningHost, post, running_host, sdk

Send = Callable[[OpenAI, RunningHost, ProgramSession, Sequence[Message], Sequence[ToolSpec]], Message]


def by_chat(
    client: OpenAI, server: RunningHost, session: ProgramSession, messages: Any, tools: Sequence[ToolSpec]
) -> Message:
    wire: Any = messages_to_wire(messages)
    specs: Any = listed_tools(tools)
    completion = client.chat.completions.create(model="m", messages=wire, tools=specs, temperature=0.2, seed=1)
    return read_openai(completion.choices[0].message.to_dict(), where="reply")


def by_stream(
    client: OpenAI, server: RunningHost, session: ProgramSession, messages: Any, tools: Sequence[ToolSpec]
) -> Message:
    wire: Any = messages_to_wire(messages)
    with client.chat.completions.stream(model="m", messages=wire, tools=listed_tools(tools)) as stream:
        return read_openai(stream.get_final_completion().choices[0].message.to_dict(), where="reply")


def by_responses(
    client: OpenAI, server: RunningHost, session: ProgramSession, messages: Any, tools: Sequence[ToolSpec]
) -> Message:
    items: Any = [item for message in messages for item in write_items(unnamed(message))]
    functions: Any = [{"type": "function", **tool["function"]} for tool in listed_tools(tools)]
    response = client.responses.create(model="m", input=items, tools=functions)
    (message,) = read_items([item.to_dict() for item in response.output], where="reply")
    return message


def by_anthropic(
    client: OpenAI, server: RunningHost, session: ProgramSession, messages: Any, tools: Sequence[ToolSpec]
) -> Message:
    entries = [
        {"role": "user" if message.role is Role.TOOL else message.role.value, "content": write_blocks(message)}
        for message in messages
        if message.role is not Role.SYSTEM
    ]
    system = [{"type": "text", "text": message.content} for message in messages if message.role is Role.SYSTEM]
    specs = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]
    body = {"model": "m", "max_tokens": 64_000, "messages": entries, "system": system, "tools": specs}
    data = json.loads(post(server, session, body, "/v1/messages").content)
    (message,) = read_anthropic({"role": "assistant", "content": data["content"]}, where="reply")
    return message


def unnamed(message: Message) -> Message:
    return Message(
        role=message.role,
        parts=message.parts,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
    )


class HttpClient(Client):
    """Calls the policy over HTTP."""

    send: Send
    server: RunningHost
    session: ProgramSession
    client: OpenAI

    def say(self, messages: Sequence[Message], text: str | None = None, *, tools: tuple[ToolSpec, ...] = ()) -> Message:
        reply = self.send(self.client, self.server, self.session, messages, tools)
        self.server.thread.run(asyncio.sleep(0))  # the host has recorded the turn by then
        return reply


@contextmanager
def http_client(server: RunningHost, client: HttpClient, send: Send) -> Iterator[HttpClient]:
    async def generate(request: GenerateRequest) -> Generation:
        return client.policy(request)

    client.send, client.server = send, server
    client.session = server.begin(client.conversations, generate)
    with sdk(server, client.session) as client.client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[RunningHost]:
    with running_host([ChatDialect(), ResponsesDialect(), MessagesDialect()]) as running:
        yield running


@pytest.mark.parametrize("send", [by_chat, by_stream, by_responses, by_anthropic])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_native_loop_over_http_gives_its_rows(server: RunningHost, send: Send, seed: int) -> None:
    agent = char_agent(CharRenderer(lists_tools=True))
    job = parrot_job(lambda: Parrot(system_prompt="S"), seed=seed)
    with http_client(server, HttpClient(agent, job), send) as client:
        play_env(client, max_turns=100)
        server.end(client.session)
    program, other = client.episode(Scored(value=0.0)), native(agent, seed, sample)
    assert program.rows == other.rows
    assert program.reward == other.reward
    assert [turn.segments for turn in program.turns] == [turn.segments for turn in other.turns]


def test_habits_of_clients_are_rows_of_one_episode(server: RunningHost) -> None:
    with http_client(server, HttpClient(), by_chat) as client:
        first = [user("Q"), client.say([user("Q")])]
        with ThreadPoolExecutor(2) as pool:  # two calls at once on one turn
            sides = [pool.submit(client.say, [*first, user(text)]) for text in ("left", "right")]
            left, _ = (side.result() for side in sides)
        client.say([user("Q")], tools=(LOOK,))  # a sub-agent with other tools
        client.say([user("summary of all"), user("more")])  # a compaction
        client.say([*first, user("left"), left, user("more")])
        wait_until(lambda: len(client.conversations.turns) == 6)
        server.end(client.session)
    trajectory = client.episode()
    rewrites = [row.rewrite for row in trajectory.rows]
    assert (len(rewrites), rewrites.count(Rewrite.CONVERSATION)) == (4, 3)
    trained = sum(sum(row.loss_mask) for row in trajectory.rows)
    generations = [turn.state.generation for turn in client.conversations.turns]
    assert trained == sum(len(generation.token_ids) for generation in generations if generation is not None)
    main = "".join(show(trajectory.rows[-1].token_ids))
    assert main.startswith("<user>Q<end><assistant>")
    assert main.count("<assistant>") == 3
