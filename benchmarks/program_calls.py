"""CPU time of a turn that an agent program asks for, beside a turn of the native loop, in one process.

Run: python -m benchmarks.program_calls [--turns 32] [--words 400] [--repeat 5]. Prints one JSON line.

`native`: the agent loop alone. `matched`: calls that hold the whole conversation, matched to it. `chat`: the same
through the session of a program, as `task.chat` sends them. `http`: the same over HTTP, with a client of a few lines,
whose time counts too. The prompt has `words` words of five tokens each, and the policy answers at once.
"""

import asyncio
import gc
import http.client
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

from benchmarks._options import print_result, read_options
from envgym.agents.loop.agent import Agent, AgentSettings, make_agent
from envgym.agents.loop.state import GenerationEvent, ResetEvent, StepEnv, StepEvent, advance, begin
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.programs.calls import Call, CallReply
from envgym.agents.rollout.programs.conversations import Conversations, OpenCall
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.host import ProgramHost
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tasks import Split, Task
from envgym.core.turns import ZERO
from envgym.records import ResetRecord, StepRecord, step_result

TASK = Task(id="train/0", prompt="Talk.", payload={}, split=Split.TRAIN)
MAX_MS = {"chat": 0.2, "http": 1.5}
"""Most CPU time of a turn above the native one, at a context of 2,000 tokens."""


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def native(agent: Agent, answer: Generation, prompt: str, num_turns: int) -> None:
    """Play an episode in the agent loop."""
    record = ResetRecord(task=TASK, observation=Observation(prompt), system_prompt="", tools=(), seed=0)
    state, _ = advance(begin(agent, sampling=Sampling(), seed=0), ResetEvent(record))
    for turn in range(num_turns):
        state, request = advance(state, GenerationEvent(answer))
        assert isinstance(request, StepEnv), "the turn is whole"
        step = StepRecord(
            turn=turn,
            action=request.action,
            observation=Observation(f"reply {turn}"),
            reward=ZERO,
            ending=None,
            tool_calls=0,
            tool_errors=0,
        )
        state, _ = advance(state, StepEvent(step_result(step)))


def new_conversations(agent: Agent, num_turns: int) -> Conversations:
    return Conversations(agent, sampling=Sampling(), seed=0, task=TASK, max_turns=num_turns)


def matched(agent: Agent, answer: Generation, prompt: str, num_turns: int) -> None:
    """Play the same episode as calls of a program."""
    conversations, messages = new_conversations(agent, num_turns), [user(prompt)]
    for turn in range(num_turns):
        call = conversations.ask(Call(messages=tuple(messages)))
        assert isinstance(call, OpenCall), "the call fits"
        reply = conversations.answered(call, answer)
        assert isinstance(reply, CallReply), "the call is answered"
        conversations.delivered(call)
        messages += [reply.message, user(f"reply {turn}")]


def session_of(agent: Agent, answer: Generation, num_turns: int) -> ProgramSession:
    async def generate(request: GenerateRequest) -> Generation:
        del request
        return answer

    return ProgramSession(new_conversations(agent, num_turns), generate)


async def chat(agent: Agent, answer: Generation, prompt: str, num_turns: int) -> None:
    """Play it through the session of a program."""
    session, messages = session_of(agent, answer, num_turns), [user(prompt)]
    for turn in range(num_turns):
        reply = await session.chat(Call(messages=tuple(messages)))
        messages += [reply.message, user(f"reply {turn}")]
    await session.close()


async def over_http(agent: Agent, answer: Generation, prompt: str, num_turns: int) -> None:
    """Play it over HTTP, from a thread."""
    host, session = ProgramHost([ChatDialect()]), session_of(agent, answer, num_turns)
    await host.listen()
    host.begin(session)
    await asyncio.to_thread(post, host.url_of(session), prompt, num_turns)
    await host.close()


def post(url: str, prompt: str, num_turns: int) -> None:
    """Send the calls of an episode."""
    parts = urlsplit(url)
    connection, messages = http.client.HTTPConnection(parts.netloc), [{"role": "user", "content": prompt}]
    for turn in range(num_turns):
        body = json.dumps({"model": "policy", "messages": messages})
        connection.request("POST", f"{parts.path}/v1/chat/completions", body, {"content-type": "application/json"})
        reply = json.loads(connection.getresponse().read())["choices"][0]["message"]
        messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": f"reply {turn}"}]
    connection.close()


def ran(play: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    async def run(*arguments: object) -> None:
        await play(*arguments)

    return lambda *arguments: asyncio.run(run(*arguments))


def cpu_seconds(work: Callable[[], None]) -> float:
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Measure all of them in turn, so that other load meets them alike, and print."""
    options = read_options(__doc__, turns=32, words=400, repeat=5)
    agent = make_agent(AgentSettings(max_turn_tokens=64, max_context_tokens=10_000_000), tiny_tokenizer())
    token_ids = agent.renderer.encode_action(Action("go on"))
    answer = Generation(
        token_ids=token_ids,
        behavior_logprobs=(-0.5,) * len(token_ids),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )
    players = {"native": native, "matched": matched, "chat": ran(chat), "http": ran(over_http)}
    times: dict[str, list[float]] = {name: [] for name in players}
    for _ in range(options.repeat):
        for name, play in players.items():
            times[name].append(cpu_seconds(partial(play, agent, answer, "word " * options.words, options.turns)))
    best = {name: min(values) / options.turns * 1e3 for name, values in times.items()}
    above = {name: round(best[name] - best["native"], 3) for name in ("matched", "chat", "http")}
    is_within = all(above[name] <= most for name, most in MAX_MS.items())
    figures = {f"{name}_above_native_ms": value for name, value in above.items()}
    print_result(
        "program_calls", **vars(options), native_ms=round(best["native"], 3), **figures, is_within_limits=is_within
    )


if __name__ == "__main__":
    main()
