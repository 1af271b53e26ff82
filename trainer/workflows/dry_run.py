"""A dry run: build everything, collect one step's groups, measure one micro-batch. Nothing is written.

No weight changes, so what is collected is what the model does before any warm start.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from envgym.core.trajectory import Group, Row, Trajectory
from envgym.core.tree import Tree
from envgym.event_loop import run_coroutine
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.build import RunContext, build_run_context
from envgym.trainer.learner.memory import StateMemory, measure_memory, state_memory
from envgym.trainer.learner.train_step import needs_old_logprobs_pass
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import CriticCredit, FilterResult
from envgym.trainer.sections import RolloutSettings
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.demonstrations import demonstration_sources
from envgym.trainer.workflows.sft import likelihood_rows, play_demonstrations

_NUM_DEMONSTRATIONS = 16
"""Of each phase of a warm start, so many are played: as many as tell whether the agent's limits hold them."""
_FORWARD_SHARE = 1 / 3
"""Of the time of forward and backward together: a backward pass costs twice its forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A row of the batch beside the episode it comes from."""

    episode: Trajectory
    row: Row
    train: TrainRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step would train on."""

    groups: tuple[Group, ...]
    filtered: FilterResult
    rows: tuple[BatchRow, ...]
    """Of the kept groups."""

    @property
    def train_rows(self) -> list[TrainRow]:
        """The rows as the learner reads them."""
        return [row.train for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step of this size takes: measured on one micro-batch, and carried over to the others."""

    state: StateMemory
    activations: int
    """Bytes: the most that forward and backward of the largest micro-batch held beyond weights and gradients."""
    num_micro_batches: int
    computed_tokens: int
    """Over all micro-batches of one pass: shared prefixes once where they are packed, else with padding."""
    passes: float
    """Forward and backward passes over the rows, scoring counted by its share of one."""
    collect_s: float
    learn_s: float

    @property
    def memory(self) -> int:
        """Bytes at the peak of a train step; the sampler's cache not counted."""
        return self.state.total + self.activations

    @property
    def step_s(self) -> float:
        """Wall time of a train step."""
        return self.collect_s + self.learn_s

    def to_json(self) -> dict[str, object]:
        """Return the numbers as plain JSON types."""
        return {
            "memory_bytes": {**asdict(self.state), "activations": self.activations, "total": self.memory},
            "micro_batches": self.num_micro_batches,
            "computed_tokens": self.computed_tokens,
            "seconds": {"collect": self.collect_s, "learn": self.learn_s, "step": self.step_s},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a dry run found."""

    batch: Batch
    shown: tuple[BatchRow, ...]
    """What was measured: the batch's rows, or those of the dropped groups where the filter dropped all."""
    cost: StepCost | None
    """None where no episode gave a row to measure."""
    demonstrations: tuple[BatchRow, ...]
    """The first row of each phase of the warm start; empty without an `sft` section."""

    def counts(self) -> dict[str, object]:
        """Return what was collected, in numbers."""
        groups, rows = self.batch.groups, self.batch.train_rows
        num_episodes = sum(len(group.trajectories) for group in groups)
        rewards = [reward for group in groups for reward in episode_rewards(group)]
        return {
            "groups": len(groups),
            "episodes": num_episodes,
            "invalid": num_episodes - len(rewards),
            "mean_reward": sum(rewards) / len(rewards) if rewards else None,
            "kept_groups": len(self.batch.filtered.kept),
            "dropped_groups": dict(Counter(reason for _, reason in self.batch.filtered.dropped)),
            "rows": len(rows),
            "trained_tokens": sum(sum(row.loss_mask) for row in rows),
        }

    def to_json(self) -> dict[str, object]:
        """Return counts and costs as plain JSON types."""
        return self.counts() | (self.cost.to_json() if self.cost is not None else {})


def dry_run(settings: TrainSettings, *, on_finished: Callable[[Tree], None] | None = None) -> DryRun:
    """Collect the first step's groups and measure what training on them takes.

    Raises: SettingsError, UnknownName: as `train`.
    """
    context = build_run_context(settings)
    demonstrations = _demonstrations(context, settings)
    started = time.perf_counter()
    batch = collect_batch(context, settings, on_finished=on_finished)
    seconds = time.perf_counter() - started
    shown = batch.rows or _batch_rows(context, batch.groups)
    cost = _measure(context, settings, [row.train for row in shown], collect_s=seconds) if shown else None
    return DryRun(batch=batch, shown=shown, cost=cost, demonstrations=demonstrations)


def _demonstrations(context: RunContext, settings: TrainSettings) -> tuple[BatchRow, ...]:
    """Return the first row of each phase of the warm start; a phase without a demonstration has none."""
    rows = []
    phases = [] if settings.sft is None else settings.sft.phases
    for phase, source in zip(phases, demonstration_sources(settings.sft), strict=True):
        num_episodes = min(phase.episodes, _NUM_DEMONSTRATIONS)
        given = run_coroutine(play_demonstrations(context, settings, source, num_episodes, lambda *_: None))
        for episode in given.imitated[:1]:
            trained = next(row for row in episode.rows if any(row.loss_mask))
            rows.append(BatchRow(episode=episode, row=trained, train=likelihood_rows(episode)[0]))
    return tuple(rows)


def collect_batch(
    context: RunContext, settings: TrainSettings, *, on_finished: Callable[[Tree], None] | None = None
) -> Batch:
    """Collect the first step's groups, filter them, and build the rows with their advantages."""
    groups = run_coroutine(collect_first_step(context, settings, on_finished=on_finished))
    filtered = context.method.filter(groups)
    return Batch(groups=tuple(groups), filtered=filtered, rows=_batch_rows(context, filtered.kept))


async def collect_first_step(
    context: RunContext, settings: TrainSettings, *, on_finished: Callable[[Tree], None] | None = None
) -> list[Group]:
    """Return the groups of the first step, whatever the age that samples may have in training."""
    rollout = RolloutSettings(groups=settings.rollout.groups, group_size=settings.rollout.group_size)
    async with context.make_collector(settings, rollout=rollout) as collector:
        return (await collector.take(0, stats={}, on_finished=on_finished)).groups


def _batch_rows(context: RunContext, groups: Sequence[Group]) -> tuple[BatchRow, ...]:
    """Return the rows of some groups beside the episodes that they come from."""
    credits, batch = context.build_batch(groups)
    sources = [(credit.trajectory, row) for credit in credits for row in credit.trajectory.rows if any(row.loss_mask)]
    return tuple(
        BatchRow(episode=episode, row=row, train=train) for (episode, row), train in zip(sources, batch, strict=True)
    )


def _measure(context: RunContext, settings: TrainSettings, rows: list[TrainRow], *, collect_s: float) -> StepCost:
    """Run forward and backward of the largest micro-batch twice: for its memory, and warm for its time."""
    learner, objective = context.learner, context.method.objective.without_reference
    has_reference = bool(settings.objective.kl_coef)
    state = state_memory(context.model, reference=has_reference)
    with measure_memory(context.device) as use:
        learner.backward_largest_micro_batch(rows, objective)
    if settings.optim.compile_layers:
        learner.backward_largest_micro_batch(rows, objective)  # compiles
    started = time.perf_counter()
    tokens = learner.backward_largest_micro_batch(rows, objective)
    seconds = time.perf_counter() - started
    learner.zero_grad()
    batches = learner.micro_batches(rows, range(len(rows)))
    computed = sum(batch.num_tokens for batch in batches)
    has_old = needs_old_logprobs_pass(settings.optim, objective)
    references = has_reference * (1 if has_old else settings.optim.epochs)
    passes = settings.optim.epochs + (has_old + references) * _FORWARD_SHARE + _critic_passes(context)
    held = state
    if context.critic is not None:
        held += state_memory(context.critic.learner.model, reference=False)
    return StepCost(
        state=held,
        activations=max(use.peak - state.gradients, 0),
        num_micro_batches=len(batches),
        computed_tokens=computed,
        passes=passes,
        collect_s=collect_s,
        learn_s=seconds / tokens * computed * passes,
    )


def _critic_passes(context: RunContext) -> float:
    """Return the passes that a critic adds, for values and for its own updates, in passes of the policy."""
    if not isinstance(context.method.credit, CriticCredit):
        return 0.0
    if context.critic is None:
        return _FORWARD_SHARE
    models = (context.critic.learner.model, context.model)
    size, of_policy = (state_memory(model, reference=False).weights for model in models)
    return size / of_policy * (context.critic.epochs(context.learner.optim) + _FORWARD_SHARE)
