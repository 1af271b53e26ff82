"""An environment so small that expectations are sums: the true gradient, and what an estimator gives on average.

Three states, two actions of one token each, a random transition, turn rewards and episodes of one to three turns.
Samples are real trees, credits real plug-ins, and rows, denominators and loss those of the learner, so what is measured
is the code that trains.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from envgym import Action, Ending, Observation, Scored, Split, Task
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Rewrite, Tree
from envgym.core.turns import TurnOutcome
from envgym.trainer.batch.rows import TrainRow, pad, train_rows
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.objective import Objective, ObjectiveInputs, objective_loss
from envgym.trainer.learner.settings import ObjectiveSettings
from envgym.trainer.methods.corrections import Correction, NoCorrection
from envgym.trainer.methods.losses import Aggregation, Reinforce, SeqMeanTokenSum
from envgym.trainer.methods.protocols import Credit, TrajectoryCredit
from envgym.trainer.metrics.update import UpdateMetrics

Array = NDArray[np.float64]
END = -1
"""The state after an episode."""


class Outcome(NamedTuple):
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
    """One turn as it was sampled; `above` is the place of the turn before it among a tree's turns, -1 at the start."""

    above: int
    state: int
    action: int
    logprob: float
    """Of the action, under the policy that sampled."""
    reward: float
    following: int

    @property
    def token_id(self) -> int:
        """The action as a token; it tells the state, too."""
        return 1 + 2 * self.state + self.action


Sampled = tuple[float, tuple[Visit, ...]]
"""(probability, turns of one tree, each after the one before it)."""


def probabilities(logits: Array) -> Array:
    """Return π(action | state)."""
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)


def _start_of_simulation(visits: Sequence[Visit]) -> int:
    """Return the turn after which the next simulation begins, -1 at the start: the best by UCT with room."""
    episodes = [list(_path(visits, leaf)) for leaf, visit in enumerate(visits) if visit.following == END]
    rewards = [sum(visits[turn].reward for turn in path) for path in episodes]
    through = {-1: rewards}
    through |= {
        turn: [reward for path, reward in zip(episodes, rewards, strict=True) if turn in path]
        for turn, visit in enumerate(visits)
        if visit.following != END
    }
    children = Counter(visit.above for visit in visits)
    room = [turn for turn in through if children[turn] < 2] or [-1]

    def score(turn: int) -> float:
        mean = sum(through[turn]) / len(through[turn])
        return mean + math.sqrt(math.log(1 + len(episodes)) / len(through[turn]))

    return max(room, key=score)


def _path(visits: Sequence[Visit], turn: int) -> Iterator[int]:
    while turn >= 0:
        yield turn
        turn = visits[turn].above


def _repeats(visits: Sequence[Visit], start: int, below: Sequence[Visit]) -> bool:
    """Return whether the turns that continue from `start` were all sampled there before."""
    for visit in below:
        same = [n for n, old in enumerate(visits) if old.above == start and old.token_id == visit.token_id]
        if not same or visits[same[0]].following != visit.following:
            return False
        start = same[0]
    return True


@dataclass(frozen=True, kw_only=True)
class Enumerable:
    """The env under one policy."""

    logits: Array

    def turns(self, state: int, above: int) -> Iterator[tuple[float, Visit]]:
        policy = probabilities(self.logits)[state]
        for action in range(2):
            for answer in ANSWERS[state, action]:
                visit = Visit(above, state, action, math.log(policy[action]), answer.reward, answer.state)
                yield float(policy[action]) * answer.probability, visit

    def grown(self, children: Callable[[int], int], state: int = 0, above: int = -1, place: int = 0) -> list[Sampled]:
        """Return every tree below a state in which a turn at depth d is sampled `children(d)` times.

        Args:
            children: of the depth, 0 for the first turn.
            state: where the tree begins.
            above: place of the turn before.
            place: of the first turn sampled here.
        """
        return self._siblings(lambda depth, _: children(depth), state, above, place, 0, children(0))

    def grown_by_history(self, children: Callable[[int, int], int]) -> list[Sampled]:
        """Return every tree in which a turn at depth d, in a state s, is sampled `children(d, s)` times."""
        return self._siblings(children, 0, -1, 0, 0, children(0, 0))

    def _siblings(
        self, children: Callable[[int, int], int], state: int, above: int, place: int, depth: int, count: int
    ) -> list[Sampled]:
        if count == 0:
            return [(1.0, ())]
        found: list[Sampled] = []
        for chance, visit in self.turns(state, above):
            below: list[Sampled] = [(1.0, ())]
            if visit.following != END:
                inner = children(depth + 1, visit.following)
                below = self._siblings(children, visit.following, place, place + 1, depth + 1, inner)
            for chance_below, visits in below:
                rest = self._siblings(children, state, above, place + 1 + len(visits), depth, count - 1)
                for chance_rest, others in rest:
                    found.append((chance * chance_below * chance_rest, (visit, *visits, *others)))
        return found

    def chains(self, state: int = 0, above: int = -1, place: int = 0) -> list[Sampled]:
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

    def searched(self, simulations: int = 3) -> list[Sampled]:
        """Return every tree of whole episodes, each but the first from where UCT on the rewards seen begins it.

        As in `mcts`, a place is sampled from at most twice, and an episode that repeats another is left out.
        """
        found: list[Sampled] = self.chains()
        for _ in range(simulations - 1):
            grown: list[Sampled] = []
            for chance, visits in found:
                start = _start_of_simulation(visits)
                state = visits[start].following if start >= 0 else 0
                for chance_below, below in self.chains(state, start, len(visits)):
                    is_new = not _repeats(visits, start, below)
                    grown.append((chance * chance_below, (*visits, *below) if is_new else visits))
            found = grown
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

    def estimate(self, credits: Sequence[TrajectoryCredit], *, once: bool = False) -> Array:
        """Return Σ over episodes and turns of A ∇ log π, divided by the episodes: the formula.

        Args:
            credits: of one or more groups, whose trees differ in their ids.
            once: a turn that several episodes share counts once.
        """
        total = np.zeros_like(self.logits)
        seen: set[tuple[str, int]] = set()
        for credit in credits:
            episode = credit.trajectory
            for turn, entry in zip(episode.turns, credit.advantages[1:], strict=True):
                if once and (episode.tree.id, turn.nodes[-1]) in seen:
                    continue
                seen.add((episode.tree.id, turn.nodes[-1]))
                (advantage,) = entry if isinstance(entry, tuple) else (entry,)
                (token_id,) = next(part for part in turn.segments if part.origin is Origin.POLICY).token_ids
                total += advantage * self._scores[divmod(token_id - 1, 2)]
        return total / max(len(credits), 1)


class SampledGroup(NamedTuple):
    probability: float
    group: Group


def groups(samples: Sequence[Sampled], size: int, *, rewritten: bool = False, name: str = "t") -> list[SampledGroup]:
    """Return every group of `size` independent trees.

    Args:
        samples: every tree with its probability.
        size: trees of a group.
        rewritten: each turn after the first has a new context.
        name: how the ids of the trees begin.
    """
    trees = [[tree_of(f"{name}{m}", visits, rewritten=rewritten) for m in range(size)] for _, visits in samples]
    found: list[SampledGroup] = []
    for chosen in product(range(len(samples)), repeat=size):
        chance = math.prod(samples[number][0] for number in chosen)
        members = tuple(trees[number][member] for member, number in enumerate(chosen))
        found.append(SampledGroup(chance, Group(key="group", trees=members)))
    return found


def objective(aggregation: Aggregation | None = None, correction: Correction | None = None) -> Objective:
    """Return the policy gradient, by default summed over an episode's tokens and on-policy."""
    return Objective(
        loss=Reinforce(),
        correction=correction or NoCorrection(),
        aggregation=aggregation or SeqMeanTokenSum(),
        settings=ObjectiveSettings(),
        temperature=1.0,
    )


def expected_gradient(
    world: Enumerable,
    credit: Credit,
    sampled: Iterable[SampledGroup],
    minimised: Objective | None = None,
    *,
    once: bool = False,
) -> Array:
    """Return the mean over all groups that can be sampled of the gradient that the learner ascends, in float64.

    Args:
        world: the env under the policy that is trained.
        credit: of one group.
        sampled: the groups.
        minimised: by default the policy gradient.
        once: a token that k rows share weighs 1/k in each.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        logits = torch.tensor(world.logits, requires_grad=True)
        logprobs_V = torch.cat([torch.zeros(1), logits.log_softmax(dim=1).flatten()])  # by `Visit.token_id`
        losses = [
            item.probability * _loss(logprobs_V, train_rows(credit(item.group), once=once), minimised or objective())
            for item in sampled
        ]
        (gradient,) = torch.autograd.grad(-torch.stack(losses).sum(), logits)
        return gradient.numpy()
    finally:
        torch.set_default_dtype(before)


def _loss(logprobs_V: torch.Tensor, rows: Sequence[TrainRow], minimised: Objective) -> torch.Tensor:
    """Return the learner's loss of one update on `rows`, which a table of log-probs scores."""
    batch = pad(rows, range(len(rows)), torch.device("cpu"))
    logprobs_BT = logprobs_V[batch.input_ids_BT]
    scored = TokenLogprobs(logprobs_BT, torch.zeros_like(logprobs_BT))
    old = minimised.old_logprobs(logprobs_BT.detach(), batch, None, lambda model: logprobs_BT)
    inputs = ObjectiveInputs(scored=scored, batch=batch, old_logprobs=old, step=0)
    return objective_loss(inputs, minimised, denominators=minimised.denominators(rows), metrics=UpdateMetrics())


_TASK = Task(id="enumerable", prompt="Go.", payload={}, split=Split.TRAIN)


def tree_of(name: str, visits: Sequence[Visit], *, rewritten: bool = False) -> Tree:
    """Record a sampled tree."""
    prompt = Segment(origin=Origin.PROMPT, token_ids=(0,))
    builder = TreeBuilder(id=name, env_id="enumerable", task=_TASK, seed=0, prompt=[prompt])
    handles: list[int] = []
    for visit in visits:
        said = Segment(
            origin=Origin.POLICY, token_ids=(visit.token_id,), behavior_logprobs=(visit.logprob,), policy_version=0
        )
        reply = Segment(origin=Origin.TOOL, token_ids=(0,))
        is_rewritten = rewritten and visit.above >= 0
        ends = visit.following == END
        outcome = TurnOutcome(
            action=Action(str(visit.action)),
            observation=Observation("" if ends else f"state {visit.following}"),
            reward=Scored(value=visit.reward),
        )
        edge = Edge(
            segments=(*[prompt] * is_rewritten, said, *[reply] * (not ends)),
            ends_turn=True,
            rewrite=Rewrite.TURNS_DROPPED if is_rewritten else None,
        )
        parent = builder.root if visit.above < 0 else handles[visit.above]
        handles.append(builder.add(parent, edge, outcome=outcome, ending=Ending.TERMINATED if ends else None))
    return builder.freeze()
