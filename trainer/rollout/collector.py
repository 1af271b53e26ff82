"""The collector: tasks from the curriculum, groups from the agent loop, as many steps ahead as the samples may be old.

Every seed derives from the run's seed and the names of what it drives. With `rollout.staleness=0` nothing that the
policy served before is reused, so a step can be collected again alone.

The groups of step n are begun no sooner than when step n - staleness is collected, with the weights of then or newer
ones: no sample is older than that when it trains, and no more than staleness + 1 steps' groups are in memory.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

from envgym.agents.protocols import Sampling
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.runtime.garbage import rare_collections
from envgym.trainer.methods.allocators.base import draw_metrics
from envgym.trainer.methods.protocols import Allocator, Checkpointed, Filter, TaskRequest
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.draws import StepDraws, TaskDraws
from envgym.trainer.rollout.groups import CollectPlan, GroupRollout, GroupRunner, Stats, wait_for
from envgym.trainer.rollout.settings import RolloutSettings
from envgym.trainer.rollout.window import GroupWindow

OnFinished = Callable[[Tree], None]
OnGroups = Callable[[int, int], None]
"""Called with how many groups are finished, and how many are under way."""
STRAGGLER = "a straggler: the step went on without it"


class Collected(NamedTuple):
    """What a step trains on, before the filter."""

    requests: list[TaskRequest]
    groups: list[Group]
    """One for each request; an episode that failed, or was aborted, is in its group."""
    target: int
    """How many groups the step may train on."""
    metrics: Metrics

    def common_sampling(self, sampling: Sampling, allocator: Allocator | None) -> Sampling | None:
        """How all episodes were sampled, that of the run; None: requests, or an allocator's, may name another."""
        is_common = allocator is None and all(request.sampling is None for request in self.requests)
        return sampling if is_common else None


class _Step:
    def __init__(self, number: int, draws: StepDraws) -> None:
        self.number, self.per_round = number, draws.per_round
        self.requests = deque(draws.requests)
        """Not begun."""
        self.groups: list[GroupRollout] = []
        """Begun, in order."""
        self.num_reported = 0
        """Groups whose trees are reported to `on_finished`."""


class Collector:
    """Collects one step after the other; must be closed, in the event loop that it was used in."""

    def __init__(self, plan: CollectPlan) -> None:
        """Get ready; nothing is begun."""
        self.draws = TaskDraws(plan.tasks, plan.curriculum, plan.replay, plan.seed)
        """A checkpoint keeps them where they have a state."""
        self._plan, self._runner = plan, GroupRunner(plan)
        self._ahead: dict[int, _Step] = {}
        """Steps that were begun and not taken."""
        self._carried: list[GroupRollout] = []
        self._window = GroupWindow(self._runner)
        """Instead of both with `stragglers: window`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def take(
        self, step: int, *, stats: Stats, on_finished: OnFinished | None = None, on_groups: OnGroups | None = None
    ) -> Collected:
        """Return the groups of the step after `step` steps, in the curriculum's order, and begin those ahead.

        Rounds of groups follow each other until the filter keeps as many as a step trains on, or the rounds are used
        up. The tasks of all rounds are drawn at once, so which they are does not depend on what is kept.

        Args:
            step: train steps done before.
            stats: what training has seen of each task.
            on_finished: called with every tree that is grown while this waits; with a window, group by group.
            on_groups: called with a window alone, as groups finish.
        """
        settings = self._plan.rollout
        if not settings.overlaps:
            # A resumed run has not sampled what came before.
            self._plan.policy.clear_prefix_cache()
        with rare_collections(leaves_cycles=self._plan.agent.settings.program is not None):
            if settings.stragglers == "window":
                return await self._taken_from_window(step, stats, on_finished, on_groups)
            end = step + settings.steps_ahead + 1
            for number in range(step, end if self._plan.last is None else min(end, self._plan.last)):
                if number not in self._ahead:
                    self._ahead[number] = self._begun(number, stats)
            if settings.deterministic:
                for later in self._ahead.values():
                    await self._grow(later, on_finished)
            self.draws.forget(step)
            return await self._taken(self._ahead.pop(step), on_finished)

    def change(self, plan: CollectPlan) -> None:
        """Begin the next groups by another plan; groups under way go on as they were begun."""
        self._plan = self._runner.plan = plan
        self.draws.curriculum = plan.curriculum

    def parts(self) -> dict[str, Checkpointed]:
        """Return the parts that a checkpoint holds in addition to the draws: the window, if there is one."""
        return {"window": self._window} if self._plan.rollout.stragglers == "window" else {}

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._runner.close()

    # ---- a step's groups -----------------------------------------------------------------------------------------

    def _begun(self, number: int, stats: Stats) -> _Step:
        plan, rollout = self._plan, self._plan.rollout
        per_round, size = math.ceil(rollout.groups * rollout.oversampling), rollout.group_size
        draws = self.draws.draw(number, stats, per_round=per_round, rounds=plan.rounds, group_size=size)
        step = _Step(number, draws)
        self._begin_round(step)
        return step

    def _begin_round(self, step: _Step) -> None:
        for _ in range(min(step.per_round, len(step.requests))):
            request = step.requests.popleft()
            step.groups.append(self._runner.begin(request, step=step.number, number=len(step.groups)))

    async def _taken_from_window(
        self, step: int, stats: Stats, on_finished: OnFinished | None, on_groups: OnGroups | None
    ) -> Collected:
        """Return a step's groups from the window, and behind them what left it without training."""
        num_groups, size, reported = self._plan.rollout.groups, self._plan.rollout.group_size, set[str]()

        def report(finished: Sequence[GroupRollout]) -> None:
            for rollout in finished:
                if on_finished is not None and rollout.key not in reported:
                    for tree in rollout.group.trees:
                        on_finished(tree)
                reported.add(rollout.key)
            if on_groups is not None:
                on_groups(self._window.num_finished, len(self._window) - self._window.num_finished)

        step_groups = await self._window.take(
            step,
            draw=lambda n: self.draws.draw(n, stats, per_round=num_groups, group_size=size, keeps=False).requests,
            report=report,
        )
        return _collected(
            [*step_groups.trained, *step_groups.filtered, *step_groups.too_old],
            target=num_groups,
            steps_ahead=len(self._window) / num_groups,
            has_annotators=self._plan.annotate is not None,
            replaced=len(step_groups.filtered),
            too_old=len(step_groups.too_old),
        )

    async def _taken(self, step: _Step, on_finished: OnFinished | None) -> Collected:
        carried, self._carried = self._carried, []
        await wait_for(carried)
        await self._grow(step, on_finished)
        self._carried = [rollout for rollout in step.groups if not rollout.is_finished]
        return _collected(
            [*carried, *_finished(step.groups)],
            target=self._plan.rollout.groups + len(carried),
            steps_ahead=len(self._ahead),
            has_annotators=self._plan.annotate is not None,
            carried=len(self._carried),
        )

    async def _grow(self, step: _Step, on_finished: OnFinished | None) -> None:
        """Grow rounds until the filter keeps enough; stragglers may be left."""
        settings, keep = self._plan.rollout, self._plan.keep_groups
        while True:
            if on_finished is not None:
                for rollout in step.groups[step.num_reported :]:
                    _report(rollout, on_finished)
                step.num_reported = len(step.groups)
            await _wait_for_round(step, settings, keep)
            if not step.requests or _has_enough(step.groups, settings.groups, keep):
                return
            self._begin_round(step)


async def _wait_for_round(step: _Step, settings: RolloutSettings, keep: Filter) -> None:
    """Wait for a round's end, or until only stragglers are left, and abort those or leave them."""
    trees = [pending.tree for rollout in step.groups for pending in rollout.trees]
    when = asyncio.ALL_COMPLETED if settings.stragglers == "wait" else asyncio.FIRST_COMPLETED
    pending = {part for rollout in step.groups for part in rollout.work if not part.done()}
    await wait_for(_finished(step.groups))
    while pending:
        _, pending = await asyncio.wait(pending, return_when=when)
        await wait_for(_finished(step.groups))
        num_ended = sum(tree not in pending for tree in trees)
        is_annotating = any(rollout.is_annotating for rollout in step.groups)
        has_its_share = num_ended >= settings.min_finished_share * len(trees) and not is_annotating
        if has_its_share or _has_enough(step.groups, settings.groups, keep):
            break
    if pending and settings.stragglers == "abort":
        for rollout in step.groups:
            rollout.abort(STRAGGLER)
        await wait_for(step.groups)


def _has_enough(groups: Sequence[GroupRollout], target: int, keep: Filter) -> bool:
    finished = [rollout.group for rollout in _finished(groups)]
    return len(finished) >= target and len(keep(finished).kept) >= target


def _collected(
    rollouts: Sequence[GroupRollout], *, target: int, steps_ahead: float, has_annotators: bool, **counts: int
) -> Collected:
    groups = [rollout.group for rollout in rollouts]
    return Collected(
        requests=[rollout.request for rollout in rollouts],
        groups=groups,
        target=target,
        metrics={
            **{f"collect/{name}": float(count) for name, count in counts.items()},
            "collect/steps_ahead": float(steps_ahead),
            **(_annotate_seconds(rollouts) if has_annotators else {}),
            **draw_metrics(groups),
        },
    )


def _finished(groups: Iterable[GroupRollout]) -> list[GroupRollout]:
    return [rollout for rollout in groups if rollout.is_finished]


def _annotate_seconds(groups: Iterable[GroupRollout]) -> Metrics:
    seconds = [rollout.completion.result().seconds for rollout in groups if rollout.completion is not None]
    return {"annotate/seconds": math.fsum(seconds) / len(seconds)} if seconds else {}


def _report(rollout: GroupRollout, on_finished: OnFinished) -> None:
    """Call `on_finished` with every tree of a group as it is grown, and at once with those that are."""

    def report(tree: "asyncio.Future[Tree]") -> None:
        if not tree.cancelled() and tree.exception() is None:
            on_finished(tree.result())

    rollout.on_tree(report)
