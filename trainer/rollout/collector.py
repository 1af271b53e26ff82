"""The collector: tasks from the curriculum, groups from the agent loop, as many steps ahead as the samples may be old.

Every seed derives from the run's seed and the names of what it drives. With `rollout.staleness=0` nothing that the
policy served before is reused, so a step can be collected again alone.

The groups of step n are begun no sooner than when step n - staleness is collected, with the weights of then or newer
ones: no sample is older than that when it trains, and no more than staleness + 1 steps' groups are in memory.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from envgym.agents.loop.agent import Agent
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.pool import rare_collections
from envgym.agents.search import RolloutContext, Strategy
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.allocators.base import draw_metrics
from envgym.trainer.methods.protocols import Allocator, Checkpointed, Curriculum, Filter, TaskRequest
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.annotate import AnnotateStage
from envgym.trainer.rollout.draws import TaskDraws
from envgym.trainer.rollout.groups import GroupRollout, GroupRunner, Stats, wait_for
from envgym.trainer.rollout.window import GroupWindow
from envgym.trainer.sections import RolloutSettings
from envgym.trainer.settings import TrainSettings

OnFinished = Callable[[Tree], None]
OnGroups = Callable[[int, int], None]
"""Called with how many groups are finished, and how many are under way."""
STRAGGLER = "a straggler: the step went on without it"


class Collected(NamedTuple):
    """What a step trains on, before the filter."""

    requests: list[TaskRequest]
    groups: list[Group]
    """One for each request; an episode that failed, or was aborted, is in its group."""
    wanted: int
    """How many groups the step may train on."""
    metrics: Metrics

    def common_sampling(self, settings: TrainSettings) -> Sampling | None:
        """Return how all episodes were sampled; None: requests, or an allocator's for more, may say otherwise."""
        is_common = settings.allocator is None and all(request.sampling is None for request in self.requests)
        return settings.sampling.sampling if is_common else None


class _Step:
    """The groups of one step."""

    def __init__(self, number: int, requests: Sequence[TaskRequest]) -> None:
        self.number = number
        self.requests = deque(requests)
        """Not begun."""
        self.groups: list[GroupRollout] = []
        """Begun, in order."""
        self.num_reported = 0
        """Groups whose trees are reported to `on_finished`."""


class Collector:
    """Collects one step after the other; must be closed, in the event loop that it was used in."""

    def __init__(
        self,
        rollout: RolloutContext,
        settings: RolloutSettings,
        *,
        env_sources: Mapping[str, EnvSource],
        tasks: TaskPool,
        curriculum: Curriculum,
        search: Strategy,
        keep_groups: Filter,
        concurrency: int,
        seed: int,
        rounds: int = 1,
        last: int | None = None,
        annotate: AnnotateStage | None = None,
        replay: Replay | None = None,
        allocator: Allocator | None = None,
        weighs_samples: bool = False,
    ) -> None:
        """Get ready; nothing is begun.

        Args:
            rollout: agent, policy and sampling, and the slots of `concurrency`.
            settings: the groups of a step, and how far sampling runs ahead.
            env_sources: of the mixture, by label.
            tasks: theirs, and those that the run adds.
            curriculum: chooses the tasks.
            search: how the trees of a group are grown.
            keep_groups: the filter that decides how many rounds a step needs.
            concurrency: trees under way at a time.
            seed: from which tasks, envs and samples derive.
            rounds: most rounds of a step.
            last: the step after the last one, for which nothing is begun; None: there is none.
            annotate: annotates every group as soon as its trees have ended; None: there are no annotators.
            replay: may change what is sampled; None: nothing does.
            allocator: extends groups whose trees have ended; None: none is.
            weighs_samples: as `Objective` has it; else a request may not ask for another temperature than the run's.
        """
        self._settings, self._rounds, self._keep_groups = settings, rounds, keep_groups
        self._draws = TaskDraws(tasks, curriculum, replay, seed)
        self._policy, self._has_annotators = rollout.policy, annotate is not None
        self._last = math.inf if last is None else last
        self._runner = GroupRunner(
            rollout,
            env_sources,
            tasks,
            search,
            concurrency=concurrency,
            seed=seed,
            annotate=annotate,
            allocator=allocator,
            max_group_size=settings.max_group_size,
            weighs_samples=weighs_samples,
        )
        self._ahead: dict[int, _Step] = {}
        """Steps that were begun and not taken."""
        self._carried: list[GroupRollout] = []
        self._window = GroupWindow(self._runner)
        """Instead of both with `stragglers: window`."""

    async def __aenter__(self) -> Self:
        """Return the collector."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Cancel the groups under way."""
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
        settings = self._settings
        if not settings.overlaps:
            # A resumed run has not sampled what came before.
            self._policy.clear_prefix_cache()
        with rare_collections():
            if settings.stragglers == "window":
                return await self._taken_from_window(step, stats, on_finished, on_groups)
            for number in range(step, step + settings.steps_ahead + 1):
                if number < self._last and number not in self._ahead:
                    self._ahead[number] = self._begun(number, stats)
            if settings.deterministic:
                for later in self._ahead.values():
                    await self._grow(later, on_finished)
            return await self._taken(self._ahead.pop(step), on_finished)

    def change(
        self,
        settings: RolloutSettings,
        *,
        agent: Agent,
        sampling: Sampling,
        curriculum: Curriculum,
        search: Strategy,
        keep_groups: Filter,
        rounds: int,
        weighs_samples: bool,
    ) -> None:
        """Begin the next groups by these, as in `__init__`; groups under way go on as they were begun."""
        self._settings, self._rounds = settings, rounds
        self._draws.curriculum, self._keep_groups = curriculum, keep_groups
        self._runner.change(agent=agent, sampling=sampling, search=search, weighs_samples=weighs_samples)

    def parts(self) -> dict[str, Checkpointed]:
        """Return what a checkpoint holds of this: the window, where there is one; else steps are drawn anew."""
        return {"window": self._window} if self._settings.stragglers == "window" else {}

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._runner.close()

    # ---- a step's groups -----------------------------------------------------------------------------------------

    def _begun(self, number: int, stats: Stats) -> _Step:
        """Draw the tasks of a step, and begin its first round."""
        num_groups, size = _per_round(self._settings) * self._rounds, self._settings.group_size
        step = _Step(number, self._draws.draw(number, stats, num_groups, size))
        self._begin_round(step)
        return step

    def _begin_round(self, step: _Step) -> None:
        for _ in range(min(_per_round(self._settings), len(step.requests))):
            request = step.requests.popleft()
            step.groups.append(self._runner.begin(request, step=step.number, number=len(step.groups)))

    async def _taken_from_window(
        self, step: int, stats: Stats, on_finished: OnFinished | None, on_groups: OnGroups | None
    ) -> Collected:
        """Return a step's groups from the window, and behind them what left it without training."""
        num_groups, reported = self._settings.groups, set[str]()

        def report(finished: Sequence[GroupRollout]) -> None:
            for rollout in finished:
                if on_finished is not None and rollout.key not in reported:
                    for tree in rollout.group.trees:
                        on_finished(tree)
                reported.add(rollout.key)
            if on_groups is not None:
                on_groups(self._window.num_finished, len(self._window) - self._window.num_finished)

        taken = await self._window.take(
            step,
            self._settings,
            self._keep_groups,
            draw=lambda number: self._draws.draw(number, stats, num_groups, self._settings.group_size),
            steps_left=self._last - step,
            rounds=self._rounds,
            report=report,
        )
        return _collected(
            [*taken.trained, *taken.filtered, *taken.too_old],
            wanted=num_groups,
            steps_ahead=len(self._window) / num_groups,
            has_annotators=self._has_annotators,
            replaced=len(taken.filtered),
            too_old=len(taken.too_old),
        )

    async def _taken(self, step: _Step, on_finished: OnFinished | None) -> Collected:
        carried, self._carried = self._carried, []
        await wait_for(carried)
        await self._grow(step, on_finished)
        self._carried = [rollout for rollout in step.groups if not rollout.is_finished]
        return _collected(
            [*carried, *_finished(step.groups)],
            wanted=self._settings.groups + len(carried),
            steps_ahead=len(self._ahead),
            has_annotators=self._has_annotators,
            carried=len(self._carried),
        )

    async def _grow(self, step: _Step, on_finished: OnFinished | None) -> None:
        """Grow rounds until the filter keeps enough; stragglers may be left."""
        while True:
            if on_finished is not None:
                for rollout in step.groups[step.num_reported :]:
                    _report(rollout, on_finished)
                step.num_reported = len(step.groups)
            await _wait_for_round(step, self._settings, self._keep_groups)
            if not step.requests or _has_enough(step.groups, self._settings.groups, self._keep_groups):
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


def _has_enough(groups: Sequence[GroupRollout], wanted: int, keep: Filter) -> bool:
    finished = [rollout.group for rollout in _finished(groups)]
    return len(finished) >= wanted and len(keep(finished).kept) >= wanted


def _collected(
    rollouts: Sequence[GroupRollout], *, wanted: int, steps_ahead: float, has_annotators: bool, **counts: int
) -> Collected:
    groups = [rollout.group for rollout in rollouts]
    return Collected(
        requests=[rollout.request for rollout in rollouts],
        groups=groups,
        wanted=wanted,
        metrics={
            **{f"collect/{name}": float(count) for name, count in counts.items()},
            "collect/steps_ahead": float(steps_ahead),
            **(_annotate_seconds(rollouts) if has_annotators else {}),
            **draw_metrics(groups),
        },
    )


def _per_round(settings: RolloutSettings) -> int:
    """Return how many groups are begun at once."""
    return math.ceil(settings.groups * settings.oversampling)


def _finished(groups: Iterable[GroupRollout]) -> list[GroupRollout]:
    return [rollout for rollout in groups if rollout.is_finished]


def _annotate_seconds(groups: Iterable[GroupRollout]) -> Metrics:
    """Return how long the annotators of a group took, in the mean; nothing where there are none."""
    seconds = [rollout.completion.result().seconds for rollout in groups if rollout.completion is not None]
    return {"annotate/seconds": math.fsum(seconds) / len(seconds)} if seconds else {}


def _report(rollout: GroupRollout, on_finished: OnFinished) -> None:
    """Call `on_finished` with every tree of a group as it is grown, and at once with those that are."""

    def report(tree: "asyncio.Future[Tree]") -> None:
        if not tree.cancelled() and tree.exception() is None:
            on_finished(tree.result())

    rollout.on_tree(report)
