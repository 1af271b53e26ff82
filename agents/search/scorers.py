"""Scorers of finished episodes, by which an answer is chosen at test time, and values of the states of a search.

A scorer is given what the agent can observe: its messages and tokens, and how probable they were. The reward is hidden
at test time: a choice by it is called oracle-selected wherever its result is shown. The env's reply to the last action
and the ending are not shown either, as they may reveal the verdict.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from envgym.agents.loop.path import PathNode
from envgym.agents.protocols import Sampling
from envgym.agents.search.branches import Branch, SearchState
from envgym.agents.tables import KINDS
from envgym.config.plugins import PluginKind
from envgym.core.messages import Message, Role
from envgym.core.segments import Origin
from envgym.core.turns import Ending, Scored, total
from envgym.errors import RunError
from envgym.verifiers.extract import agreed_answer

VALUE_NAME = "value"
"""Stands in `select` for the `ValueFn` of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchObservation:
    """What an agent can observe of a state where it is to act, or of an episode that has ended."""

    messages: tuple[Message, ...]
    """The conversation; of an episode that has ended, up to its last action."""
    token_ids: tuple[int, ...]
    """[T] its tokens as the policy has them, those that were sampled last included."""
    num_turns: int
    is_over: bool
    logprob: float | None
    """Mean log-prob at temperature 1 of the tokens that were sampled so far, nats a token; 0.0 where there are none.

    None where the policy gives only those of another distribution, which it sampled from.
    """
    reward: float | None = None
    """Reward of an episode that has ended, None where it is invalid; hidden from the agent, so it is set only for an
    `AnswerScorer` with `is_oracle`."""


class ValueFn(Protocol):
    """Estimates the reward of an episode under way, or of one that has ended; learned, or a rule.

    It may have `is_oracle`, which tells whether it uses more than the agent can observe, and `check_tokenizer`, which
    refuses a policy whose tokens it cannot read.
    """

    async def __call__(self, observations: Sequence[SearchObservation], /) -> Sequence[float]:
        """Return one number for each, in the range of the env's episode rewards."""
        ...


VALUE: Final[PluginKind[ValueFn]] = KINDS["value"]


class AnswerScorer(Protocol):
    """Scores finished episodes of one task; the highest is chosen, the first of equals."""

    @property
    def is_oracle(self) -> bool:
        """True where it uses the reward, which is hidden from the agent; only then the observations have it."""
        ...

    async def score(self, observations: Sequence[SearchObservation], /) -> Sequence[float]:
        """Return one number for each episode."""
        ...


ANSWER_SCORER: Final[PluginKind[AnswerScorer]] = KINDS["answer_scorer"]


class Majority:
    """The number of episodes that gave the same last answer."""

    is_oracle = False

    async def score(self, observations: Sequence[SearchObservation]) -> list[float]:
        """Count the votes; an episode without an answer has none."""
        answers = [answer_of(observation) for observation in observations]
        votes = Counter(answer for answer in answers if answer is not None)
        return [float(votes[answer]) if answer is not None else 0.0 for answer in answers]


class Likelihood:
    """The mean log-prob of the sampled tokens, at temperature 1 whatever they were sampled at."""

    is_oracle = False

    async def score(self, observations: Sequence[SearchObservation]) -> list[float]:
        """Return nats a token; -inf for an episode without an action, which has no likelihood.

        Raises: RunError: the policy does not give the log-probs.
        """
        logprobs = [observation.logprob for observation in observations if observation.logprob is not None]
        if len(logprobs) < len(observations):
            do = "sample at temperature 1 without top-k and top-p, or choose by majority"
            must, got = "be used with log-probs at temperature 1", "a policy that does not give them"
            raise RunError.of("likelihood", must, got, where="select", do=do)
        return [logprob if item.num_turns else -math.inf for logprob, item in zip(logprobs, observations, strict=True)]


class RewardScorer:
    """The reward itself."""

    is_oracle = True

    async def score(self, observations: Sequence[SearchObservation]) -> list[float]:
        """Return episode rewards; an invalid one is below all others."""
        return [-math.inf if item.reward is None else item.reward for item in observations]


class ValueScorer:
    """The value of a `ValueFn`."""

    def __init__(self, value_fn: ValueFn) -> None:
        self.value_fn = value_fn
        self.is_oracle = bool(getattr(value_fn, "is_oracle", False))

    async def score(self, observations: Sequence[SearchObservation]) -> Sequence[float]:
        return await self.value_fn(observations)


async def score_answers(branches: Sequence[Branch], scorer: AnswerScorer) -> list[float]:
    """Return the scores of finished episodes; -inf for one that infrastructure ended, which has no answer."""
    valid = [branch for branch in branches if not has_failed(branch)]
    observations = [observe_branch(branch, with_reward=scorer.is_oracle) for branch in valid]
    scores = dict(zip(map(id, valid), await scorer.score(observations) if valid else [], strict=True))
    return [scores.get(id(branch), -math.inf) for branch in branches]


async def choose_answer(branches: Sequence[Branch], scorer: AnswerScorer, *, prefer_terminated: bool) -> Branch:
    """Return the best of finished episodes, the first of equals; one that the search's own budget cut is none of them.

    Args:
        branches: the episodes, at least one. Those that the budget cut are chosen among only where no other is left.
        scorer: by what they are chosen. It is not given how they ended: where only success ends an episode early, the
            ending is the verdict.
        prefer_terminated: choose among those that the env ended, if there are any.
    """

    def rank(branch: Branch) -> int:
        if branch.ending is None or branch.ending.is_error:
            return 3
        if branch.ending is Ending.TRUNCATED_BUDGET:
            return 2
        return 1 if prefer_terminated and branch.ending is not Ending.TERMINATED else 0

    best = min(map(rank, branches))
    branches = [branch for branch in branches if rank(branch) == best]
    scores = await score_answers(branches, scorer)
    return max(zip(scores, branches, strict=True), key=lambda pair: pair[0])[1]


def has_failed(branch: Branch) -> bool:
    """Return whether a failure or an abort ended the branch."""
    return branch.ending is not None and branch.ending.is_error


# ---- what is observed of a branch -----------------------------------------------------------------------------------


def answer_of(observation: SearchObservation) -> str | None:
    """Return the answer in the last action; None: there is none."""
    actions = [message for message in observation.messages if message.role is Role.ASSISTANT]
    return answer_in(actions[-1]) if observation.num_turns and actions else None


def answer_in(action: Message) -> str | None:
    r"""Return the calls of an action, or its marked answer (`\boxed{}`, `<answer>`), or its text; None: it is empty."""
    if action.tool_calls:
        return json.dumps([(call.name, call.arguments) for call in action.tool_calls], sort_keys=True, default=str)
    answer = agreed_answer(action.content)
    return answer.casefold() if answer else None


def reward_of(branch: Branch) -> float | None:
    """Return the episode's reward, hidden from the agent; None where it is invalid."""
    if branch.last_node is None or has_failed(branch):
        return None
    reward = total(node.outcome.reward for node in branch.last_node.path() if node.outcome is not None)
    return reward.value if isinstance(reward, Scored) else None


def observe_state(state: SearchState) -> SearchObservation:
    """Return the observation of the agent before it acts."""
    return SearchObservation(
        messages=tuple(state.agent.history),
        token_ids=state.agent.context,
        num_turns=state.agent.num_turns,
        is_over=False,
        logprob=_mean_logprob(state.node.path(), state.request.sampling),
    )


def observe_branch(branch: Branch, *, with_reward: bool = False) -> SearchObservation:
    """Return the observation of a finished episode, and for an oracle its reward."""
    turn, path = branch.turns[-1], branch.turns[-1].node.path()
    action = (turn.node.outcome.action.message,) if turn.node.outcome is not None else ()
    sampled = turn.generation.token_ids if turn.generation is not None else ()
    return SearchObservation(
        messages=(*turn.start.agent.history, *action),
        token_ids=turn.start.agent.context + sampled,
        num_turns=sum(node.outcome is not None for node in path),
        is_over=True,
        logprob=_mean_logprob(path, branch.start.request.sampling),
        reward=reward_of(branch) if with_reward else None,
    )


def _mean_logprob(path: Sequence[PathNode], sampling: Sampling) -> float | None:
    """Return the mean log-prob at temperature 1; None where it is not known."""
    sampled = [segment for node in path for segment in node.edge.segments if segment.origin is Origin.POLICY]
    logprobs: list[float] = []
    for segment in sampled:
        values = segment.behavior_logprobs if segment.raw_logprobs is None and sampling.is_raw else segment.raw_logprobs
        if values is None:
            return None
        logprobs += values
    return math.fsum(logprobs) / len(logprobs) if logprobs else 0.0
