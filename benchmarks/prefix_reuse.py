"""What keeping prefixes saves: the same episodes with reuse and with contexts computed anew, as a ratio.

Run: python benchmarks/prefix_reuse.py [--model smollm2] [--episodes 32] [--turns 4] [--repeat 3]. Prints one JSON line.

Episodes in which an env repeats what it hears, in groups of 4, all under way together, after one system prompt. Both
ways share the context of a group's samples; only with reuse do turns find those before them, and tasks each other's
system prompt. Ways alternate, and the best run of each counts. `cpu_ratio` is that of the process's own time, which
other load disturbs less.
"""

import argparse
import asyncio
import json
import platform
import time
from dataclasses import replace
from typing import NamedTuple

from envgym.agents.loop.agent import Agent, AgentSettings, OnLength, make_agent
from envgym.agents.models.loading import load
from envgym.agents.policies import _prefixes
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.core.tree import Tree
from tests.support.parrots import Parrot, parrot_job, run_episodes

GROUP = 4
RULES = (
    "You talk to a parrot. It repeats every word that it hears, and it never tires of it. Say something new in every "
    "message: a fact about birds, a line that rhymes, or a question that a child would ask. Keep to one sentence, "
    "write it in plain English, and do not say the same thing twice, as the parrot has a good memory. It can look at "
    "things for you, one at a time. When nothing comes to your mind, describe the room: its window, its lamp, the "
    "carpet, the plants on the shelf and the cat that sleeps behind the stove."
)
SHARED, NEVER = _prefixes.MIN_SHARED, 1 << 30


class Run(NamedTuple):
    """One collect."""

    wall_s: float
    cpu_s: float
    prefilled: int
    generated: int


def collect(policy: TransformersPolicy, agent: Agent, num_episodes: int, num_turns: int, *, reuse: bool) -> Run:
    """Run all episodes from an empty cache."""
    _prefixes.MIN_SHARED = SHARED if reuse else NEVER
    policy.set_version(0)
    jobs = [
        replace(
            parrot_job(
                lambda: Parrot(system_prompt=RULES, max_turns=num_turns),
                prompt=f"You are bird number {index // GROUP}. What do you say first?",
                tree_id=str(index),
            ),
            policy_seed=index,
        )
        for index in range(num_episodes)
    ]
    started, started_cpu = time.perf_counter(), time.process_time()
    episodes = run_episodes(jobs, agent, policy, concurrency=num_episodes)
    trees: list[Tree] = asyncio.run(episodes)
    assert sum(node.outcome is not None for tree in trees for node in tree.nodes) == num_episodes * num_turns
    wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    costs = [tree.cost for tree in trees]
    prefilled = sum(cost.tokens_prefilled for cost in costs)
    return Run(wall, cpu, prefilled, sum(cost.tokens_generated for cost in costs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    loaded = load(options.model)
    agent = make_agent(AgentSettings(max_turn_tokens=options.tokens, on_length=OnLength.CLOSE), loaded.tokenizer)
    policy = TransformersPolicy(loaded.model, max_batch=options.episodes)
    collect(policy, agent, 1, 1, reuse=True)  # loads what is loaded lazily
    runs: dict[bool, list[Run]] = {True: [], False: []}
    for _ in range(options.repeat):
        for reuse, samples in runs.items():
            samples.append(collect(policy, agent, options.episodes, options.turns, reuse=reuse))
    anew, kept = runs[False], runs[True]
    wall = [min(run.wall_s for run in way) for way in (anew, kept)]
    cpu = [min(run.cpu_s for run in way) for way in (anew, kept)]
    result = {
        "benchmark": "prefix_reuse",
        "model": options.model,
        "episodes": options.episodes,
        "turns": options.turns,
        "wall_ratio": round(wall[1] / wall[0], 3),
        "cpu_ratio": round(cpu[1] / cpu[0], 3),
        "wall_s_anew_kept": [round(value, 2) for value in wall],
        "cpu_s_anew_kept": [round(value, 2) for value in cpu],
        "prefilled_anew_kept": [anew[0].prefilled, kept[0].prefilled],
        "generated_anew_kept": [anew[0].generated, kept[0].generated],
        "python": platform.python_version(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
