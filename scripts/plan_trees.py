"""Propose where the trees of a run should branch, from the trees that it has recorded.

The run must have trees that branch after their first turn, such as those of `search.name=planned`; a few dozen groups
are enough for a first choice. Prints the nodes that each turn should have, relative to the first, and the plan with the
least predicted variance of the gradient at an equal number of sampled tokens, as settings of a run, next to chains.

Run: python scripts/plan_trees.py RUN [--steps FIRST LAST] [--leaves 8] [--count turns].
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.methods.tree_plans import (
    BranchingMoments,
    TreePlan,
    best_allocation,
    best_plan,
    measure_moments,
    predict_cost,
    predict_variance,
    small_plans,
)


def groups_of(rows: Sequence[Mapping[str, Any]]) -> list[Group]:  # cells of a table
    """Return the groups that were recorded: the trees of one task in one step."""
    groups: dict[tuple[int, str], list[Tree]] = {}
    steps = [row["step"] for row in rows if row["tree"] is not None]
    for step, tree in zip(steps, trees_of(rows), strict=True):
        groups.setdefault((step, tree.task_key), []).append(tree)
    return [Group(key=f"{task}, step {step}", trees=tuple(trees)) for (step, task), trees in groups.items()]


def settings_of(plan: TreePlan) -> str:
    """Return a plan as settings of a run."""
    size = f"rollout.group_size={plan.most_leaves}"
    if not plan.turns:
        return f"search.name=chain {size}"
    turns, children = (str(list(numbers)).replace(" ", "") for numbers in (plan.turns, plan.children))
    return f"search.name=planned search.trees={plan.trees} search.turns={turns} search.children={children} {size}"


def report(moments: BranchingMoments, *, most_leaves: int) -> str:
    """Return the proposal, in lines."""
    plans = list(small_plans(len(moments.costs), most_leaves=most_leaves))
    chains = TreePlan(most_leaves)
    plan = best_plan(moments, [*plans, chains])
    of_chains = predict_variance(moments, chains) * predict_cost(moments, chains)
    gain = of_chains / (predict_variance(moments, plan) * predict_cost(moments, plan))
    nodes = " ".join(f"{count:.2f}" for count in best_allocation(moments))
    return f"nodes of each turn: {nodes}\n{settings_of(plan)}\npredicted gain over {most_leaves} chains: {gain:.2f}"


def main() -> None:
    """Read the arguments, measure, and print what is proposed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", nargs=2, type=int, metavar=("FIRST", "LAST"), help="default: all")
    parser.add_argument("--leaves", type=int, default=8, help="most episodes of a group")
    parser.add_argument("--count", choices=["tokens", "turns"], default="tokens", help="what a turn costs")
    options = parser.parse_args()
    steps = None if options.steps is None else range(options.steps[0], options.steps[1] + 1)
    groups = groups_of(RunDirectory.open(options.run).episodes(steps, label="train"))
    moments = measure_moments(groups, by_tokens=options.count == "tokens")
    print(report(moments, most_leaves=options.leaves))


if __name__ == "__main__":
    main()
