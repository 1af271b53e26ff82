"""An environment so small that expectations are sums: the true gradient, and what an estimator gives on average.

Three states, two actions of one token each, a random transition, turn rewards and episodes of one to three turns.
Samples are real trees and credits real plug-ins, so what is measured is the code that trains.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envgym.core.builder import TreeBuilder
from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.trainer.methods.protocols import Credit, TrajectoryCredit

Array = NDArray[np.float64]
END = -1
"""The state after an episode."""


class Outcome(NamedTuple):
    """One way in which the env can answer."""

    probability: float
    reward: float
    state: int


ANSWERS: dict[tuple[int, int], tuple[Outcome, ...]] = {
    (0, 0): (Outcome(1.0, 0.3, END),),
    (0, 1): (Outcome(0.6, 0.5, 1), Outcome(0.4, 0.5, 2)),
    (1, 0): (Outcome(1.0, 1.0, END),),
    (1, 1): (Outcome(1.0, -0.2, 2),),
    (2, 0): (Outcome(1.0, 0.7, END),),
    (2, 1): (Outcome(1.0, -0.4, END),),
}
"""(state, action) -> answers; episodes start in state 0. State 2 is reached at turn 1 or 2."""

LOGITS: Array = np.array([[0.2, -0.3], [-0.5, 0.4], [0.1, 0.6]])
"""[state, action] of a softmax policy."""


class Visit(NamedTuple):
    """One turn as it was sampled; `above` is the place of the turn before it in a sampled tree, -1 at the start."""

    above: int
    state: int
    action: int
    reward: float
    following: int


Sampled = tuple[float, tuple[Visit, ...]]
"""(probability, turns of one tree, depth first)."""


def probabilities(logits: Array) -> Array:
    """Return π(action | state)."""
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Enumerable:
    """The env under one policy."""

    logits: Array

    def turns(self, state: int, above: int) -> Iterator[tuple[float, Visit]]:
        """Yield every turn that can follow, with its probability."""
        policy = probabilities(self.logits)[state]
        for action in range(2):
            for answer in ANSWERS[state, action]:
                visit = Visit(above, state, action, answer.reward, answer.state)
                yield float(policy[action]) * answer.probability, visit

    def grown(self, children: Callable[[int], int], state: int = 0, above: int = -1, place: int = 0) -> list[Sampled]:
        """Return every tree below a state in which a turn at depth d is sampled `children(d)` times.

        Args:
            children: of the depth, 0 for the first turn.
            state: where the tree begins.
            above: place of the turn before.
            place: of the first turn sampled here.
        """
        return self._siblings(children, state, above, place, 0, children(0))

    def _siblings(
        self, children: Callable[[int], int], state: int, above: int, place: int, depth: int, count: int
    ) -> list[Sampled]:
        if count == 0:
            return [(1.0, ())]
        found: list[Sampled] = []
        for chance, visit in self.turns(state, above):
            below: list[Sampled] = [(1.0, ())]
            if visit.following != END:
                inner = children(depth + 1)
                below = self._siblings(children, visit.following, place, place + 1, depth + 1, inner)
            for chance_below, visits in below:
                rest = self._siblings(children, state, above, place + 1 + len(visits), depth, count - 1)
                for chance_rest, others in rest:
                    found.append((chance * chance_below * chance_rest, (visit, *visits, *others)))
        return found

    def chains(self, state: int = 0, above: int = -1, place: int = 0) -> list[Sampled]:
        """Return every episode from a state on."""
        return self.grown(lambda depth: 1, state, above, place)

    def expanded_at_random(self) -> list[Sampled]:
        """Return every chain with one continuation from a prefix drawn uniformly: M trees, N = L = 1 of Tree-GRPO."""
        found: list[Sampled] = []
        for chance, visits in self.chains():
            for cut in range(len(visits)):
                for chance_below, below in self.chains(visits[cut].state, cut - 1, len(visits)):
                    found.append((chance * chance_below / len(visits), (*visits, *below)))
        return found

    def forked_at_surprise(self) -> list[Sampled]:
        """Return every chain with one continuation from before its most surprising token, as TreeRL forks."""
        policy = probabilities(self.logits)
        found: list[Sampled] = []
        for chance, visits in self.chains():
            cut = min(range(len(visits)), key=lambda turn: policy[visits[turn].state, visits[turn].action])
            for chance_below, below in self.chains(visits[cut].state, cut - 1, len(visits)):
                found.append((chance * chance_below, (*visits, *below)))
        return found

    def true_gradient(self) -> Array:
        """Return ∇ E[R] = Σ over episodes of p R ∇ log p."""
        total = np.zeros_like(self.logits)
        for chance, visits in self.chains():
            paid = sum(visit.reward for visit in visits)
            for visit in visits:
                total += chance * paid * self._scores[visit.state, visit.action]
        return total

    @cached_property
    def _scores(self) -> Array:
        """∇ log π(action | state), as [state, action, state, action]."""
        policy = probabilities(self.logits)
        scores = np.zeros((*policy.shape, *policy.shape))
        for state, action in np.ndindex(*policy.shape):
            scores[state, action, state] = -policy[state]
            scores[state, action, state, action] += 1.0
        return scores

    def gradient(self, credits: Sequence[TrajectoryCredit], visits: Mapping[str, Sequence[Visit]]) -> Array:
        """Return an estimate: Σ over rows and tokens of A ∇ log π, divided by the rows (`seq-mean-token-sum`).

        Args:
            credits: of one group.
            visits: tree id -> its turns; node n of the tree is turn n - 1.
        """
        total = np.zeros_like(self.logits)
        for credit in credits:
            of_tree = visits[credit.trajectory.tree.id]
            for node, entry in zip(credit.trajectory.path[1:], credit.advantages[1:], strict=True):
                (advantage,) = entry if isinstance(entry, tuple) else (entry,)
                visit = of_tree[node - 1]
                total += advantage * self._scores[visit.state, visit.action]
        return total / max(len(credits), 1)


class SampledGroup(NamedTuple):
    """A group that can be sampled, with its probability."""

    probability: float
    group: Group
    visits: Mapping[str, Sequence[Visit]]
    """Tree id -> its turns."""


def groups(samples: Sequence[Sampled], size: int) -> list[SampledGroup]:
    """Return every group of `size` independent trees."""
    trees = [[tree_of(f"t{member}", visits) for member in range(size)] for _, visits in samples]
    found: list[SampledGroup] = []
    for chosen in product(range(len(samples)), repeat=size):
        chance = math.prod(samples[number][0] for number in chosen)
        members = tuple(trees[number][member] for member, number in enumerate(chosen))
        visits = {f"t{member}": samples[number][1] for member, number in enumerate(chosen)}
        found.append(SampledGroup(chance, Group(key="group", trees=members), visits))
    return found


def expected_gradient(world: Enumerable, credit: Credit, sampled: Iterable[SampledGroup]) -> Array:
    """Return the mean of an estimate over all groups that can be sampled."""
    total = np.zeros_like(world.logits)
    for item in sampled:
        total += item.probability * world.gradient(credit(item.group), item.visits)
    return total


_TASK = Task(id="enumerable", prompt="Go.", payload={}, split=Split.TRAIN)


def tree_of(name: str, visits: Sequence[Visit]) -> Tree:
    """Record a sampled tree; node n of the tree is turn n - 1."""
    prompt = Segment(origin=Origin.PROMPT, token_ids=(0,))
    builder = TreeBuilder(id=name, env_id="enumerable", task=_TASK, seed=0, prompt=[prompt])
    handles: list[int] = []
    for visit in visits:
        said = Segment(origin=Origin.POLICY, token_ids=(visit.action,), behavior_logprobs=(0.0,), policy_version=0)
        reply = Segment(origin=Origin.TOOL, token_ids=(0,))
        ends = visit.following == END
        outcome = TurnOutcome(
            action=Action(str(visit.action)),
            observation=Observation("" if ends else f"state {visit.following}"),
            reward=Scored(value=visit.reward),
        )
        edge = Edge(segments=(said,) if ends else (said, reply), ends_turn=True)
        parent = builder.root if visit.above < 0 else handles[visit.above]
        handles.append(builder.add(parent, edge, outcome=outcome, ending=Ending.TERMINATED if ends else None))
    return builder.freeze()
