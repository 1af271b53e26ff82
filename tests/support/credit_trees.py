"""Trees for tests of credit, written as lists of nodes with their rewards."""

from collections.abc import Sequence

from envgym.core.messages import Action, Observation
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.trainer.batch.build import assign_credits
from envgym.trainer.methods.protocols import BatchCredit, Credit, TrajectoryCredit
from tests.support.example_trees import outcome_group, policy, start

BRANCH = None
"""In place of a reward: the node ends no turn."""

NodeSpec = tuple[int, float | None] | tuple[int, float | None, str]
"""(parent, reward or BRANCH, observation): parents are numbered from 1, 0 is the prompt."""


def branched(name: str, *specs: NodeSpec) -> Tree:
    """Build a tree of one node per spec, in depth-first order; node n samples one token, 9 + n; leaves terminate."""
    builder = start(name)
    parents = {spec[0] for spec in specs}
    for number, (parent, reward, *said) in enumerate(specs, start=1):
        outcome = None
        if reward is not None:
            outcome = TurnOutcome(
                action=Action(f"act {number}"),
                observation=Observation("".join(said)),
                reward=Scored(value=reward),
            )
        edge = Edge(segments=(policy(9 + number),), ends_turn=outcome is not None)
        ending = None if number in parents else Ending.TERMINATED
        builder.add(parent, edge, outcome=outcome, ending=ending)
    return builder.freeze()


def chain(name: str, rewards: Sequence[float], observations: Sequence[str] = ()) -> Tree:
    """Build an episode of one turn per reward; the env answers turn n with `observations[n]`, if there is one."""
    shown = [*observations, *[""] * (len(rewards) - len(observations))]
    return branched(name, *((n, reward, shown[n]) for n, reward in enumerate(rewards)))


def group_of(*trees: Tree) -> Group:
    return Group(key="group", trees=trees)


def chains(*rewards: Sequence[float]) -> Group:
    return group_of(*(chain(f"t{number}", of_turns) for number, of_turns in enumerate(rewards)))


def per_node(credits: Sequence[TrajectoryCredit]) -> list[list[float]]:
    """Return every episode's advantages below the prompt, after checking that each node has one number."""
    found: list[list[float]] = []
    for credit in credits:
        root, *advantages = credit.advantages
        assert root == 0.0
        numbers = [advantage for advantage in advantages if isinstance(advantage, float)]
        assert len(numbers) == len(advantages) == len(credit.trajectory.path) - 1
        found.append(numbers)
    return found


def batch_advantages(credit: Credit | BatchCredit, *groups: Sequence[float | None]) -> list[float]:
    """Return the advantage of every credited episode of groups of one-turn episodes, given by their rewards."""
    credits = assign_credits(credit, [outcome_group(*rewards) for rewards in groups])
    return [advantage for (advantage,) in per_node(credits)]
