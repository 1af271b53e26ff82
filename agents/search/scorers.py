"""Scorers of finished episodes, by which an answer is chosen at test time, and values of the states of a search.

A scorer may use what the agent can observe: its messages and tokens, and how probable they were. The reward is hidden
at test time: a choice by it is called oracle-selected wherever its result is shown. The env's reply to the last action
is not shown to a `ValueFn` either, as it may hold the verdict.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envgym.agents.loop.path import PathNode
from envgym.agents.search.branches import Branch, SearchState
from envgym.core.messages import Action, Message
from envgym.core.segments import Origin
from envgym.core.turns import Ending, Scored, total
from envgym.verifiers.extract import final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    logprob: float
    """Mean log-prob of the tokens that were sampled so far, nats a token; 0.0 where there are none."""


class ValueFn(Protocol):
    """Estimates the reward of an episode under way, or of one that has ended; learned, or a rule.

    It may have `is_oracle`, which tells whether it uses more than the agent can observe, and `check_tokenizer`, which
    refuses a policy whose tokens it cannot read.
    """

    async def __call__(self, observations: Sequence[SearchObservation], /) -> Sequence[float]:
        """Return one number for each, in the range of the env's episode rewards."""
        ...


class AnswerScorer(Protocol):
    """Scores finished episodes of one task; the highest is chosen, the first of equals."""

    @property
    def is_oracle(self) -> bool:
        """True where it uses what is hidden from the agent."""
        ...

    async def __call__(self, branches: Sequence[Branch]) -> Sequence[float]:
        """Return one number for each; all of them have ended."""
        ...


class Majority:
    """The number of episodes that gave the same last answer."""

    is_oracle = False

    async def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """Count the votes; an episode without an answer has none."""
        answers = [answer_of(branch) for branch in branches]
        votes = Counter(answer for answer in answers if answer is not None)
        return [float(votes[answer]) if answer is not None else 0.0 for answer in answers]


class Likelihood:
    """The mean log-prob of the sampled tokens."""

    is_oracle = False

    async def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """Return nats a token."""
        return [observe_branch(branch).logprob for branch in branches]


class RewardScorer:
    """The reward itself."""

    is_oracle = True

    async def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """Return episode rewards; an invalid one is below all others."""
        return [-math.inf if (reward := reward_of(branch)) is None else reward for branch in branches]


class ValueScorer:
    """The value of a `ValueFn`."""

    def __init__(self, value_fn: ValueFn) -> None:
        """Score by `value_fn`."""
        self.value_fn = value_fn
        self.is_oracle = bool(getattr(value_fn, "is_oracle", False))

    async def __call__(self, branches: Sequence[Branch]) -> Sequence[float]:
        """Return its values."""
        return await self.value_fn([observe_branch(branch) for branch in branches])


def check_tokenizer(value_fn: ValueFn, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Pass the policy's tokenizer to a `ValueFn` that checks it. Raises: InvalidInput: it cannot read its tokens."""
    check = getattr(value_fn, "check_tokenizer", None)
    if check is not None:
        check(tokenizer)


async def choose_answer(branches: Sequence[Branch], scorer: AnswerScorer) -> Branch:
    """Return the best of the branches that ended best: terminated, else truncated, else out of budget, else failed."""
    rank = min(_rank_ending(branch) for branch in branches)
    candidates = [branch for branch in branches if _rank_ending(branch) == rank]
    scores = await scorer(candidates)
    return max(zip(scores, candidates, strict=True), key=lambda pair: pair[0])[1]


def _rank_ending(branch: Branch) -> int:
    ending = branch.ending
    if ending is Ending.TERMINATED:
        return 0
    if ending is None or ending.is_error:
        return 3
    return 2 if ending is Ending.TRUNCATED_BUDGET else 1


# ---- what is observed of a branch -----------------------------------------------------------------------------------


def last_action(branch: Branch) -> Action | None:
    """Return the last action on the branch's path that the env answered."""
    node = branch.last_node
    while node is not None and node.outcome is None:
        node = node.parent
    return node.outcome.action if node is not None and node.outcome is not None else None


def answer_of(branch: Branch) -> str | None:
    r"""Return the answer in the last action: its calls, or its marked answer (`\boxed{}`, `<answer>`), or its text."""
    action = last_action(branch)
    if action is None:
        return None
    if action.tool_calls:
        return json.dumps([(call.name, call.arguments) for call in action.tool_calls], sort_keys=True, default=str)
    answer = final(action.content).answer
    return " ".join(answer.split()).casefold() if answer else None


def reward_of(branch: Branch) -> float | None:
    """Return the episode's reward, hidden from the agent; None where it is invalid."""
    if branch.last_node is None or (branch.ending is not None and branch.ending.is_error):
        return None
    reward = total(node.outcome.reward for node in branch.last_node.path() if node.outcome is not None)
    return reward.value if isinstance(reward, Scored) else None


def observe_state(state: SearchState) -> SearchObservation:
    """Return what the agent observes where it is to act."""
    return SearchObservation(
        messages=tuple(state.agent.history),
        token_ids=state.agent.context,
        num_turns=state.agent.num_turns,
        is_over=False,
        logprob=_mean_logprob(state.node.path()),
    )


def observe_branch(branch: Branch) -> SearchObservation:
    """Return what the agent observes of its finished episode."""
    turn, path = branch.turns[-1], branch.turns[-1].node.path()
    action = (turn.node.outcome.action.message,) if turn.node.outcome is not None else ()
    sampled = turn.generation.token_ids if turn.generation is not None else ()
    return SearchObservation(
        messages=(*turn.start.agent.history, *action),
        token_ids=turn.start.agent.context + sampled,
        num_turns=sum(node.outcome is not None for node in path),
        is_over=True,
        logprob=_mean_logprob(path),
    )


def _mean_logprob(path: Sequence[PathNode]) -> float:
    sampled = [segment for node in path for segment in node.edge.segments if segment.origin is Origin.POLICY]
    logprobs = [logprob for segment in sampled for logprob in segment.behavior_logprobs or ()]
    return math.fsum(logprobs) / len(logprobs) if logprobs else 0.0
