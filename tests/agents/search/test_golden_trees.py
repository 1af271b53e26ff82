"""Chains and every search, bit by bit: the trees that they grew before one engine drove them all.

`ENVGYM_WRITE_GOLDEN=1` writes the golden file anew, after a change that is meant to change what is grown.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import envgym
from envgym import Scored, Split
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import BestOf, Chain, Mcts, RandomExpand, SurprisalFork, TurnUncertainty
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.snapshots import Branching
from envgym.agents.search.surprisal_fork import Where
from envgym.config.plugins import Choice
from envgym.core.tree import Node, Tree
from tests.agents.search.growing import Babbler, answer, grow
from tests.support.parrots import CALL, CharRenderer, char_agent, parrot_job, said

GOLDEN = Path(__file__).parent / "golden" / "trees.json"
WORDS = ("50", "<think>hm</think>up", "7", CALL, "crash", "hello", "unplug", "12", "bye", "down")


def wordy() -> ScriptedPolicy:
    return ScriptedPolicy(lambda request: said(WORDS[request.seed % len(WORDS)]))


def lake_job() -> EpisodeJob:
    env = envgym.make("puzzles/frozen_lake-v0")
    task = env.unwrapped.tasks.task(Split.TRAIN, 3)
    env.close()
    return EpisodeJob(
        make_env=lambda: envgym.make("puzzles/frozen_lake-v0", max_turns=6),
        task=task,
        seed=5,
        tree_id="lake",
        env_id="puzzles/frozen_lake-v0",
    )


def babbling(strategy: object, **kwargs: object) -> Callable[[], Sequence[Tree]]:
    return lambda: grow(strategy, Babbler("abc"), **kwargs).trees  # type: ignore[arg-type]  # keyword arguments of grow


def talking(strategy: object) -> Callable[[], Sequence[Tree]]:
    agent = char_agent(CharRenderer(drops_thinking=True), max_context_tokens=1100)
    return lambda: grow(strategy, wordy(), agent=agent).trees  # type: ignore[arg-type]  # as above


def answering(strategy: object) -> Callable[[], Sequence[Tree]]:
    return lambda: [answer(strategy, Babbler("abc"))]  # type: ignore[arg-type]  # as above


def on_the_lake(strategy: object) -> Callable[[], Sequence[Tree]]:
    agent = char_agent(text_format="hermes")
    directions = ("left", "down", "right", "up")
    policy = ScriptedPolicy(lambda request: said(directions[request.seed % 4]))
    return lambda: grow(strategy, policy, job=lake_job(), agent=agent, group_size=4).trees  # type: ignore[arg-type]


BUDGET = SearchBudget(tokens_generated=150, env_steps=30)
CASES: dict[str, Callable[[], Sequence[Tree]]] = {
    "chain": babbling(Chain()),
    "chain, failures and rewrites": talking(Chain()),
    "chain, few slots": babbling(Chain(), slots=2),
    "chain, lake": on_the_lake(Chain()),
    "best_of": babbling(BestOf(n=8)),
    "best_of, budget": babbling(BestOf(n=None, budget=BUDGET)),
    "best_of, answer": answering(BestOf(n=5)),
    "best_of, failures and rewrites": talking(BestOf(n=7, select=Choice(name="likelihood"))),
    "random_expand": babbling(RandomExpand(trees=2, nodes=2, rounds=2)),
    "random_expand, replay": babbling(RandomExpand(nodes=2, rounds=1, branching=Branching.REPLAY)),
    "random_expand, budget": babbling(RandomExpand(nodes=2, rounds=None, keep=3, budget=BUDGET)),
    "random_expand, few slots": babbling(RandomExpand(trees=2, nodes=2, rounds=2), slots=1),
    "random_expand, failures and rewrites": talking(RandomExpand(trees=2, nodes=2, rounds=2)),
    "random_expand, lake": on_the_lake(RandomExpand(trees=1, nodes=3, rounds=1)),
    "surprisal_fork, token": babbling(SurprisalFork(nodes=2, branches=2, rounds=2, trees=1)),
    "surprisal_fork, token, budget": babbling(SurprisalFork(nodes=1, branches=2, trees=2, budget=BUDGET)),
    "surprisal_fork, token, failures and rewrites": talking(SurprisalFork(nodes=2, branches=1, trees=2)),
    "surprisal_fork, after_tool": talking(SurprisalFork(where=Where.AFTER_TOOL, nodes=2, branches=1, trees=2)),
    "turn_uncertainty": babbling(TurnUncertainty(trees=2, nodes=2, rounds=2)),
    "turn_uncertainty, lake": on_the_lake(TurnUncertainty(trees=1, nodes=3, rounds=1)),
    "mcts, rewards": babbling(Mcts(simulations=9)),
    "mcts, uct, one at a time": babbling(Mcts(simulations=9, rule="uct", parallel=1, novelty=0.1)),
    "mcts, frontier": babbling(Mcts(simulations=8, rule="uct", c=2.0, frontier=True, backup="decayed")),
    "mcts, value": babbling(Mcts(simulations=8, value=Choice(name="tests.agents.search.test_golden_trees:brevity"))),
    "mcts, value, roll forward": answering(
        Mcts(simulations=8, value=Choice(name="tests.agents.search.test_golden_trees:brevity"), roll_forward=2)
    ),
    "mcts, budget": babbling(Mcts(simulations=None, budget=BUDGET)),
    "mcts, failures and rewrites": talking(Mcts(simulations=8)),
    "mcts, lake": on_the_lake(Mcts(simulations=8)),
    "no prompt fits": lambda: (
        grow(RandomExpand(nodes=1), job=parrot_job(prompt="Q" * 99), agent=char_agent(max_context_tokens=1010)).trees
    ),
}


async def brevity(seen: Sequence[object]) -> list[float]:
    return [1.0 / (1 + len(item.token_ids) % 5) for item in seen]  # type: ignore[attr-defined]  # what a search shows


def facts(node: Node) -> object:
    """Return what must not change of a node: all but the wording of errors and of why a branch was pruned."""
    edge, outcome, stats = node.edge, node.outcome, node.stats
    cost = edge.cost
    reward = None if outcome is None else outcome.reward
    return [
        node.parent,
        [
            [part.origin, part.token_ids, part.behavior_logprobs, part.raw_logprobs, part.policy_version]
            for part in edge.segments
        ],
        [edge.ends_turn, edge.rewrite],
        [cost.tokens_generated, cost.tokens_prefilled, cost.tool_calls, cost.env_steps],
        None if outcome is None else [str(outcome.action), str(outcome.observation), outcome.tool_errors],
        reward.value if isinstance(reward, Scored) else None if reward is None else reward.cause,
        [node.ending, node.error is None],
        None
        if stats is None
        else [
            [stats.visits, stats.value, stats.prior, stats.pruned is None, stats.repeats],
            [stats.spent.tokens_generated, stats.spent.tokens_prefilled, stats.spent.env_steps, stats.spent.tool_calls],
        ],
    ]


def digest(trees: Sequence[Tree]) -> dict[str, object]:
    shown = [[tree.id, tree.seed, tree.task_id, [facts(node) for node in tree.nodes]] for tree in trees]
    return {
        "nodes": [len(tree.nodes) for tree in trees],
        "leaves": [len(tree.leaves) for tree in trees],
        "sha256": hashlib.sha256(json.dumps(shown).encode()).hexdigest(),
    }


@pytest.mark.parametrize("name", CASES)
def test_a_strategy_grows_the_trees_that_it_grew_before(name: str) -> None:
    found = digest(CASES[name]())
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("ENVGYM_WRITE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps({**golden, name: found}, indent=1) + "\n")
        return
    assert found == golden[name]
