"""GDPO: every component of the reward is standardised by itself before they are added."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field, PrivateAttr

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Ending, Scored
from envgym.errors import near_names, sentence, unknown_name
from envgym.trainer.methods.credit.outcome import EPSILON, episode_credits, episode_rewards, standardised
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit

_log = logging.getLogger(__name__)
_WHOLE = "reward"
"""Name of the reward where it has no components."""
_WHERE = "credit.weights"


class Gdpo(GroupCredit):
    """Standardise each component in its group, add, standardise over the batch: A = (s - mean s) / (std s + 1e-6).

    s_i = Σ_k w_k z(r_{i,k} | the group), z as in GRPO, r_{i,k} the k-th component of the episode's reward, summed over
    its turns; mean and std (unbiased) are over all episodes of the batch. Rewards that add up alike stay apart where
    their components differ, and a component of small scale is not drowned. What an episode lacks counts 0, as where it
    was cut before the component was paid; where no episode of a step has components, the reward is the only one.
    Source: 2601.05242.
    """

    trains_equal_rewards: ClassVar[bool] = True
    weights: Mapping[str, float] = Field(default_factory=dict)
    """w_k by the component's name; 1 for what is not named."""
    _warned: set[str] = PrivateAttr(default_factory=set)

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode. Raises: UnknownName: a weight that is near a component without one."""
        del context
        components = [[_components(episode) for episode in group.valid] for group in groups]
        names = list(dict.fromkeys(name for of_group in components for parts in of_group for name in parts))
        if names:
            self._check_weights(names, groups)
        else:
            names = [_WHOLE]
            components = [[{_WHOLE: reward} for reward in episode_rewards(group)] for group in groups]
        sums = [self._sums(of_group, names) for of_group in components]
        everything = [value for of_group in sums for value in of_group]
        mean = statistics.fmean(everything) if everything else 0.0
        scale = 1.0 / (statistics.stdev(everything) + EPSILON) if len(everything) > 1 else 0.0
        return [
            credit
            for group, of_group in zip(groups, sums, strict=True)
            for credit in episode_credits(group.valid, [(value - mean) * scale for value in of_group])
        ]

    def _check_weights(self, names: Sequence[str], groups: Sequence[Group]) -> None:
        """Check weights of components that no episode has, unless all episodes were cut. Raises: UnknownName."""
        if all(episode.ending is not Ending.TERMINATED for group in groups for episode in group.valid):
            return
        without_weight = [name for name in names if name not in self.weights]
        for name in [name for name in self.weights if name not in names and name not in self._warned]:
            if near_names(name, without_weight):
                raise unknown_name("reward component", name, without_weight, where=_WHERE)
            must, do = "be one that episodes are paid", "check the name, if the env pays it in every episode"
            text = sentence("component", must, f"{name}, which no episode of this step has", where=_WHERE, do=do)
            _log.warning("%s", text)
            self._warned.add(name)

    def _sums(self, episodes: Sequence[Mapping[str, float]], names: Sequence[str]) -> list[float]:
        """Return Σ_k w_k z(r_{i,k}) of a group's episodes."""
        sums = [0.0] * len(episodes)
        for name in names:
            for number, value in enumerate(standardised([parts.get(name, 0.0) for parts in episodes])):
                sums[number] += self.weights.get(name, 1.0) * value
        return sums


def _components(episode: Trajectory) -> Mapping[str, float]:
    assert isinstance(episode.reward, Scored), "the caller takes valid episodes"
    return episode.reward.components
