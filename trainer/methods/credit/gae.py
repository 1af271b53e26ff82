"""Generalised advantage estimation over turns, tokens or both; a critic sees an episode as turns of sampled tokens.

Turn ends are data of the tree, never guessed from where a reward is not 0. Observations are no tokens here, so
nothing is carried across them by mistake. Behind the last turn the value is 0, also where a budget cut the episode.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import ClassVar, NamedTuple

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, Trajectory
from envgym.errors import InvalidInput, sentence
from envgym.trainer.methods.credit.baseline_scale import BaselineCredit, Beta, scale_baselines
from envgym.trainer.methods.credit.kl_reward import KL_SCORES, TokenCosts, kl_costs
from envgym.trainer.methods.credit.paths import turn_rewards
from envgym.trainer.methods.credit.reinforce_pp import whitened
from envgym.trainer.methods.protocols import CRITIC_VALUES, CreditContext, TrajectoryCredit, TrajectoryValues
from envgym.trainer.methods.scores import ScoreRequest


class CriticTurn(NamedTuple):
    """One turn of an episode with the critic's values."""

    reward: float
    values: tuple[float, ...]
    """Before each sampled token; at least one."""
    costs: tuple[float, ...] = ()
    """Of a KL term in the reward, for each sampled token; () where there is none."""

    @property
    def paid(self) -> float:
        """What the whole turn pays."""
        return self.reward - math.fsum(self.costs) if self.costs else self.reward


class TurnEstimate(NamedTuple):
    """Advantages and value targets of a turn or of several, one entry per sampled token."""

    advantages: tuple[float, ...]
    targets: tuple[float | None, ...]


class GaeCredit(Settings, ABC):
    """The base of ours: each says only how it estimates the turns of one episode."""

    trains_at_turn_ends: ClassVar[bool] = True
    """Whether the critic learns before the last token of a turn, so that it can value an episode that is over."""
    reads_turn_order: ClassVar[bool] = True
    """Whether a turn's credit depends on the turns after it."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Of later rewards: per turn in `gae_turn`, per token in `gae_token` and inside the turns of `gae_bilevel`."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """The paper's lambda: 1 trusts returns alone, 0 the critic alone."""
    whiten: bool = False
    """Standardise the advantages over all sampled tokens of the step, as `reinforce_pp` does; targets stay."""
    beta: Beta = 1.0
    """Scale of the critic's values in the advantages, not in the targets: a number, or `fitted` per turn to the other
    groups of the step."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Every sampled token is also paid -kl_coef (log π - log π_ref), of policy and reference as the step begins: on the
    token in `gae_token`, else on its turn. 0 computes none."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        return KL_SCORES if self.kl_coef else ()

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return the credit of every valid episode, with the value targets.

        Raises: InvalidInput: the values do not fit the episodes.
        """
        values = [of_episode for of_group in context.scores_of(CRITIC_VALUES, groups) for of_episode in of_group]
        costs = kl_costs(groups, context, self.kl_coef) if self.kl_coef else [None] * len(values)
        episodes = [episode for group in groups for episode in group.valid]
        credits = self._credits(episodes, values, costs)
        if self.beta != 1:
            zeros = [replace(item, values=tuple((0.0,) * len(entry) for entry in item.values)) for item in values]
            returns = self._credits(episodes, zeros, costs)
            pairs = iter([BaselineCredit(*pair) for pair in zip(credits, returns, strict=True)])
            credits = scale_baselines([list(islice(pairs, len(group.valid))) for group in groups], self.beta)
        return whitened(credits, is_unbiased=True) if self.whiten else credits

    def _credits(
        self,
        episodes: Sequence[Trajectory],
        values: Sequence[TrajectoryValues],
        costs: Sequence[TokenCosts | None],
    ) -> list[TrajectoryCredit]:
        return [
            _estimate_episode(*of_episode, self.estimate) for of_episode in zip(episodes, values, costs, strict=True)
        ]

    @abstractmethod
    def estimate(self, turns: Sequence[CriticTurn]) -> Sequence[TurnEstimate]:
        """Return the advantages and targets of an episode's sampled tokens, in order."""


def gae(rewards: Sequence[float], values: Sequence[float], *, discount: float, decay: float) -> list[float]:
    """Return A_k = δ_k + γ λ A_{k+1}, δ_k = r_k + γ V_{k+1} - V_k; V and A after the last are 0.

    Source: 1506.02438. With λ = 1 it is the return less the value; with λ = 0 the temporal difference δ.
    """
    advantages: list[float] = []
    following = after = 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        following = reward + discount * after - value + discount * decay * following
        advantages.append(following)
        after = value
    return advantages[::-1]


def _estimate_episode(
    episode: Trajectory,
    values: TrajectoryValues,
    costs: TokenCosts | None,
    estimate: Callable[[Sequence[CriticTurn]], Sequence[TurnEstimate]],
) -> TrajectoryCredit:
    """Cut an episode into turns, estimate, and lay the estimates along its path."""
    if len(values.values) != len(episode.path):
        do = "give one entry per node of trajectory.path"
        got, where = len(values.values), f"tree {episode.tree.id}, leaf {episode.leaf}"
        raise InvalidInput(sentence("values", f"match the path's {len(episode.path)} nodes", got, where=where, do=do))
    of_node = dict(zip(episode.path, values.values, strict=True))
    costs_of_node = {} if costs is None else dict(zip(episode.path, costs, strict=True))
    turns: list[CriticTurn] = []
    for nodes, reward in zip(episode.turn_nodes, turn_rewards(episode), strict=True):
        values_of_turn = tuple(chain.from_iterable([of_node[node] for node in nodes]))
        if values_of_turn:
            costs_of_turn = tuple(chain.from_iterable([costs_of_node[node] for node in nodes])) if costs else ()
            turns.append(CriticTurn(reward, values_of_turn, costs_of_turn))
        elif turns:  # no token was sampled here, so the reward belongs to the turn before
            turns[-1] = turns[-1]._replace(reward=turns[-1].reward + reward)
    estimates = estimate(turns)
    advantages = chain.from_iterable([estimated.advantages for estimated in estimates])
    targets = chain.from_iterable([estimated.targets for estimated in estimates])
    sizes = [len(of_node[node]) for node in episode.path[1:]]
    return TrajectoryCredit(
        trajectory=episode,
        advantages=(0.0, *[tuple(islice(advantages, size)) for size in sizes]),
        targets=((), *[tuple(islice(targets, size)) for size in sizes]),
    )


class GaeTurn(GaeCredit):
    """Estimate over turns: δ_k = r_k + γ V_{k+1} - V_k, A_k = δ_k + γ λ A_{k+1}, on all tokens of turn k.

    V_k is the value before the turn's first sampled token, and only there does the critic learn A_k + V_k. A turn ends
    where the env replied, whatever it paid. With λ = 1 the gradient is unbiased for any critic.

    Source: 2510.16907 (VAGEN, the form with one value per turn); the estimator is 1506.02438.
    """

    trains_at_turn_ends: ClassVar[bool] = False

    def estimate(self, turns: Sequence[CriticTurn]) -> list[TurnEstimate]:
        rewards = [turn.paid for turn in turns]
        firsts = [turn.values[0] for turn in turns]
        advantages = gae(rewards, firsts, discount=self.discount, decay=self.decay)
        return [
            TurnEstimate((advantage,) * len(turn.values), (advantage + first, *[None] * (len(turn.values) - 1)))
            for turn, first, advantage in zip(turns, firsts, advantages, strict=True)
        ]


class GaeToken(GaeCredit):
    """Estimate over tokens: A_t = δ_t + γ λ A_{t+1}; a turn's reward stands on its last sampled token.

    Observations are skipped: the token after the last one of a turn is the first of the next. Source: 1506.02438.
    """

    def estimate(self, turns: Sequence[CriticTurn]) -> list[TurnEstimate]:
        """Estimate over the tokens of all turns."""
        rewards = [reward for item in turns for reward in _token_rewards(item)]
        values = [value for item in turns for value in item.values]
        return [_of_tokens(turns, gae(rewards, values, discount=self.discount, decay=self.decay))]


def _token_rewards(turn: CriticTurn) -> list[float]:
    """Return the reward of each sampled token of a turn: the turn's reward on the last, less each one's cost."""
    rewards = [*[0.0] * (len(turn.values) - 1), turn.reward]
    return [reward - cost for reward, cost in zip(rewards, turn.costs, strict=True)] if turn.costs else rewards


class GaeBilevel(GaeCredit):
    """Estimate twice: A_k over turns with the values V(e_k) at their last tokens; then over each turn's tokens.

    Inside turn k the last token is paid u_k = A_k + V(e_k) instead of a reward, and nothing follows it. Turn ends are
    data: a turn that paid 0 ends as well (in the authors' code it melts into the next one, and a last turn that paid 0
    is an error). The authors' whitening over the batch is left out. With one token per turn this is `gae_turn`.

    Source: 2510.16907 (VAGEN).
    """

    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Of what later turns pay, per turn."""

    def estimate(self, turns: Sequence[CriticTurn]) -> list[TurnEstimate]:
        """Estimate over turns, then inside each."""
        rewards = [turn.paid for turn in turns]
        lasts = [turn.values[-1] for turn in turns]
        of_turns = gae(rewards, lasts, discount=self.turn_discount, decay=self.decay)
        advantages: list[float] = []
        for turn, advantage, last in zip(turns, of_turns, lasts, strict=True):
            paid = [*[0.0] * (len(turn.values) - 1), advantage + last]
            advantages += gae(paid, turn.values, discount=self.discount, decay=self.decay)
        return [_of_tokens(turns, advantages)]


def _of_tokens(turns: Sequence[CriticTurn], advantages: Sequence[float]) -> TurnEstimate:
    """Return the estimate of all tokens of the turns, each of which has its target: A + V."""
    values = chain.from_iterable([turn.values for turn in turns])
    targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
    return TurnEstimate(tuple(advantages), tuple(targets))
