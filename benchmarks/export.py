"""Turns that `envgym export` writes in a second, by kind of data set.

Run: python benchmarks/export.py [--episodes 4096] [--turns 8]. Prints one JSON line. Episodes have calls of a tool,
tokens, log-probs and advantages. They are read from the files of a run, and the whole folder is written. Groups have
eight episodes. CPU time is that of the process, with the threads of Arrow.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from envgym import Action, Ending, Message, Observation, Role, Scored, Split, Task, ToolCall
from envgym.cli.export import data_kind
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Edge, Tree
from envgym.core.turns import TurnOutcome
from envgym.export.dataset import export_data
from envgym.export.episodes import EpisodeChoice
from envgym.export.rows import RowOptions
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.tools import ToolSpec

LEAST_TURNS_S = 20_000
KINDS = ("chat", "sharegpt", "preferences", "steps", "tokens")
GROUP_SIZE = 8
EPISODES_PER_STEP = 1024
SAMPLED_TOKENS, REPLY_TOKENS = 32, 16
"""Of a turn."""
TOOL = ToolSpec(
    name="calculator",
    description="Evaluate an expression.",
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)


def segment(origin: Origin, rng: np.random.Generator, num_tokens: int) -> Segment:
    is_sampled = origin is Origin.POLICY
    return Segment(
        origin=origin,
        token_ids=tuple(map(int, rng.integers(0, 50_000, size=num_tokens))),
        token_strings=tuple(f" w{number}" for number in range(num_tokens)),
        behavior_logprobs=tuple(-float(value) for value in rng.exponential(0.4, size=num_tokens))
        if is_sampled
        else None,
        policy_version=3 if is_sampled else None,
    )


def episode(number: int, num_turns: int, rng: np.random.Generator) -> Tree:
    """Return an episode of calls and an answer."""
    task = Task(id=f"train/{number}", prompt="", payload={"number": number}, split=Split.TRAIN)
    start = (segment(Origin.PROMPT, rng, 64),)
    tree = TreeBuilder(id="episode", env_id="math/arithmetic-v0", task=task, seed=number, prompt=start)
    node = tree.root
    for turn in range(num_turns):
        is_last = turn == num_turns - 1
        text = f"I add {number} and {turn}, which I do with the calculator."
        calls = [] if is_last else [ToolCall(name="calculator", arguments={"expression": f"{number} + {turn}"})]
        replies = [] if is_last else [Message(role=Role.TOOL, content=str(number + turn), name="calculator")]
        outcome = TurnOutcome(
            action=Action(text, content=text, thinking="The sum comes first.", tool_calls=calls),
            observation=Observation.of(replies),
            reward=Scored(value=float(number % 2) if is_last else 0.0),
        )
        segments = (segment(Origin.POLICY, rng, SAMPLED_TOKENS), segment(Origin.TOOL, rng, REPLY_TOKENS))
        edge = Edge(segments=segments, ends_turn=True)
        node = tree.add(node, edge, outcome=outcome, ending=Ending.TERMINATED if is_last else None)
    system = Message(role=Role.SYSTEM, content="You are a calculator. Answer in one line.")
    return tree.freeze(messages=(system, Message(role=Role.USER, content="What is the sum?")), tools=(TOOL,))


def write_run(path: Path, num_episodes: int, num_turns: int) -> RunDirectory:
    """Write a run: few trees are built, and are copied under other ids."""
    config = {"run": {"seed": 0}, "model": {"name": "tiny"}, "envs": [{"id": "math/arithmetic-v0"}]}
    run, rng = RunDirectory.create(path, name="run", config=config), np.random.default_rng(0)
    trees = [episode(number, num_turns, rng) for number in range(64)]
    credits = {(tree.id, tree.leaves[0]): [0.5] * len(tree.nodes) for tree in trees}
    rows = [row for tree in trees for row in episode_rows([tree], step=1, advantages=credits)]
    for step, start in enumerate(range(0, num_episodes, EPISODES_PER_STEP), start=1):
        count = min(EPISODES_PER_STEP, num_episodes - start)
        run.write_episodes(step, list(copies(rows, step, count)))
    return run


def copies(rows: list[dict[str, Any]], step: int, count: int) -> Iterator[dict[str, Any]]:
    task = rows[0]["task_id"], rows[0]["task_key"]
    for number in range(count):
        group, index = divmod(number, GROUP_SIZE)
        row, tree_id = rows[number % len(rows)], f"step-{step:06d}/{group:03d}/{index:02d}"
        text = row["tree"].replace('"id": "episode"', f'"id": "{tree_id}"', 1)
        for name, old, new in zip(("task_id", "task_key"), (row["task_id"], row["task_key"]), task, strict=True):
            text = text.replace(f'"{name}": "{old}"', f'"{name}": "{new}"', 1)
        yield {**row, "tree_id": tree_id, "task_id": task[0], "task_key": task[1], "tree": text}


def measure(run: RunDirectory, kind: str, num_turns: int, out: Path) -> dict[str, float]:
    options = RowOptions(choice=EpisodeChoice())
    start, cpu_start = time.perf_counter(), time.process_time()
    export_data(run, data_kind(kind), out, options)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    return {"turns_s": round(num_turns / seconds), "turns_cpu_s": round(num_turns / cpu_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    num_turns = options.episodes * options.turns
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", options.episodes, options.turns)
        measure(run, "chat", num_turns, Path(folder) / "first")  # imports, and the files are in the cache
        kinds = {kind: measure(run, kind, num_turns, Path(folder) / kind) for kind in KINDS}
    result = {"benchmark": "export", "episodes": options.episodes, "turns": num_turns, "kinds": kinds}
    print(json.dumps({**result, "least_turns_s": LEAST_TURNS_S, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
