"""`stragglers: window`: a step trains the first groups that are finished, of those that were begun longest ago.

With staleness S and P groups a step, (S + 1) P groups are begun. A step takes the P oldest finished ones among its own
P and the `window` that follows them; those that would be older than S in the next step, and are not finished, are
aborted. Whatever leaves, trained, aborted or dropped by the filter, is replaced by exactly one new group, which is
begun with the newest weights: so no token is ever older than S when it trains. Source: the buffer of (S + 1) P slots
with a window is that of engines that sample ahead by groups; here a slot is freed only when its group has trained.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from envgym.core.trajectory import Group
from envgym.trainer.methods.protocols import Filter, TaskRequest
from envgym.trainer.rollout.groups import GroupRollout, GroupRunner, wait_for
from envgym.trainer.sections import RolloutSettings

TOO_OLD = "too old: it would train on weights that are newer by more than rollout.staleness"


class Taken(NamedTuple):
    """What left the window for one step."""

    trained: list[GroupRollout]
    """Finished, and kept by the filter; fewer than a step has where it kept too few."""
    filtered: list[GroupRollout]
    """Finished, dropped by the filter, and replaced."""
    too_old: list[GroupRollout]
    """Aborted."""


class _Slot(NamedTuple):
    rollout: GroupRollout
    version: int
    """Of the weights that it was begun with."""


class GroupWindow:
    """The groups that were begun and not taken, the oldest first."""

    def __init__(self, runner: GroupRunner) -> None:
        """Begin without a group."""
        self._runner = runner
        self._slots: list[_Slot] = []
        self._drawn: deque[TaskRequest] = deque()
        """Not begun, of the step whose tasks were drawn last."""
        self._drawn_step, self._num_begun = -1, 0

    def __len__(self) -> int:
        """Return how many groups were begun and not taken."""
        return len(self._slots)

    async def take(
        self,
        step: int,
        settings: RolloutSettings,
        keep: Filter,
        *,
        draw: Callable[[int], Sequence[TaskRequest]],
        steps_left: float,
        rounds: int = 1,
    ) -> Taken:
        """Wait until a step has its groups, or nothing is left to wait for.

        Args:
            step: train steps done before, which is the version of the weights.
            settings: how many groups, and how old they may get.
            keep: the filter.
            draw: returns the tasks of a step, of which the curriculum has some for each.
            steps_left: this one included, for which groups are begun.
            rounds: a step makes do with fewer groups when the filter has seen so many times its number.

        Raises: the first error of a rollout that could not become an ending.
        """
        filtered = list[GroupRollout]()
        while True:
            room = min(settings.staleness + 1, steps_left) * settings.groups
            while len(self._slots) < room:  # as many as have left, and the run still needs
                self._slots.append(_Slot(self._begin_next(step, draw), step))
            finished = [slot for slot in self._in_reach(settings) if slot.rollout.is_finished]
            kept = _kept([slot.rollout for slot in finished], keep)
            if len(kept) < len(finished):  # and then again, with those that replace them
                dropped = [slot for slot in finished if slot.rollout.key not in kept]
                filtered += [slot.rollout for slot in dropped]
                self._remove(dropped)
                continue
            num_seen, wanted = len(filtered) + len(finished), settings.groups
            has_enough = len(finished) >= wanted or num_seen >= rounds * wanted
            if has_enough or not await self._wait(settings, len(finished)):
                break
        taken = finished[: settings.groups]
        self._remove(taken)
        late = [slot for slot in self._slots if step + 1 - slot.version > settings.staleness]
        self._remove(late)
        for slot in late:
            slot.rollout.abort(TOO_OLD)
        await wait_for(slot.rollout for slot in late)
        trained, too_old = ([slot.rollout for slot in part] for part in (taken, late))
        return Taken(trained, filtered, too_old)

    def _begin_next(self, step: int, draw: Callable[[int], Sequence[TaskRequest]]) -> GroupRollout:
        """Begin the next group of the curriculum's order, which goes on behind the steps that were drawn."""
        if not self._drawn:
            self._drawn_step, self._num_begun = max(step, self._drawn_step + 1), 0
            self._drawn.extend(draw(self._drawn_step))
        self._num_begun += 1
        return self._runner.begin(self._drawn.popleft(), step=self._drawn_step, number=self._num_begun - 1)

    def _in_reach(self, settings: RolloutSettings) -> list[_Slot]:
        ahead = settings.staleness * settings.groups
        return self._slots[: settings.groups + math.ceil(settings.window * ahead)]

    async def _wait(self, settings: RolloutSettings, num_finished: int) -> bool:
        """Wait until one more group in reach is finished; return whether there was one to wait for."""
        reach = self._in_reach(settings)
        pending = {part for slot in reach for part in slot.rollout.work if not part.done()}
        if not pending:
            return False
        while pending and sum(slot.rollout.is_finished for slot in reach) <= num_finished:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # a group whose trees have ended may be annotated now
            pending |= {part for slot in reach for part in slot.rollout.work if not part.done()}
        await wait_for(slot.rollout for slot in reach if slot.rollout.is_finished)
        return True

    def _remove(self, slots: list[_Slot]) -> None:
        gone = {slot.rollout.key for slot in slots}
        self._slots = [slot for slot in self._slots if slot.rollout.key not in gone]


def _kept(rollouts: list[GroupRollout], keep: Filter) -> set[str]:
    """Return the keys of the groups that the filter keeps."""
    groups: list[Group] = [rollout.group for rollout in rollouts]
    return {group.key for group in keep(groups).kept}
