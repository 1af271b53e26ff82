"""Credit of one step: every method without a critic on groups of many episodes of many turns.

Run: python benchmarks/credit.py [--groups 64] [--group-size 16] [--turns 20] [--only grpo gdpo ...] [--repeats 5].
Prints one JSON line. `ms` is the median processor time of a credit on groups whose rewards were read before, as a
filter has when credit is reached; `first_ms` that of a first reader, which joins nodes to turns and adds up rewards. A
group is chains of `--turns` turns, each with a reward of two components; one token is sampled a turn.
"""

import argparse
import json
import platform
import random
import statistics
import time

from envgym.core.builder import TreeBuilder
from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.plugins import Choice
from envgym.trainer.batch.build import assign_credits
from envgym.trainer.catalog import CREDIT
from envgym.trainer.methods.filters.variance import ZeroVariance
from envgym.trainer.methods.protocols import BatchCredit, Credit, CriticCredit


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
    return tree.freeze()


def make_groups(num_groups: int, group_size: int, num_turns: int) -> list[Group]:
    """Return groups of episodes, one task each."""
    rng = random.Random(0)
    groups: list[Group] = []
    for number in range(num_groups):
        task = Task(id=f"train/{number}", prompt=str(number), payload={"n": number}, split=Split.TRAIN)
        trees = tuple(episode(rng, task, f"{number}/{place}", num_turns) for place in range(group_size))
        groups.append(Group(key=str(number), trees=trees))
    return groups


def milliseconds(credit: Credit | BatchCredit, groups: list[Group], *, is_first: bool) -> float:
    """Return the processor time of one credit; of a first reader, on groups that nobody has read."""
    groups = [Group(key=group.key, trees=group.trees) for group in groups]
    if not is_first:
        assert len(ZeroVariance()(groups).kept) == len(groups), "rewards of chance differ"
    started = time.process_time()
    assign_credits(credit, groups)
    return 1000 * (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="names of credits; default: all without a critic")
    options = parser.parse_args()
    groups = make_groups(options.groups, options.group_size, options.turns)
    credits = {name: CREDIT.build(Choice(name=name)) for name in options.only or CREDIT.table}
    measured: dict[str, dict[str, float]] = {}
    for name, credit in credits.items():
        if isinstance(credit, CriticCredit):
            continue
        times = {
            kind: [milliseconds(credit, groups, is_first=kind == "first_ms") for _ in range(options.repeats)]
            for kind in ("ms", "first_ms")
        }
        measured[name] = {kind: round(statistics.median(values), 2) for kind, values in times.items()}
    size = {"groups": options.groups, "group_size": options.group_size, "turns": options.turns}
    where = {"python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"benchmark": "credit", **size, "credits": measured, **where}))


if __name__ == "__main__":
    main()
