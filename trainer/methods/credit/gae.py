"""Generalised advantage estimation, and the episode as a critic sees it: turns of sampled tokens.

Turn ends are data of the tree, never guessed from where a reward is not 0. Observations are no tokens here, so
nothing is carried across them by mistake. Behind the last turn the value is 0, also where a budget cut the episode.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.errors import InvalidInput, sentence
from envgym.settings import Settings
from envgym.trainer.methods.credit.paths import turn_rewards
from envgym.trainer.methods.protocols import CriticCreditResult, TrajectoryCredit, TrajectoryValues


class GaeSettings(Settings):
    """Settings of every GAE method."""

    trains_at_turn_ends: ClassVar[bool] = True
    """Whether the critic learns before the last token of a turn, so that it can value an episode that is over."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Of later rewards: per turn in `gae_turn`, per token in `gae_token` and inside the turns of `gae_bilevel`."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """The paper's lambda: 1 trusts returns alone, 0 the critic alone."""


class CriticTurn(NamedTuple):
    """One turn of an episode with the critic's values."""

    reward: float
    values: tuple[float, ...]
    """Before each sampled token; at least one."""


class TurnEstimate(NamedTuple):
    """Advantages and value targets of one turn, one entry per sampled token."""

    advantages: tuple[float, ...]
    targets: tuple[float | None, ...]


def gae(rewards: Sequence[float], values: Sequence[float], *, discount: float, decay: float) -> list[float]:
    """Return A_k = δ_k + γ λ A_{k+1}, δ_k = r_k + γ V_{k+1} - V_k; V and A after the last are 0.

    Source: 1506.02438. With λ = 1 it is the return less the value; with λ = 0 the temporal difference δ.
    """
    advantages: list[float] = []
    following = 0.0
    nexts = [after for _, after in pairwise([*values, 0.0])]
    for reward, value, after in reversed(list(zip(rewards, values, nexts, strict=True))):
        following = reward + discount * after - value + discount * decay * following
        advantages.append(following)
    return advantages[::-1]


def estimate_credits(
    group: Group,
    values: Sequence[TrajectoryValues],
    estimate: Callable[[Sequence[CriticTurn]], Sequence[TurnEstimate]],
) -> tuple[CriticCreditResult, ...]:
    """Apply a method to every valid episode of a group.

    Raises: InvalidInput: the values do not fit the episodes.
    """
    if len(values) != len(group.valid):
        do = "give the values of every valid episode, in order"
        raise InvalidInput(
            sentence("values", f"be of {len(group.valid)} episodes", len(values), where=group.key, do=do)
        )
    return tuple(
        _estimate_episode(episode, of_path, estimate) for episode, of_path in zip(group.valid, values, strict=True)
    )


def _estimate_episode(
    episode: Trajectory, values: TrajectoryValues, estimate: Callable[[Sequence[CriticTurn]], Sequence[TurnEstimate]]
) -> CriticCreditResult:
    """Cut an episode into turns, estimate, and lay the estimates along its path."""
    if len(values.values) != len(episode.path):
        do = "give one entry per node of trajectory.path"
        got, where = len(values.values), f"tree {episode.tree.id}, leaf {episode.leaf}"
        raise InvalidInput(sentence("values", f"match the path's {len(episode.path)} nodes", got, where=where, do=do))
    of_node = dict(zip(episode.path, values.values, strict=True))
    turns: list[CriticTurn] = []
    for turn, reward in zip(episode.turns, turn_rewards(episode), strict=True):
        values_of_turn = tuple(value for node in turn.nodes for value in of_node[node])
        if values_of_turn:
            turns.append(CriticTurn(reward, values_of_turn))
        elif turns:  # no token was sampled here, so the reward belongs to the turn before
            turns[-1] = turns[-1]._replace(reward=turns[-1].reward + reward)
    estimates = estimate(turns)
    advantages = iter([advantage for turn_estimate in estimates for advantage in turn_estimate.advantages])
    targets = iter([target for turn_estimate in estimates for target in turn_estimate.targets])
    sizes = [len(of_node[node]) for node in episode.path[1:]]
    return CriticCreditResult(
        credit=TrajectoryCredit(
            trajectory=episode,
            advantages=(0.0, *(tuple(next(advantages) for _ in range(size)) for size in sizes)),
        ),
        targets=((), *(tuple(next(targets) for _ in range(size)) for size in sizes)),
    )
