"""Runs with many made-up episodes, for the viewer: few trees are built and many are copied, so seconds are enough."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from envgym import Action, Ending, Invalid, Observation, Scored, Split, Task
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Cost, TurnOutcome
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import TokenScores, episode_rows

GROUP_SIZE = 8
CONFIG = {
    "run": {"seed": 0, "steps": 100},
    "model": {"name": "tiny"},
    "agent": {"name": "tool_calling"},
    "envs": [{"id": "math/arithmetic-v0"}],
    "evaluation": {"tasks": 4, "samples": 1},
    "optim": {"learning_rate": 0.001},
}
"""What the viewer reads of the settings."""


def words(origin: Origin, text: str, rng: np.random.Generator, version: int = 0) -> Segment:
    """Build a segment with a token per word."""
    strings = tuple(f"{word} " for word in text.split(" "))
    is_sampled = origin is Origin.POLICY
    return Segment(
        origin=origin,
        token_ids=tuple(sum(map(ord, piece)) for piece in strings),
        token_strings=strings,
        behavior_logprobs=tuple(float(-rng.exponential(0.4)) for _ in strings) if is_sampled else None,
        policy_version=version if is_sampled else None,
    )


def chain(number: int, rng: np.random.Generator, *, num_turns: int = 2, words_per_turn: int = 12) -> Tree:
    """Build an episode of some turns: calls that sometimes fail, and an answer that is right, wrong or invalid."""
    a, b = (int(value) for value in rng.integers(11, 99, size=2))
    task = Task(id=f"train/{number}", prompt=f"What is {a} + {b}?", payload={"a": a, "b": b}, split=Split.TRAIN)
    prompt = (words(Origin.PROMPT, task.prompt, rng),)
    tree = TreeBuilder(id="chain", env_id="math/arithmetic-v0", task=task, seed=number, prompt=prompt)
    node = tree.root
    for turn in range(num_turns):
        is_last = turn == num_turns - 1
        said = f"I add {a} and {b} " + " ".join(["then"] * words_per_turn) + f" {a + b}"
        reward: Scored | Invalid = Scored(value=0.0)
        ending = None
        if is_last:
            is_right = bool(rng.random() < 0.5)
            reward = Scored(value=float(is_right), components={"answer": float(is_right)})
            ending = Ending.TERMINATED if number % 9 else Ending.TRUNCATED_TOKENS
        is_broken = is_last and number % 17 == 0
        if is_broken:
            reward, ending = (
                Invalid(cause=Ending.ERROR_TOOL_INFRA, reason="the calculator stopped"),
                Ending.ERROR_TOOL_INFRA,
            )
        spoken = words(Origin.POLICY, said, rng, 3)
        node = tree.add(
            node,
            Edge(
                segments=(spoken, words(Origin.TOOL, str(a + b), rng)),
                ends_turn=True,
                cost=Cost(tokens_generated=len(spoken), env_steps=1, seconds=0.1),
            ),
            outcome=TurnOutcome(
                action=Action(said), observation=Observation(str(a + b)), reward=reward,
                tool_errors=int(number % 5 == 0),
            ),
            ending=ending,
            error="the calculator stopped" if is_broken else None,
        )  # fmt: skip
    return tree.freeze()


def scores(tree: Tree) -> TokenScores:
    """Make up what the learner computed: log-probs 0.125 above the sampler's, entropies and ratios rising by token."""
    sampled = [[value for part in node.edge.segments for value in part.behavior_logprobs or ()] for node in tree.nodes]
    return {
        "learner_logprobs": [[value + 0.125 for value in of_node] for of_node in sampled],
        "entropies": [[0.25 * place for place, _ in enumerate(of_node)] for of_node in sampled],
        "ratios": [[1.0 + 0.0625 * place for place, _ in enumerate(of_node)] for of_node in sampled],
    }


def step_rows(rows: list[dict[str, Any]], step: int, size: int) -> Iterator[dict[str, Any]]:
    """Yield `size` rows of a step, in groups of `GROUP_SIZE`: copies of `rows` under ids of their own."""
    for number in range(size):
        group, sample = divmod(number, GROUP_SIZE)
        row = rows[(number + step) % len(rows)]
        tree_id, task_id = f"step-{step:06d}/{group:03d}/{sample:02d}", f"train/{(group + step) % 500}"
        text = row["tree"].replace('"id": "chain"', f'"id": "{tree_id}"', 1)
        text = text.replace(f'"task_id": "{row["task_id"]}"', f'"task_id": "{task_id}"', 1)
        advantage = (row["reward"] or 0.0) - 0.5
        learned: dict[str, Any] = {"advantages": json.dumps([0.0, advantage, advantage])}
        if row["reward"] is None:  # as no invalid episode is learned from
            learned = {"advantages": None, "token_scores": None}
        yield {**row, "step": step, "tree_id": tree_id, "task_id": task_id, "tree": text, **learned}


def large_run(path: Path, *, num_steps: int, episodes_per_step: int, words_per_turn: int = 12) -> RunDirectory:
    """Write a run of `num_steps` files of episodes, with metrics of every step."""
    rng = np.random.default_rng(0)
    run = RunDirectory.create(path, name=path.name, config=CONFIG)
    trees = [chain(number, rng, words_per_turn=words_per_turn) for number in range(51)]
    rows = [row for tree in trees for row in episode_rows([tree], step=1, token_scores={("chain", 2): scores(tree)})]
    for step in range(1, num_steps + 1):
        run.append_metrics({
            "step": step, "train/success": 0.3 + 0.5 * step / num_steps + 0.05 * float(rng.normal()),
            "loss/entropy": 1.0 / step, "reward/mean": step / num_steps,
        })  # fmt: skip
        run.write_episodes(step, list(step_rows(rows, step, episodes_per_step)))
    return run
