"""Agents of other projects, each with one tool, as a command: python framework_agents.py NAME.

Every agent is written as its project documents it. It finds the model by the environment variables of the command.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

Add = Callable[[int, int], int]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def openai_agents(prompt: str) -> str:
    """Play with the OpenAI Agents SDK over Responses, its default."""
    sdk: Any = import_module("agents")
    agent = sdk.Agent(name="adder", instructions="Use the tool.", model="policy", tools=[sdk.function_tool(add)])
    return str(asyncio.run(sdk.Runner.run(agent, prompt)).final_output)


def openai_agents_chat(prompt: str) -> str:
    """Play with the OpenAI Agents SDK over chat completions, streamed."""
    sdk: Any = import_module("agents")
    openai: Any = import_module("openai")

    async def play() -> str:
        model = sdk.OpenAIChatCompletionsModel("policy", openai.AsyncOpenAI())
        agent = sdk.Agent(name="adder", instructions="Use the tool.", model=model, tools=[sdk.function_tool(add)])
        result = sdk.Runner.run_streamed(agent, prompt)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    return asyncio.run(play())


def langgraph(prompt: str) -> str:
    """Play with the ReAct agent of LangGraph on a model of langchain-openai."""
    model = import_module("langchain_openai").ChatOpenAI(model="policy")
    tool = import_module("langchain_core.tools").tool(add)
    agent = import_module("langgraph.prebuilt").create_react_agent(model, [tool])
    return str(agent.invoke({"messages": [("user", prompt)]})["messages"][-1].content)


def smolagents_tool(prompt: str) -> str:
    """Play with the tool-calling agent of smolagents."""
    return _smolagents("ToolCallingAgent", prompt)


def smolagents_code(prompt: str) -> str:
    """Play with the code agent of smolagents, which always sends stop strings."""
    return _smolagents("CodeAgent", prompt)


def _smolagents(kind: str, prompt: str) -> str:
    smolagents: Any = import_module("smolagents")
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    model = smolagents.OpenAIServerModel(model_id="policy", api_base=url, api_key=key)
    agent = getattr(smolagents, kind)(tools=[smolagents.tool(add)], model=model, max_steps=3, verbosity_level=0)
    return str(agent.run(prompt))


def anthropic(prompt: str) -> str:
    """Play with a loop on Anthropic's SDK, streamed."""
    client: Any = import_module("anthropic").Anthropic()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"name": "add", "description": "Add two numbers.", "input_schema": schema}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while True:
        with client.messages.stream(
            model="policy", max_tokens=64_000, system="Use the tool.", messages=messages, tools=tools
        ) as stream:
            reply = stream.get_final_message()
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            return "".join(block.text for block in reply.content)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(add(**block.input))}
            for block in reply.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    task = json.loads(os.environ["ENVGYM_TASK"])
    answer = globals()[sys.argv[1]](task["prompt"])
    with open(os.environ["ENVGYM_RESULT"], "w", encoding="utf-8") as file:
        json.dump({"answer": answer}, file)
