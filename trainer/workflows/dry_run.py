"""A dry run: build everything, save once, collect one step's groups, measure one micro-batch. No file is left behind.

No weight changes, so what is collected is what the model does before any warm start.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from envgym.core.trajectory import Group, Row, Trajectory
from envgym.core.tree import Tree
from envgym.runtime.event_loop import run_coroutine
from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.checkpoint import TrainState, save_checkpoint
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.memory import StateMemory, measure_memory, state_memory
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.optimizers.base import bytes_here
from envgym.trainer.learner.train_step import FORWARD_SHARE, StepInputs, learning_passes, minibatches
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import CriticCredit, FilterResult
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.rollout.groups import CollectPlan
from envgym.trainer.rollout.settings import RolloutSettings
from envgym.trainer.run import RunContext, credit_groups, learner_turn
from envgym.trainer.workflows.demonstrations import demonstration_sources
from envgym.trainer.workflows.settings import SftSettings
from envgym.trainer.workflows.sft import likelihood_rows, play_demonstrations

PlanMemory = Callable[[Sequence[Tree]], Mapping[str, int]]
"""Returns the bytes on each kind of device, for episodes as long as some trees."""

_NUM_DEMONSTRATIONS = 16
"""Of each phase of a warm start, so many are played: as many as tell whether the agent's limits hold them."""


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
    devices: Mapping[str, int]
    """Device -> bytes that a plan gives it for episodes of this length; empty where there are no formulas."""

    @property
    def bottleneck(self) -> str:
        """The part of a step that takes longer."""
        return "collect" if self.collect_s >= self.learn_s else "learn"

    @property
    def memory(self) -> int:
        """Bytes at the peak of a train step; the sampler's cache not counted."""
        return self.state.total + self.activations

    @property
    def step_s(self) -> float:
        """Wall time of a train step."""
        return self.collect_s + self.learn_s

    def to_json(self) -> dict[str, object]:
        return {
            "memory_bytes": {**asdict(self.state), "activations": self.activations, "total": self.memory},
            "micro_batches": self.num_micro_batches,
            "computed_tokens": self.computed_tokens,
            "seconds": {"collect": self.collect_s, "learn": self.learn_s, "step": self.step_s},
            "bottleneck": self.bottleneck,
            "device_bytes": dict(self.devices),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a dry run found."""

    batch: Batch
    rows: tuple[BatchRow, ...]
    """What was measured: the batch's rows, or those of the dropped groups where the filter dropped all."""
    cost: StepCost | None
    """None where no episode gave a row to measure."""
    demonstrations: tuple[BatchRow, ...]
    """The first row of each phase of the warm start; empty without an `sft` section."""
    steps: int
    """Train steps of the run."""
    is_noise: bool
    """Whether random weights sampled the batch."""
    has_warm_start: bool

    def counts(self) -> dict[str, object]:
        """Return the counts of the collected groups, episodes and rows."""
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
        return self.counts() | (self.cost.to_json() if self.cost is not None else {})


def dry_run(
    context: RunContext,
    plan: CollectPlan,
    sft: SftSettings | None,
    planned_memory: PlanMemory,
    *,
    on_finished: Callable[[Tree], None] | None = None,
) -> DryRun:
    """Save a checkpoint, collect the first step's groups, and measure what training on them takes.

    `planned_memory` returns the bytes of each device of the run, as this process has no policy servers.

    Raises: SettingsError: as `train`. RunError: a checkpoint cannot be saved.
    """
    try_saving(context)
    demonstrations = _demonstrations(context, sft)
    started = time.perf_counter()
    batch = collect_batch(context, plan, on_finished=on_finished)
    seconds = time.perf_counter() - started
    rows = batch.rows or _batch_rows(context, [context.method.shaping(group) for group in batch.groups])
    with learner_turn(context):
        devices = planned_memory([tree for group in batch.groups for tree in group.trees])
        cost = _measure(context, [row.train for row in rows], devices, collect_s=seconds) if rows else None
    return DryRun(
        batch=batch,
        rows=rows,
        cost=cost,
        demonstrations=demonstrations,
        steps=context.run.steps,
        is_noise=context.model_settings.name == "tiny",
        has_warm_start=sft is not None,
    )


def try_saving(context: RunContext) -> None:
    """Save a checkpoint on the file system of a run, and delete it: a run must not fail at its first save.

    Raises: RunError: what cannot be saved, and why.
    """
    with TemporaryDirectory(prefix=".dry-run-", dir=_writable_parent(context.run.path)) as folder:
        save_checkpoint(
            Path(folder),
            state=TrainState(step=0, stats={}),
            tokenizer=context.tokenizer,
            learner=context.learner,
            keep=1,
            parts=context.method.checkpointed_parts(),
        )


def _writable_parent(place: Path) -> Path | None:
    """Return the nearest folder above a run that exists; None, the system's own, if nothing can be written there."""
    parent = next(folder for folder in place.absolute().parents if folder.is_dir())
    return parent if os.access(parent, os.W_OK) else None


def _demonstrations(context: RunContext, sft: SftSettings | None) -> tuple[BatchRow, ...]:
    """Return the first row of each phase of the warm start; a phase without a demonstration has none."""
    rows = []
    phases = [] if sft is None else sft.phases
    for phase, source in zip(phases, demonstration_sources(sft), strict=True):
        num_episodes = min(phase.episodes, _NUM_DEMONSTRATIONS)
        source.check_agent(context.agent)
        playing = play_demonstrations(context, source, num_episodes, lambda *_: None, is_sample=True)
        demonstrations = run_coroutine(playing)
        for episode in demonstrations.imitated[:1]:
            trained = next(row for row in episode.rows if any(row.loss_mask))
            rows.append(BatchRow(episode=episode, row=trained, train=likelihood_rows(episode)[0]))
    return tuple(rows)


def collect_batch(
    context: RunContext, plan: CollectPlan, *, on_finished: Callable[[Tree], None] | None = None
) -> Batch:
    """Collect the first step's groups, filter them, and build the rows with their advantages."""
    groups = run_coroutine(collect_first_step(plan, on_finished=on_finished))
    filtered = context.method.keep_groups(groups)
    return Batch(groups=tuple(groups), filtered=filtered, rows=_batch_rows(context, filtered.kept))


async def collect_first_step(plan: CollectPlan, *, on_finished: Callable[[Tree], None] | None = None) -> list[Group]:
    """Return the groups of the first step, whatever the age that samples may have in training."""
    rollout = RolloutSettings(groups=plan.rollout.groups, group_size=plan.rollout.group_size)
    async with Collector(replace(plan, rollout=rollout)) as collector:
        return (await collector.take(0, stats={}, on_finished=on_finished)).groups


def _batch_rows(context: RunContext, groups: Sequence[Group]) -> tuple[BatchRow, ...]:
    credits, batch = credit_groups(context, groups)
    sources = [(credit.trajectory, row) for credit in credits for row in credit.trajectory.rows if any(row.loss_mask)]
    return tuple(
        BatchRow(episode=episode, row=row, train=train) for (episode, row), train in zip(sources, batch, strict=True)
    )


def backward_largest_micro_batch(learner: Learner, rows: Sequence[TrainRow], objective: Objective) -> int:
    """Accumulate the gradient of the micro-batch that needs the most memory; return its number of tokens.

    Nothing is updated. The caller drops the gradient (`zero_grad`) or reads it.
    """
    inputs = StepInputs.compute(
        rows,
        objective,
        forward=learner.forward,
        critic=learner.critic,
        reference=learner.reference,
        num_minibatches=learner.optim.minibatches if objective.is_coupled else None,
        step=0,
    )
    batches = _micro_batches(learner, inputs.rows, objective)
    indices, batch = max(batches, key=lambda indices_and_batch: indices_and_batch[1].num_tokens)
    with learner.forward.layers():
        inputs.loss_fn(indices)(batch).backward()
    return batch.num_tokens


def _micro_batches(
    learner: Learner, rows: Sequence[TrainRow], objective: Objective
) -> list[tuple[Sequence[int], MicroBatch]]:
    """Return the micro-batches of a pass over the rows, each with the numbers of the rows of its minibatch."""
    return [
        (indices, batch)
        for indices in minibatches(rows, learner.optim.minibatches, whole_groups=objective.is_coupled)
        for batch in learner.micro_batches(rows, indices)
    ]


def _measure(context: RunContext, rows: list[TrainRow], devices: Mapping[str, int], *, collect_s: float) -> StepCost:
    """Run forward and backward of the largest micro-batch twice: for its memory, and warm for its time."""
    learner, optim, objective = context.learner, context.learner.optim, context.method.objective.without_reference
    has_reference = bool(context.method.objective.settings.kl_coef)
    state = state_memory(context.model, optim, reference=has_reference)
    with measure_memory(context.device) as use:
        backward_largest_micro_batch(learner, rows, objective)
    if optim.compile_layers:
        backward_largest_micro_batch(learner, rows, objective)  # compiles
    started = time.perf_counter()
    tokens = backward_largest_micro_batch(learner, rows, objective)
    seconds = time.perf_counter() - started
    learner.zero_grad()
    batches = [batch for _, batch in _micro_batches(learner, rows, objective)]
    computed = sum(batch.num_tokens for batch in batches)
    passes = learning_passes(optim, context.method.objective) + _critic_passes(context)
    memory = state
    if context.critic is not None:
        learner = context.critic.learner
        memory += state_memory(learner.model, learner.optim, reference=False)
    return StepCost(
        state=memory,
        activations=max(use.peak - state.gradients, 0),
        num_micro_batches=len(batches),
        computed_tokens=computed,
        passes=passes,
        collect_s=collect_s,
        learn_s=seconds / tokens * computed * passes,
        devices=devices,
    )


def _critic_passes(context: RunContext) -> float:
    """Return the passes that a critic adds, for values and for its own updates, in passes of the policy."""
    if not isinstance(context.method.credit, CriticCredit):
        return 0.0
    if context.critic is None:
        return FORWARD_SHARE
    size, of_policy = (bytes_here(model.parameters()) for model in (context.critic.learner.model, context.model))
    return size / of_policy * (context.critic.epochs(context.learner.optim) + FORWARD_SHARE)
