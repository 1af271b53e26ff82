"""GiGPO: an episode against its group, and every turn against the turns that began in the same state."""

from itertools import islice
from typing import ClassVar, Literal

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.methods.credit.outcome import centred, episode_credits, episode_rewards, standardised
from envgym.trainer.methods.credit.paths import discounted_returns, turn_credit, turn_rewards
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit

State = tuple[int, ...] | str
"""What a turn began with: the prompt's tokens, or the last observation."""


class Gigpo(GroupCredit):
    """Compare at anchor states: A_{i,t} = z(r_i | group) + ω z(R_{i,t} | turns of the group in the same state).

    R_{i,t} = Σ_{k >= t} γ^{k-t} r_k. A turn's state is the observation that it answers (the prompt, at first); a state
    visited once adds 0. States are compared within one group, thus never across tasks. z is centring, or
    standardising where `norm` is `mean_std`. With γ = 1, ω = 0 and no norm, this is Dr. GRPO.

    Source: 2505.10978. Deviation: the penalty for invalid actions belongs to the env's rubric.
    """

    reads_turn_order: ClassVar[bool] = True
    discount: float = Field(default=0.95, ge=0, le=1)
    """Of rewards to come, per turn."""
    step_weight: float = Field(default=1.0, ge=0)
    """ω: weight of the second term."""
    norm: Literal["mean", "mean_std"] = "mean"
    """Divide by the spread, too?"""
    pooling: Literal["trajectory", "step"] = "trajectory"
    """What the first term's mean counts: every episode once (the paper), or once per turn (the authors' code, in which
    long episodes weigh more)."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode; a group of one gets 0."""
        norm = centred if self.norm == "mean" else standardised
        episodes, rewards = group.valid, episode_rewards(group)
        if len(episodes) < 2:
            return episode_credits(episodes, [0.0] * len(episodes))
        counts = [len(episode.outcomes) if self.pooling == "step" else 1 for episode in episodes]
        pooled = iter(norm([reward for reward, count in zip(rewards, counts, strict=True) for _ in range(count)]))
        advantages: list[list[float]] = []
        visits: dict[State, list[tuple[int, int, float]]] = {}
        for number, (episode, count) in enumerate(zip(episodes, counts, strict=True)):
            turns = len(episode.outcomes)
            advantages.append((list(islice(pooled, count)) * turns)[:turns])
            returns = discounted_returns(turn_rewards(episode), self.discount)
            for turn, (state, value) in enumerate(zip(turn_states(episode), returns, strict=True)):
                visits.setdefault(state, []).append((number, turn, value))
        for members in visits.values():
            for (number, turn, _), advantage in zip(members, norm([value for _, _, value in members]), strict=True):
                advantages[number][turn] += self.step_weight * advantage
        return tuple(turn_credit(episode, of_turns) for episode, of_turns in zip(episodes, advantages, strict=True))


def turn_states(episode: Trajectory) -> list[State]:
    """Return the state that each turn began with; an env whose observation hides its state merges states."""
    prompt = tuple(token for segment in episode.tree.nodes[0].edge.segments for token in segment.token_ids)
    observations = [outcome.observation for outcome in episode.outcomes[:-1] if outcome is not None]
    states: list[State] = [prompt, *map(str, observations)]
    return states[: len(episode.outcomes)]
