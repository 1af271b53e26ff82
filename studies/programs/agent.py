"""The agent loop as a program: OpenAI's library calls the model over HTTP, and the calls of a reply are one turn.

envgym eval --model tiny --env math/arithmetic-v0 --agent-set program.run=studies/programs/agent.py:play
"""

from typing import Any

from openai import AsyncOpenAI

from envgym.agents.rollout.programs.task import ProgramTask
from envgym.chats.openai import listed_tools, messages_to_wire, read_openai


async def play(task: ProgramTask) -> str:
    """Play an episode; return the answer: the first message without a call."""
    messages: Any = messages_to_wire(task.messages)
    tools: Any = listed_tools(task.tools)
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        while True:
            completion = await client.chat.completions.create(model=task.model, messages=messages, tools=tools)
            reply = read_openai(completion.choices[0].message.to_dict(), where="reply")
            if not reply.tool_calls:
                return reply.content
            messages += messages_to_wire([reply, *await task.acall_all(reply.tool_calls)])
