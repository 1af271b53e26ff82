"""Measure what random calls earn in `tools/mcp-v0`, and write `envs/tools/data/mcp_chance.toml`.

Run: python scripts/measure_mcp_chance.py [--tasks 1000]. The agent does not read the task: it calls tools that are
offered, with values from what the server has returned so far, and stops after half of the calls that change a record.
The servers run in this process, where their code is the same.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from envgym.core.json_types import JsonObject, JsonValue
from envgym.envs.tools._mcp.plans import SERVERS, content, simulated
from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, Refusal, input_schema
from envgym.envs.tools._mcp.tasks import LEVELS, draw_task
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import estimate_success

PATH = Path(__file__).resolve().parent.parent / "envs" / "tools" / "data" / "mcp_chance.toml"
HEAD = """\
# What random calls earn, by server and level: the upper ends of intervals of 95 % over {tasks} tasks. Written by
# scripts/measure_mcp_chance.py.
"""
NUM_CALLS = 30
_FIRST = ("/", "a", "e", "2026-09-07", "2026-09-09", "09:00", "archive", "search")
"""Values that an agent may try before it has seen any."""


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    tasks = parser.parse_args().tasks
    lines = []
    for server in SERVERS:
        rates = []
        for level in LEVELS:
            solved = {str(index): [float(is_solved_by_chance(server, level, index))] for index in range(tasks)}
            rates.append(estimate_success(solved))
        print(server, [f"{rate.value:.4f}" for rate in rates], flush=True)
        lines.append(f"{server} = [{', '.join(f'{rate.interval.high:.4f}' for rate in rates)}]")
    write_atomic(PATH, HEAD.format(tasks=tasks) + "\n".join(lines) + "\n")


def is_solved_by_chance(server: str, level: int, index: int) -> bool:
    """Play a task with random calls; return whether the goal stands at the end."""
    task = draw_task(generator("mcp chance task", server, level, index), server, level).payload
    rng = generator("mcp chance", server, level, index)
    running = simulated(server, task["tables"])
    seen: list[str] = [*_FIRST]
    for _ in range(NUM_CALLS):
        before = content(server, _tables(running))
        _call_something(running, seen, rng)
        if content(server, _tables(running)) != before and rng.random() < 0.5:
            break
    goal = task["goal"]
    assert isinstance(goal, Mapping), "written by draw_task"
    return content(server, _tables(running)) == content(server, goal)


def _tables(running: McpServer) -> JsonObject:
    return running.tables


def _call_something(running: McpServer, seen: list[str], rng: np.random.Generator) -> None:
    """Call a tool that is offered, and take note of the values in its result."""
    tools = list(running.listed())
    tool = tools[rng.integers(len(tools))]
    properties: Json = input_schema(tool)["properties"]
    arguments = {key: _value(schema, seen, rng) for key, schema in properties.items()}
    try:
        _note(running.call(tool["name"], arguments), seen)
    except Refusal:
        return


def _value(schema: Json, seen: list[str], rng: np.random.Generator) -> JsonValue:
    if schema["type"] == "integer":
        return int(rng.integers(schema.get("minimum", 1), 5 + schema.get("minimum", 1)))
    return seen[rng.integers(len(seen))]


def _note(result: object, seen: list[str]) -> None:
    """Add the texts of a result, and their lines, to the values that are known."""
    if isinstance(result, str):
        seen.extend(line for line in [result, *result.split("\n")] if line not in seen)
    elif isinstance(result, Mapping | list):
        for part in result.values() if isinstance(result, Mapping) else json.loads(json.dumps(result)):
            _note(part, seen)


if __name__ == "__main__":
    main()
