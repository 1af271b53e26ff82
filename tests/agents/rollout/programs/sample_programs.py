"""Programs that tests run by their import path."""

import asyncio
import threading
from contextlib import suppress

import httpx

from envgym import Message, Role
from envgym.agents.rollout.programs.sessions import CallFailed
from envgym.agents.rollout.programs.task import ProgramTask

LAST_TEXTS: list[str] = []
HELD, ASKED = threading.Event(), threading.Event()
"""What `hold` waits for, and sets when it begins to wait."""


def play(task: ProgramTask) -> str:
    """Call the model, and the tools that it calls, until it answers in text."""
    messages = list(task.messages)
    while True:
        message = task.chat(messages).message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            content = task.call(call.name, **call.arguments)
            messages.append(Message(role=Role.TOOL, content=content, tool_call_id=call.id))


def play_all(task: ProgramTask) -> str:
    """Do as `play`, with all calls of a reply in one turn of the env."""
    messages = list(task.messages)
    while True:
        message = task.chat(messages).message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        messages += task.call_all(message.tool_calls)


async def play_all_in_a_coroutine(task: ProgramTask) -> str:
    messages = list(task.messages)
    while (message := (await task.achat(messages)).message).tool_calls:
        messages += [message, *await task.acall_all(message.tool_calls)]
    return message.content


def ask_in_every_format(task: ProgramTask) -> str:
    """Call the model once in each wire format, and return the replies."""
    user = [{"role": "user", "content": "Q"}]
    bodies: dict[str, dict[str, object]] = {
        "/chat/completions": {"messages": user},
        "/responses": {"input": user},
        "/messages": {"messages": user, "max_tokens": 100},
        "/messages/count_tokens": {"messages": user},
    }
    with httpx.Client(base_url=task.base_url, trust_env=False) as client:
        replies = [client.post(path, json={"model": task.model} | body) for path, body in bodies.items()]
    LAST_TEXTS[:] = [f"{reply.status_code} {reply.json()}" for reply in replies]
    return "done"


def ask_for_json(task: ProgramTask) -> str:
    """Call the model twice with an option that has no effect."""
    body = {"messages": [{"role": "user", "content": "Q"}], "response_format": {"type": "json_object"}}
    with httpx.Client(base_url=task.base_url, trust_env=False) as client:
        for _ in range(2):
            client.post("/chat/completions", json=body).raise_for_status()
    return "done"


def ask_a_judge(task: ProgramTask) -> str:
    """Let the model answer, and another model judge the answer in each wire format."""
    answer = task.chat(task.messages).message.content
    said = [{"role": "user", "content": answer}]
    bodies: dict[str, dict[str, object]] = {
        "/chat/completions": {"messages": said, "n": 2, "logit_bias": {"1": 1}},  # the policy would refuse it
        "/responses": {"input": said, "stream": True},
        "/messages": {"messages": said, "max_tokens": 5},
        "/models/judge": {},
    }
    with httpx.Client(base_url=task.base_url, trust_env=False, headers={"anthropic-version": "1"}) as client:
        replies = [
            client.post(path, json={"model": "judge"} | body) if body else client.get(path)
            for path, body in bodies.items()
        ]
    LAST_TEXTS[:] = [f"{reply.status_code} {reply.text}" for reply in replies]
    return answer


def rewrite(task: ProgramTask) -> str:
    """Send the first reply back in other words."""
    task.chat(task.messages)
    history = [Message(role=Role.ASSISTANT, content="Calling tools: one"), Message(role=Role.USER, content="more")]
    return task.chat([*task.messages, *history]).message.content


def ask_once(task: ProgramTask) -> None:
    task.chat(task.messages)


def score(task: ProgramTask) -> object:
    text = task.chat(task.messages).message.content
    return {"answer": text, "reward": len(text), "components": {"length": len(text)}}


def score_without_number(task: ProgramTask) -> object:
    ask_once(task)
    return float("nan")


def score_without_answer(task: ProgramTask) -> float:
    ask_once(task)
    return 0.75


def post(task: ProgramTask) -> None:
    ask_once(task)
    task.post_reward(0.5)


def crash(task: ProgramTask) -> None:
    ask_once(task)
    raise ValueError("the program is wrong")


def crash_at_once(task: ProgramTask) -> None:
    raise ValueError("the program is wrong")


def say_nothing(task: ProgramTask) -> str:
    return "42"


def never_stop(task: ProgramTask) -> str:
    """Call until the model is polite."""
    for _ in range(100):
        text = task.chat(task.messages).message.content
        if "finish" in text:
            return "bye"
    return "never"


def score_at_the_limit(task: ProgramTask) -> float | None:
    return 2.0 if never_stop(task) == "bye" else None


def never_stop_without_answer(task: ProgramTask) -> None:
    never_stop(task)


def fill(task: ProgramTask) -> None:
    """Call with ever more text, until that is refused."""
    messages = list(task.messages)
    while True:
        messages += [task.chat(messages).message, Message(role=Role.USER, content="more " * 40)]


def fill_and_score(task: ProgramTask) -> float:
    with suppress(CallFailed):
        fill(task)
    return 0.75


def fill_at_once(task: ProgramTask) -> None:
    task.chat([Message(role=Role.USER, content="more " * 1000)])


def hold(task: ProgramTask) -> None:
    ask_once(task)
    ASKED.set()
    HELD.wait(60)


def hold_at_once(task: ProgramTask) -> None:
    ASKED.set()
    HELD.wait(60)


def post_and_hold(task: ProgramTask) -> None:
    ask_once(task)
    task.post_reward(0.5)
    ASKED.set()
    HELD.wait(60)


def outlive_the_env(task: ProgramTask) -> str:
    ask_once(task)
    task.call("leave")
    LAST_TEXTS.append(task.call("leave"))
    return "too late"


def ignore_the_env(task: ProgramTask) -> str:
    ask_once(task)
    with suppress(Exception):
        task.call("look", at="cat")
    return "fine"


def call_once(task: ProgramTask) -> str:
    """Call a tool of the env after the model."""
    ask_once(task)
    return task.call("look", at="cat")


def call_late(task: ProgramTask) -> str:
    """Leave a thread that calls a tool after the end."""

    def call() -> None:
        HELD.wait(60)
        try:
            task.call("look", at="cat")
        except CallFailed as error:
            LAST_TEXTS.append(str(error))
        ASKED.set()

    ask_once(task)
    threading.Thread(target=call, daemon=True).start()
    return "bye"


def note_the_tools(task: ProgramTask) -> None:
    LAST_TEXTS[:] = [spec.name for spec in task.tools] + [str(task.mcp_url)]
    task.call("look", at="cat")


async def play_by_mcp(task: ProgramTask) -> str:
    """Ask the env's MCP server for its tools, call one well and one badly, and note what they show."""
    from mcp import Client

    assert task.mcp_url is not None
    await task.achat(task.messages)
    async with Client(task.mcp_url) as client:
        tools = (await client.list_tools()).tools
        replies = [await client.call_tool("look", arguments) for arguments in ({"at": "cat"}, {"near": "cat"})]
    LAST_TEXTS[:] = [f"{tool.name}: {tool.description} {tool.input_schema['required']}" for tool in tools]
    LAST_TEXTS.extend(f"{reply.is_error} {reply.content[0].model_dump()['text']}" for reply in replies)
    return "done"


async def leave_a_call(task: ProgramTask) -> str:
    """Go on while a tool still runs, and answer when it has ended."""
    await task.achat(task.messages)
    call = asyncio.ensure_future(task.acall("look", at="cat"))
    await asyncio.to_thread(ASKED.wait, 60)
    call.cancel()
    HELD.set()
    return "bye"


async def help_out(task: ProgramTask) -> str:
    """Let two helpers answer, each in a conversation of its own."""

    async def ask(text: str) -> str:
        return (await task.achat([Message(role=Role.USER, content=text)])).message.content

    left, right = await asyncio.gather(ask("left"), ask("right"))
    messages = [*task.messages, Message(role=Role.USER, content=f"{left} {right}")]
    return (await task.achat(messages)).message.content


async def count_even(task: ProgramTask) -> float:
    """Let two helpers speak at once, then go on with one of them; pay the share of replies of an even length."""
    first = Message(role=Role.USER, content="left")
    left, right = await asyncio.gather(task.achat([first]), task.achat(task.messages))
    last = await task.achat([first, left.message, Message(role=Role.USER, content="Again.")])
    return sum(len(reply.message.content) % 2 == 0 for reply in (left, right, last)) / 3
