"""Annotated values as rewards: of a judge, a process-reward model, or the probability of a reference."""

from dataclasses import replace
from typing import Literal

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import ZERO, Ending, Invalid, Reward, Scored
from envgym.trainer.methods.annotators.base import episode_value, turn_values, why_missing
from envgym.trainer.methods.requirements import Choices, Fault
from envgym.trainer.methods.shaping.rewards import with_rewards


class Annotated(Settings):
    """Add coef · v to the reward, v an episode's annotated value at its end, or each turn's at the turn.

    With `instead` the env's rewards are left out. An episode that lacks a value has an unknown reward, never a zero: it
    becomes invalid (ERROR_PARTY) and does not train.
    """

    annotation: str = "judge"
    """Name of the annotations; also the reward's component."""
    level: Literal["episode", "turn"] = "episode"
    """Which annotations are read."""
    coef: float = 1.0
    """Weight of the values."""
    instead: bool = False
    """Whether the values stand in place of the env's rewards."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require, if the values replace the env's rewards, that no env's rewards choose groups or episodes."""
        if not self.instead:
            return None
        if getattr(choices.filter, "rewards", "shaped") == "env":
            must = "be shaped with shaping.instead=true, whose values replace the env's rewards"
            return Fault("filter.rewards", must, "env", "set filter.rewards=shaped")
        if choices.allocator is not None:  # allocators run before annotators
            must = "be null with shaping.instead=true, because it chooses episodes by the env's rewards"
            return Fault("allocator", must, choices.names["allocator"], "set allocator=null, or shaping.instead=false")
        if getattr(choices.replay, "reads_env_rewards", False):
            must = "be null with shaping.instead=true, because it keeps episodes by the env's rewards"
            return Fault("replay", must, choices.names["replay"], "set replay=null, or shaping.instead=false")
        return None

    def __call__(self, group: Group) -> Group:
        return replace(group, trees=tuple(map(self._shaped, group.trees)))

    def _shaped(self, tree: Tree) -> Tree:
        extras: dict[int, float] = {}
        rewards: dict[int, Reward] = {}
        for episode in (item for item in trajectories(tree) if item.is_valid):
            values = self._values(episode)
            extras |= values or {}
            if values is None:
                reason = why_missing(episode, self.annotation, self.level)
                rewards[episode.leaf] = Invalid(cause=Ending.ERROR_PARTY, reason=reason)
        for index, node in enumerate(tree.nodes):
            reward = node.outcome.reward if node.outcome is not None else ZERO
            changes = index in extras or (self.instead and node.outcome is not None)
            if isinstance(reward, Scored) and changes and index not in rewards:
                rewards[index] = self._paid(reward, extras.get(index))
        return with_rewards(tree, rewards)

    def _values(self, episode: Trajectory) -> dict[int, float] | None:
        if self.level == "episode":
            value = episode_value(episode, self.annotation)
            return None if value is None else {episode.leaf: value}
        values = turn_values(episode, self.annotation)
        return None if values is None else {t.nodes[-1]: v for t, v in zip(episode.turns, values, strict=True)}

    def _paid(self, reward: Scored, value: float | None) -> Scored:
        paid = Scored(value=0.0) if self.instead else reward
        if value is None:
            return paid
        extra = self.coef * value
        return Scored(value=paid.value + extra, components={**paid.components, self.annotation: extra})
