"""Unchanged agents of other projects call our model: what was sampled is what trains, in all wire formats."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envgym import Action, Role, ToolCall
from envgym.agents.loop.agent import AgentSettings, make_agent
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.dialects.messages import MessagesDialect
from envgym.agents.rollout.programs.dialects.responses import ResponsesDialect
from envgym.agents.rollout.programs.runner import CommandProgram, ProgramEnd, run_program
from tests.agents.rollout.programs.playing import Client
from tests.support.program_calls import RunningHost, running_host
from tests.support.program_runs import task_of

pytestmark = pytest.mark.connect
AGENTS = Path(__file__).with_name("framework_agents.py")
CALL = Action("", tool_calls=[ToolCall(name="add", arguments={"a": 2, "b": 3})])
FINAL = Action("", tool_calls=[ToolCall(name="final_answer", arguments={"answer": "5"})])
CODE = "Thought: I add.\n<code>\nfinal_answer(add(2, 3))\n</code>"
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def server() -> Iterator[RunningHost]:
    with running_host([ChatDialect(), ResponsesDialect(), MessagesDialect()]) as running:
        yield running


@pytest.mark.parametrize(
    "name, script, num_rows",
    [
        ("openai_agents", [CALL, Action("5")], 1),
        ("openai_agents_chat", [CALL, Action("5")], 1),
        ("langgraph", [CALL, Action("5")], 1),
        ("anthropic", [CALL, Action("5")], 1),
        ("smolagents_tool", [CALL, FINAL], 2),  # it sends its calls back as text
        ("smolagents_code", [Action(CODE)], 1),
    ],
)
def test_an_unchanged_agent_plays_and_its_turns_are_those_that_were_sampled(
    server: RunningHost, name: str, script: list[Action], num_rows: int
) -> None:
    settings = {"max_turn_tokens": 300, "max_context_tokens": 60_000, "on_length": "close"}
    agent = make_agent(AgentSettings.model_validate(settings), tiny_tokenizer())
    waiting = [agent.renderer.encode_action(action) for action in script]
    client = Client(agent)

    async def generate(request: GenerateRequest) -> Generation:
        token_ids = waiting.pop(0)
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=(-0.5,) * len(token_ids),
            raw_logprobs=None,
            finish_reason=FinishReason.STOP,
            policy_version=0,
        )

    session = server.begin(client.conversations, generate)
    program = CommandProgram((sys.executable, str(AGENTS), name))
    run = server.thread.run(run_program(program, task_of(server, session), session, seconds=LIMIT_S))
    server.end(session)
    assert (run.end, run.error, run.result.answer) == (ProgramEnd.RETURNED, None, "5")
    assert not waiting, "the program made every call of the script"
    turns = client.conversations.turns
    assert [turn.action.tool_calls for turn in turns] == [action.tool_calls for action in script]
    rows = client.episode().rows
    assert len(rows) == num_rows
    sampled = sum(len(agent.renderer.encode_action(action)) for action in script)
    assert sum(sum(row.loss_mask) for row in rows) == (sampled if name != "smolagents_code" else sum(rows[0].loss_mask))
    if num_rows == 1 and len(script) == 2:
        results = [m for m in turns[-1].state.history.flat if m.role is Role.TOOL]
        assert [result.content for result in results] == ["5"]
