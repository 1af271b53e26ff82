"""Prefix-RFT's rollouts: beside a group, episodes that go on from the prefix of a demonstration of its task."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from envgym.core.segments import Origin
from envgym.core.task_needs import TaskNeed
from envgym.core.trajectory import Group, StartState, Trajectory, trajectories
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.seeds import generator
from envgym.trainer.methods.allocators.base import is_success
from envgym.trainer.methods.curricula.r3 import states_of
from envgym.trainer.methods.protocols import GroupSource, TaskRequest
from envgym.trainer.methods.replay.recorded import open_recorded, train_trees
from envgym.trainer.methods.requirements import Choices, Fault


class PrefixRftAllocator(GroupSource):
    """Add `prefixed` episodes to a group, which begin after a share of the turns of a demonstration of the task.

    The group compares them with the episodes that begin as usual, so that their advantage says what the prefix is
    worth. The prefix has the origin DEMONSTRATION: the term `prefix_rft` with `origins: [DEMONSTRATION]` trains it.
    It has round(share T) of T turns, at least 1 and at most T - 1. The share is drawn for each group from
    U(low, `first`); low goes from `first` to `last` along half a cosine of `decay` train steps. Demonstrations are the
    first success of each task in `run`.

    Source: 2507.01679 (Prefix-RFT: one prefix beside seven episodes, of U(low, 95 %) of the tokens, where low goes from
    95 % to 5 %).
    Deviation: prefixes are whole turns.
    """

    needs_start_states: ClassVar[bool] = True
    starts_in_demonstrations: ClassVar[bool] = True
    run: str
    """Directory of a run of the same agent and model that saved its train episodes."""
    prefixed: int = Field(default=1, ge=1)
    """Episodes that begin after a prefix, in addition to `rollout.group_size`."""
    first: float = Field(default=0.95, gt=0, le=1)
    """Largest share of a demonstration's turns, and the only one at the first step."""
    last: float = Field(default=0.05, gt=0, le=1)
    """Least share of a demonstration's turns after `decay` steps."""
    decay: int = Field(default=500, ge=1)
    """Train steps over which the least share falls."""
    threshold: float = 0.5
    """An episode is a demonstration when its reward is above this."""
    _states: dict[str, list[StartState]] = PrivateAttr(default_factory=dict)
    """Task key -> the states inside its demonstration, in order."""

    def model_post_init(self, context: Any, /) -> None:  # pydantic's own signature
        """Read the demonstrations. Raises: RunError, SettingsError: the run has none of several turns."""
        super().model_post_init(context)
        for tree in train_trees(open_recorded(self.run, where="allocator prefix_rft")):
            successes = (episode for episode in trajectories(tree) if is_success(episode, self.threshold))
            states = [episode_states for episode in successes if (episode_states := _demonstrated_states(episode))]
            if states:
                self._states.setdefault(tree.task_key, states[0])
        must, do = (
            "hold successes of at least two turns",
            "name a run of such episodes, or lower allocator.threshold",
        )
        SettingsError.unless(self._states, "run", must, "none", where=f"allocator prefix_rft, {self.run}", do=do)

    def task_needs(self) -> Sequence[TaskNeed]:
        do = "set allocator.run to a run of the same tasks that succeeded at times"
        return [TaskNeed(key="demonstration", holder=None, read=lambda task: task.key in self._states, do=do)]

    def least_share(self, step: int) -> float:
        """Return the least share of a demonstration's turns after so many train steps."""
        passed = min(step / self.decay, 1.0)
        return self.last + (self.first - self.last) * (1 + math.cos(math.pi * passed)) / 2

    def requires(self, choices: Choices) -> Fault | None:
        """Require a term on the tokens of the prefixes, which train nothing without it."""
        is_read = any(Origin.DEMONSTRATION in term.origins for term in choices.terms)
        must, do = "be used with a term of origins [DEMONSTRATION]", "add one with loss prefix_rft to objective.terms"
        return Fault.unless(is_read, "allocator prefix_rft", must, "none", do)

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return the episodes that begin after a prefix, once, where the task has a demonstration."""
        assert request.task is not None, "an allocator is given the task"
        states = self._states.get(request.task.key, [])
        if round > 0 or request.start is not None or not states:
            return None
        low, draw = self.least_share(step), float(generator("prefix_rft", group.key).random())
        num_turns = num_prefix_turns(low + (self.first - low) * draw, len(states) + 1)
        return replace(request, group_size=self.prefixed, start=states[num_turns - 1])

    def finish(self, request: TaskRequest, group: Group) -> Group:
        del request
        return group


def num_prefix_turns(share: float, num_turns: int) -> int:
    """Return round(share T), at least 1 and at most T - 1. Example: 0.5 of 4 turns are 2, and 0.95 of 4 are 3."""
    return min(max(int(share * num_turns + 0.5), 1), num_turns - 1)


def _demonstrated_states(episode: Trajectory) -> list[StartState]:
    """Return the states inside an episode, as those of a demonstration."""
    tree = replace(episode.tree, source=Source.DEMONSTRATION)
    return states_of(replace(episode, tree=tree))
