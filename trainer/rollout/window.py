"""`stragglers: window`: a step trains the first groups that are finished, of those that were begun longest ago.

With staleness S and P groups a step, (S + 1) P groups are begun. A step takes the P oldest finished ones among its own
P and the `window` that follows them; those that would be older than S in the next step, and are not finished, are
aborted. Whatever leaves, trained, aborted or dropped by the filter, is replaced by exactly one new group, which is
begun with the newest weights: so no token is ever older than S when it trains. Source: the buffer of (S + 1) P slots
with a window is that of engines that sample ahead by groups; here a slot is freed only when its group has trained.

A checkpoint keeps the order of draws: those of the groups that were begun and not taken, and where it goes on. A
resumed run begins these groups first, as old as they were, since its journal may have their turns.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from envgym.core.trajectory import Group
from envgym.trainer.methods.protocols import Filter, TaskRequest
from envgym.trainer.rollout.draws import GroupDraw, load_draws, save_draws
from envgym.trainer.rollout.groups import GroupRollout, GroupRunner, wait_for

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
    draw: GroupDraw
    version: int
    """Of the weights that it was begun with."""

    @property
    def oldest(self) -> int:
        """Version of its oldest token, once it is finished: a turn of the journal may be older than its beginning."""
        nodes = [node for tree in self.rollout.group.trees for node in tree.nodes]
        versions = [segment.policy_version for node in nodes for segment in node.edge.segments]
        return min([self.version, *(version for version in versions if version is not None)])


class GroupWindow:
    """The groups that were begun and not taken, the oldest first. Checkpointed."""

    def __init__(self, runner: GroupRunner) -> None:
        self._runner = runner
        self._slots: list[_Slot] = []
        self._drawn: deque[GroupDraw] = deque()
        """Not begun: of the step whose tasks were drawn last and, in a resumed run, those that were open before."""
        self._next_step = 0
        """For which tasks are drawn next."""

    def __len__(self) -> int:
        """Return how many groups were begun and not taken."""
        return len(self._slots)

    @property
    def num_finished(self) -> int:
        """How many of them are finished."""
        return sum(slot.rollout.is_finished for slot in self._slots)

    async def take(
        self,
        step: int,
        *,
        draw: Callable[[int], Sequence[TaskRequest]],
        report: Callable[[Sequence[GroupRollout]], None] = lambda finished: None,
    ) -> Taken:
        """Wait until a step has its groups, or nothing is left to wait for.

        Args:
            step: train steps done before, which is the version of the weights.
            draw: returns the tasks of a step, of which the curriculum has some for each.
            report: called with the finished groups that the step may take, whenever there may be more of them.

        Raises: the first error of a rollout that could not become an ending.
        """
        plan, settings = self._runner.plan, self._runner.plan.rollout
        steps_left = settings.staleness + 1 if plan.last is None else plan.last - step
        filtered, late = list[GroupRollout](), list[_Slot]()
        while True:
            room = min(settings.staleness + 1, steps_left) * settings.groups
            while len(self._slots) < room:  # as many as have left, and the run still needs
                self._slots.append(self._begin_next(step, draw))
            finished = [slot for slot in self._in_reach() if slot.rollout.is_finished]
            if too_old := [slot for slot in finished if step - slot.oldest > settings.staleness]:
                late += too_old
                self._remove(too_old)
                continue
            report([slot.rollout for slot in finished])
            keys = _kept([slot.rollout for slot in finished], plan.keep_groups)
            if len(keys) < len(finished):  # and then again, with those that replace them
                dropped = [slot for slot in finished if slot.rollout.key not in keys]
                filtered += [slot.rollout for slot in dropped]
                self._remove(dropped)
                continue
            num_seen, target = len(filtered) + len(finished), settings.groups
            has_enough = len(finished) >= target or num_seen >= plan.rounds * target
            if has_enough or not await self._wait(len(finished)):
                break
        slots = finished[: settings.groups]
        self._remove(slots)
        late += [slot for slot in self._slots if step + 1 - slot.version > settings.staleness]
        self._remove(late)
        for slot in late:
            slot.rollout.abort(TOO_OLD)
        await wait_for(slot.rollout for slot in late)
        return Taken([slot.rollout for slot in slots], filtered, [slot.rollout for slot in late])

    def save(self, folder: Path) -> None:
        """Write which groups were begun and not taken, and which come next."""
        begun = [slot.draw._replace(version=slot.version) for slot in self._slots]
        save_draws(folder, [*begun, *self._drawn], next_step=self._next_step)

    def load(self, folder: Path) -> None:
        """Begin with the groups that `save` wrote, before others are drawn."""
        draws, self._next_step = load_draws(folder)
        self._drawn.extend(draws)

    def _begin_next(self, step: int, draw: Callable[[int], Sequence[TaskRequest]]) -> _Slot:
        """Begin the next group of the curriculum's order, which goes on behind the steps that were drawn."""
        if not self._drawn:
            drawn_for = max(step, self._next_step)
            self._drawn.extend(GroupDraw(request, drawn_for, n) for n, request in enumerate(draw(drawn_for)))
            self._next_step = drawn_for + 1
        group_draw = self._drawn.popleft()
        rollout = self._runner.begin(group_draw.request, step=group_draw.step, number=group_draw.number)
        return _Slot(rollout, group_draw, step if group_draw.version is None else group_draw.version)

    def _in_reach(self) -> list[_Slot]:
        settings = self._runner.plan.rollout
        ahead = settings.staleness * settings.groups
        return self._slots[: settings.groups + math.ceil(settings.window * ahead)]

    async def _wait(self, num_finished: int) -> bool:
        """Wait until one more group in reach is finished; return whether there was one to wait for."""
        reach = self._in_reach()
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
    groups: list[Group] = [rollout.group for rollout in rollouts]
    return {group.key for group in keep(groups).kept}
