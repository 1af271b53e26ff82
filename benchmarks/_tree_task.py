"""A task of ten turns with one reward at the end, its trees, and what is known of it exactly.

At every turn the policy chooses +1 or -1, and the choice is added to the reward. Each of the first two turns also adds
noise of the env, 14 c or -14 c: what is paid depends mostly on it, and nothing can be learned from it. The reward is
paid at the end, but the history shows what it is made of.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envgym.core.builder import TreeBuilder
from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.trainer.methods.protocols import TrajectoryCredit

Array = NDArray[np.float64]

NUM_TURNS: Final = 10
NUM_NOISY: Final = 2
NOISE: Final = 14.0
LOGIT: Final = 0.5
PLUS: Final = 1 / (1 + math.exp(-LOGIT))
"""Probability of +1."""
MEAN: Final = 2 * PLUS - 1
"""Of a choice."""
_LOGPROBS: Final = {1: math.log(PLUS), -1: math.log(1 - PLUS)}
_TASK: Final = Task(id="sum", prompt="Go.", payload={}, split=Split.TRAIN)
_PROMPT: Final = Segment(origin=Origin.PROMPT, token_ids=(0,))


class Choice(NamedTuple):
    above: int
    """Index of the turn before it in the tree, -1 at the start."""
    turn: int
    action: int
    total: float
    """Of all that this turn and those before it add to the reward."""


def grow(rng: np.random.Generator, c: float, plan: Mapping[int, int]) -> list[Choice]:
    """Sample a tree that branches at the turns of a plan, turn -> children, each after the one before it."""
    choices: list[Choice] = []
    _continue(rng, c, choices, above=-1, plan=plan)
    return choices


def expand_at_random(rng: np.random.Generator, c: float, num_nodes: int) -> list[Choice]:
    """Sample an episode, and one continuation from each of `num_nodes` of its turns, drawn without repetition."""
    choices = grow(rng, c, {})
    for turn in rng.permutation(NUM_TURNS)[:num_nodes]:
        _continue(rng, c, choices, above=int(turn) - 1, plan={})
    return choices


def _continue(
    rng: np.random.Generator, c: float, choices: list[Choice], *, above: int, plan: Mapping[int, int]
) -> None:
    turn = 0 if above < 0 else choices[above].turn + 1
    if turn == NUM_TURNS:
        return
    for _ in range(plan.get(turn, 1)):
        action = 1 if rng.random() < PLUS else -1
        noise = NOISE * c * (1 if rng.random() < 0.5 else -1) if turn < NUM_NOISY else 0.0
        total = (choices[above].total if above >= 0 else 0.0) + action + noise
        choices.append(Choice(above, turn, action, total))
        _continue(rng, c, choices, above=len(choices) - 1, plan=plan)


def tree_of(name: str, choices: Sequence[Choice]) -> Tree:
    """Record a sampled tree; node n + 1 is turn n. The observation of a turn is the total."""
    builder = TreeBuilder(id=name, env_id="sum", task=_TASK, seed=0, prompt=[_PROMPT])
    handles: list[int] = []
    for choice in choices:
        is_last = choice.turn == NUM_TURNS - 1
        sampled = Segment(
            origin=Origin.POLICY,
            token_ids=(2 + choice.action,),
            behavior_logprobs=(_LOGPROBS[choice.action],),
            policy_version=0,
        )
        outcome = TurnOutcome(
            action=Action(str(choice.action)),
            observation=Observation(str(choice.total)),
            reward=Scored(value=choice.total if is_last else 0.0),
        )
        parent = builder.root if choice.above < 0 else handles[choice.above]
        edge = Edge(segments=(sampled,), ends_turn=True)
        handles.append(builder.add(parent, edge, outcome=outcome, ending=Ending.TERMINATED if is_last else None))
    return builder.freeze()


class SampledGroup(NamedTuple):
    group: Group
    choices: tuple[tuple[Choice, ...], ...]
    """Of each tree; node n + 1 of the tree is choice n."""

    def cost(self, early: float) -> float:
        """Return the counted turns, each of the first two `early` times."""
        turns = [choice.turn for tree in self.choices for choice in tree]
        return sum(early if turn < NUM_NOISY else 1.0 for turn in turns)

    def path(self, episode: Trajectory) -> Iterator[Choice]:
        choices = self.choices[[tree.id for tree in self.group.trees].index(episode.tree.id)]
        return (choices[node - 1] for node in episode.path[1:])


def make_group(name: str, trees: Sequence[Sequence[Choice]]) -> SampledGroup:
    recorded = tuple(tree_of(f"{name}-{number}", choices) for number, choices in enumerate(trees))
    return SampledGroup(Group(key=name, trees=recorded), tuple(tuple(choices) for choices in trees))


def gradient(sampled: SampledGroup, credits: Sequence[TrajectoryCredit], *, episodes: float, once: bool) -> Array:
    """Return a group's gradient in the logits of the turns, [T].

    Args:
        sampled: the group.
        credits: of its episodes.
        episodes: by which the sum over episodes is divided.
        once: a turn that several episodes share counts once.
    """
    found = np.zeros(NUM_TURNS)
    seen: set[tuple[str, int]] = set()
    for credit in credits:
        episode = credit.trajectory
        for node, choice, entry in zip(episode.path[1:], sampled.path(episode), credit.advantages[1:], strict=True):
            if once and (episode.tree.id, node) in seen:
                continue
            seen.add((episode.tree.id, node))
            (advantage,) = entry if isinstance(entry, tuple) else (entry,)
            found[choice.turn] += advantage * ((choice.action == 1) - PLUS)
    return np.asarray(found / episodes, dtype=np.float64)


TRUE_GRADIENT: Final[Array] = np.full(NUM_TURNS, 2 * PLUS * (1 - PLUS))


def value(before: float, turn: int) -> float:
    """Return the mean reward of an episode in which `before` was added before turn `turn`."""
    return before + MEAN * (NUM_TURNS - turn)


def variance(c: float) -> Array:
    """Return S_t(u), the same for every t, as [T + 1] over u."""
    left = np.arange(NUM_TURNS, -1, -1)
    noisy = np.maximum(NUM_NOISY - np.arange(NUM_TURNS + 1), 0)
    return np.asarray(left * (1 - MEAN**2) + noisy * (NOISE * c) ** 2, dtype=np.float64)
