"""GDPO: every component of the reward is standardised by itself before they are added."""

import statistics
from collections.abc import Mapping, Sequence

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Scored
from envgym.errors import check_known
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import EPSILON, episode_credits, standardised
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit


class Gdpo(Settings):
    """Standardise each component in its group, add, standardise over the batch: A = (s - mean s) / (std s + 1e-6).

    s_i = Σ_k w_k z(r_{i,k} | the group), z as in GRPO, r_{i,k} the k-th component of the episode's reward, summed over
    its turns; mean and std (unbiased) are over all episodes of the batch. Rewards that add up alike stay apart where
    their components differ, and a component of small scale is not drowned. Where no episode has components, the reward
    is the only one; what an episode lacks counts 0. Source: 2601.05242.
    """

    weights: Mapping[str, float] = Field(default_factory=dict)
    """w_k by the component's name; 1 for what is not named."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode. Raises: UnknownName: a weight for what no episode has."""
        del context
        components = [[reward_components(episode) for episode in group.valid] for group in groups]
        names = list(dict.fromkeys(name for of_group in components for parts in of_group for name in parts))
        for name in self.weights if names else ():
            check_known("reward component", name, names, where="credit.weights")
        sums = [self._sums(of_group, names) for of_group in components]
        everything = [value for of_group in sums for value in of_group]
        mean = statistics.fmean(everything) if everything else 0.0
        scale = 1.0 / (statistics.stdev(everything) + EPSILON) if len(everything) > 1 else 0.0
        return [
            credit
            for group, of_group in zip(groups, sums, strict=True)
            for credit in episode_credits(group.valid, [(value - mean) * scale for value in of_group])
        ]

    def _sums(self, episodes: Sequence[Mapping[str, float]], names: Sequence[str]) -> list[float]:
        """Return Σ_k w_k z(r_{i,k}) of a group's episodes."""
        sums = [0.0] * len(episodes)
        for name in names:
            for number, value in enumerate(standardised([parts.get(name, 0.0) for parts in episodes])):
                sums[number] += self.weights.get(name, 1.0) * value
        return sums


def reward_components(episode: Trajectory) -> Mapping[str, float]:
    """Return the components of an episode's reward; where it has none, the reward as the component `reward`."""
    reward = episode.reward
    assert isinstance(reward, Scored), "the caller takes valid episodes"
    return reward.components or {"reward": reward.value}
