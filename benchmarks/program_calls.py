"""Cost of a call of the model by an agent program, above a turn of the agent loop: in this process, and over HTTP.

Run: python -m benchmarks.program_calls [--turns 64] [--repeat 5]. Prints one JSON line.

One conversation of so many turns is played three times: by the agent loop, by a function that uses `task.chat`, and by
a client that sends HTTP requests from a process of its own. Times are processor time of this process for each turn, the
least of the repeats. A token is a character; a context begins with 2,000 or with 30,000 of them.
`longest_block_ms` is the time in which the host answers nobody else, while it reads the longest request.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine

from benchmarks._options import print_result, read_options
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.programs.conversations import Conversations
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.host import ProgramHost
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.agents.rollout.programs.task import ProgramTask, TaskLinks
from envgym.authoring.sources import ListTasks, TaskDraft
from envgym.core.messages import Action, Message, Role
from envgym.core.tasks import Split, Task
from envgym.env import Env
from envgym.records import Reply
from tests.support.parrots import char_agent, said

CONTEXTS = {"short": 2_000, "long": 30_000}
REPLY = "go on, please. " * 2
CLIENT = """
import http.client, json, sys
from urllib.parse import urlsplit
url, messages, turns = urlsplit(sys.argv[1]), json.loads(sys.stdin.read()), int(sys.argv[2])
connection = http.client.HTTPConnection(url.hostname, url.port)
for _ in range(turns):
    body = json.dumps({"model": "m", "messages": messages})
    connection.request("POST", url.path + "/v1/chat/completions", body)
    reply = json.load(connection.getresponse())["choices"][0]["message"]
    messages += [reply, {"role": "user", "content": "ok"}]
"""
Play = Callable[[Task, int], Coroutine[None, None, float]]
"""Plays a conversation of so many turns, and returns the processor time that it took here, in seconds."""


class Talk(Env[None]):
    """Shows a text and answers `ok` until the turn limit."""

    tasks = ListTasks([TaskDraft(prompt="x" * length, payload={}) for length in CONTEXTS.values()])

    def begin(self, task: Task) -> str:
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        return Reply(observation="ok")


def speak(request: GenerateRequest) -> tuple[int, ...]:
    return said(REPLY)


async def play_native(task: Task, num_turns: int) -> float:
    job = EpisodeJob(make_env=lambda: Talk(max_turns=num_turns), task=task, seed=0, tree_id="t", env_id="talk")
    started = time.process_time()
    tree = await run_episode(job, char_agent(), ScriptedPolicy(speak), sampling=Sampling())
    seconds = time.process_time() - started
    assert sum(node.outcome is not None for node in tree.nodes) == num_turns
    return seconds


def new_session(task: Task, num_turns: int) -> ProgramSession:
    policy = ScriptedPolicy(speak)
    conversations = Conversations(char_agent(), sampling=Sampling(), seed=0, task=task, max_turns=num_turns)
    return ProgramSession(conversations, policy.generate)


async def play_by_chat(task: Task, num_turns: int) -> float:
    session = new_session(task, num_turns)
    program_task = ProgramTask(
        id=task.id,
        prompt=task.prompt,
        messages=(Message(role=Role.USER, content=task.prompt),),
        tools=(),
        root_url="",
        api_key="",
        model="m",
        seed=0,
        links=TaskLinks(session=session, loop=asyncio.get_running_loop()),
    )

    def program() -> None:
        messages = list(program_task.messages)
        for _ in range(num_turns):
            messages += [program_task.chat(messages).message, Message(role=Role.USER, content="ok")]

    started = time.process_time()
    await asyncio.to_thread(program)
    seconds = time.process_time() - started
    assert session.counts.delivered == num_turns
    await session.close()
    return seconds


async def play_by_http(task: Task, num_turns: int) -> float:
    session, host = new_session(task, num_turns), ProgramHost([ChatDialect()])
    await host.listen()
    host.begin(session)
    messages = json.dumps([{"role": "user", "content": task.prompt}]).encode()
    arguments = (host.url_of(session), str(num_turns))
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, *arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    started = time.process_time()
    await client.communicate(messages)
    seconds = time.process_time() - started
    assert session.counts.delivered == num_turns
    await host.close()
    return seconds


def cost_us(play: Play, task: Task, num_turns: int, repeat: int) -> float:
    return min(asyncio.run(play(task, num_turns)) for _ in range(repeat)) / num_turns * 1e6


def longest_block_ms(task: Task, num_turns: int, repeat: int) -> float:
    """Return the processor time of reading a request that holds the whole conversation."""
    turn = [{"role": "assistant", "content": REPLY}, {"role": "user", "content": "ok"}]
    body = {"model": "m", "messages": [{"role": "user", "content": task.prompt}, *turn * num_turns]}
    content, dialect = json.dumps(body), ChatDialect()

    def read() -> float:
        conversations = Conversations(char_agent(), sampling=Sampling(), seed=0, task=task, max_turns=1)
        started = time.process_time()
        conversations.ask(dialect.read(json.loads(content), refuses=False, transcripts={}).call)
        return time.process_time() - started

    return min(read() for _ in range(repeat)) * 1e3


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, turns=64, repeat=5)
    figures: dict[str, object] = {}
    for index, name in enumerate(CONTEXTS):
        task = Talk.tasks.task(Split.TRAIN, index)
        native, chat, http = (
            cost_us(play, task, options.turns, options.repeat) for play in (play_native, play_by_chat, play_by_http)
        )
        figures[f"{name}_native_us"] = round(native, 1)
        figures[f"{name}_chat_over_native_ms"] = round((chat - native) / 1e3, 3)
        figures[f"{name}_http_over_native_ms"] = round((http - native) / 1e3, 3)
        figures[f"{name}_longest_block_ms"] = round(longest_block_ms(task, options.turns, options.repeat), 2)
    print_result("program_calls", **vars(options), **figures)


if __name__ == "__main__":
    main()
