"""Credit of one step: every method of the catalogue on groups of many episodes of many turns.

Run: python benchmarks/credit.py [--groups 64] [--group-size 16] [--turns 20] [--only grpo gdpo ...] [--repeats 5].
Prints one JSON line. `ms` is the median processor time of a credit on groups whose rewards were read before, as a
filter has when credit is reached; `first_ms` that of a first reader, which adds up rewards. A group is chains of
`--turns` turns, each with a reward of two components and a process reward; one token is sampled a turn. What a credit
asks of a model (a critic's values, log-probs) is there.
"""

import argparse
import json
import platform
import random
import statistics
import time
from dataclasses import replace

from envgym.core.builder import TreeBuilder
from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation, Edge, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.plugins import Choice
from envgym.trainer.batch.build import assign_credits
from envgym.trainer.catalog import CREDIT
from envgym.trainer.methods.filters.variance import ZeroVariance
from envgym.trainer.methods.protocols import (
    CRITIC_VALUES,
    BatchCredit,
    Credit,
    CreditContext,
    CriticCredit,
    TrajectoryValues,
)

ANNOTATIONS = ("prm", "critic")
"""Names under which credits of annotated turns look for them."""


def episode(rng: random.Random, task: Task, name: str, num_turns: int) -> Tree:
    """Return a chain whose turns are paid 0 or 1 / `num_turns`, as the mean of two components."""
    prompt = Segment(origin=Origin.PROMPT, token_ids=(1, 2, 3))
    tree = TreeBuilder(id=name, env_id="bench/credit-v0", task=task, seed=0, prompt=[prompt])
    node = tree.root
    for turn in range(num_turns):
        said = Segment(
            origin=Origin.POLICY, token_ids=(rng.randrange(9),), behavior_logprobs=(-rng.random(),), policy_version=0
        )
        parts = {"answer": float(rng.random() < 0.5), "format": float(rng.random() < 0.9)}
        reward = Scored(value=sum(parts.values()) / 2 / num_turns, components=parts)
        outcome = TurnOutcome(action=Action("a"), observation=Observation(str(rng.randrange(4))), reward=reward)
        ending = Ending.TERMINATED if turn == num_turns - 1 else None
        node = tree.add(node, Edge(segments=(said,), ends_turn=True), outcome=outcome, ending=ending)
    found = tree.freeze()
    turns = [(kind, node) for kind in ANNOTATIONS for node in range(1, len(found.nodes))]
    annotations = tuple(Annotation(name=kind, level="turn", node=node, value=rng.random()) for kind, node in turns)
    return replace(found, annotations=annotations)


def make_groups(num_groups: int, group_size: int, num_turns: int) -> list[Group]:
    """Return groups of episodes, one task each."""
    rng = random.Random(0)
    groups: list[Group] = []
    for number in range(num_groups):
        task = Task(id=f"train/{number}", prompt=str(number), payload={"n": number}, split=Split.TRAIN)
        trees = tuple(episode(rng, task, f"{number}/{place}", num_turns) for place in range(group_size))
        groups.append(Group(key=str(number), trees=trees))
    return groups


def context_of(credit: Credit | BatchCredit, groups: list[Group]) -> CreditContext:
    """Return the scores that a credit reads, of every sampled token."""
    names = [request.name for request in getattr(credit, "scores", ())]
    names += [CRITIC_VALUES] if isinstance(credit, CriticCredit) else []
    episodes = [episode for group in groups for episode in group.valid]
    numbers = [((), *[(-0.5,)] * (len(episode.path) - 1)) for episode in episodes]
    values = [TrajectoryValues(trajectory=e, values=of_nodes) for e, of_nodes in zip(episodes, numbers, strict=True)]
    return CreditContext(scores=dict.fromkeys(names, values))


def milliseconds(credit: Credit | BatchCredit, groups: list[Group], context: CreditContext, *, is_first: bool) -> float:
    """Return the processor time of one credit; of a first reader, on groups that nobody has read."""
    groups = [Group(key=group.key, trees=group.trees) for group in groups]
    if not is_first:
        assert len(ZeroVariance()(groups).kept) == len(groups), "rewards of chance differ"
    started = time.process_time()
    credits = assign_credits(credit, groups, context)
    elapsed = time.process_time() - started
    assert credits, "every credit finds what it reads"
    return 1000 * elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="names of credits; default: all")
    options = parser.parse_args()
    groups = make_groups(options.groups, options.group_size, options.turns)
    credits = {name: CREDIT.build(Choice(name=name)) for name in options.only or CREDIT.table}
    measured: dict[str, dict[str, float]] = {}
    for name, credit in credits.items():
        context = context_of(credit, groups)
        times = {
            kind: [milliseconds(credit, groups, context, is_first=kind == "first_ms") for _ in range(options.repeats)]
            for kind in ("ms", "first_ms")
        }
        measured[name] = {kind: round(statistics.median(values), 2) for kind, values in times.items()}
    size = {"groups": options.groups, "group_size": options.group_size, "turns": options.turns}
    where = {"python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"benchmark": "credit", **size, "credits": measured, **where}))


if __name__ == "__main__":
    main()
