"""Runs of programs against a host whose policy does what a test says."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from envgym.agents.rollout.programs.runner import (
    AgentProgram,
    CommandProgram,
    FunctionProgram,
    ProgramEnd,
    ProgramRun,
    run_program,
)
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.agents.rollout.programs.task import ProgramTask, TaskLinks
from envgym.core.messages import Message, Role
from envgym.tools import ToolSpec
from tests.support.env_server import wait_until
from tests.support.program_calls import PATIENCE_S, FakeMatcher, RunningHost

TOOL = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
MESSAGES = (Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="What is 1 + 1?"))


def task_of(server: RunningHost, session: ProgramSession, **links: Any) -> ProgramTask:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    return ProgramTask(
        id="sums/7",
        prompt="What is 1 + 1?",
        messages=MESSAGES,
        tools=(TOOL,),
        root_url=server.url(session),
        api_key=session.secret,
        model="policy",
        seed=11,
        links=TaskLinks(session=session, loop=server.thread.run(loop()), **links),
    )


def run(
    server: RunningHost,
    program: AgentProgram | Callable[[ProgramTask], Any],
    matcher: FakeMatcher | None = None,
    *,
    seconds: float = PATIENCE_S,
    grace_s: float = PATIENCE_S,
    generate: Any = None,
    **links: Any,
) -> ProgramRun:
    session = server.begin(matcher or FakeMatcher(), *([] if generate is None else [generate]))
    task = task_of(server, session, **links)
    program = FunctionProgram(program, "test.py:run") if callable(program) else program
    try:
        return server.thread.run(run_program(program, task, session, seconds=seconds, grace_s=grace_s))
    finally:
        server.end(session)


def run_until(server: RunningHost, program: AgentProgram, holds: Callable[[], bool]) -> ProgramEnd:
    """Run a program, and let its policy fail when something holds."""
    session = server.begin(FakeMatcher())
    running = server.thread.begin(run_program(program, task_of(server, session), session, seconds=PATIENCE_S))
    wait_until(holds)
    server.thread.call(session.failed.set)
    end = running.result(PATIENCE_S).end
    server.end(session)
    return end


def shell(script: str) -> CommandProgram:
    return CommandProgram(("/bin/sh", "-c", script))


def python(script: str) -> CommandProgram:
    return CommandProgram((sys.executable, "-c", script))
