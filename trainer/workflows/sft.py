"""Supervised warm start: the policy gradient with advantage 1 on demonstrations."""

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from envgym.agents.search import Chain
from envgym.core.trajectory import Trajectory
from envgym.errors import SettingsError
from envgym.runtime.progress import OnProgress
from envgym.seeds import derive_seed
from envgym.trainer.batch.rows import TrainRow, train_row
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import ObjectiveSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import Reinforce
from envgym.trainer.metrics.rollout import rollout_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.rollout.groups import CollectPlan
from envgym.trainer.rollout.settings import RolloutSettings
from envgym.trainer.run import RunContext, sampler_turn, update_policy
from envgym.trainer.workflows.demonstrations import (
    DemonstrationRequest,
    Demonstrations,
    DemonstrationSource,
    check_lengths,
)
from envgym.trainer.workflows.settings import SftSettings

_log = logging.getLogger(__name__)

LIKELIHOOD = Objective(loss=Reinforce(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)
"""-A log pi with A = 1, averaged over tokens: the negative log-likelihood."""


class WarmStart(NamedTuple):
    """What came of a warm start."""

    metrics: Metrics
    """Of the first phase, with the mean loss in its first and last tenth."""
    losses: list[list[float]]
    """Of every update, phase by phase."""


async def warm_start(
    context: RunContext,
    sft: SftSettings,
    sources: Sequence[DemonstrationSource],
    plan: CollectPlan,
    *,
    on_progress: OnProgress,
) -> WarmStart:
    """Train on the demonstrations of every phase; by `plan` episodes are sampled where a phase ends with success.

    `sources` are those of the phases, whose agents have been checked.

    Raises: SettingsError: a phase without a demonstration.
    """
    done = [
        await _run_phase(context, phase, source, plan, on_progress)
        for phase, source in zip(sft.phases, sources, strict=True)
    ]
    return WarmStart(metrics=done[0][0], losses=[losses for _, losses in done])


async def play_demonstrations(
    context: RunContext,
    source: DemonstrationSource,
    num_episodes: int,
    on_progress: OnProgress,
    *,
    is_sample: bool = False,
) -> Demonstrations:
    """Ask a source for the episodes of one phase. Raises: SettingsError: the agent's limits hold none of them."""
    request = DemonstrationRequest(
        num_episodes=num_episodes,
        success_at=context.method.success_at,
        seed=context.run.seed,
        agent=context.agent,
        env_sources=context.env_sources,
        curriculum=context.method.curriculum,
        on_progress=on_progress,
        is_sample=is_sample,
    )
    demonstrations = await source(request)
    check_lengths(demonstrations, context.agent.settings, where="sft")
    return demonstrations


async def _run_phase(
    context: RunContext,
    phase: SftSettings,
    source: DemonstrationSource,
    plan: CollectPlan,
    on_progress: OnProgress,
) -> tuple[Metrics, list[float]]:
    demonstrations = await play_demonstrations(context, source, phase.episodes, on_progress)
    rows = [row for episode in demonstrations.imitated for row in likelihood_rows(episode)]
    if not rows:
        got = f"none of {demonstrations.num_episodes} episodes succeeded"
        do = "check the env's oracle with `envgym check`, or choose another sft.source"
        raise SettingsError.of("warm start", "have successful episodes", got, where="sft", do=do)
    num_updates = phase.epochs * -(-len(rows) // phase.batch_size)
    with closing(_learner_of_phase(context.learner, phase, num_updates)) as learner:
        losses, success = await _fit(context, phase, rows, learner, plan, on_progress)
    tenth = _tenth(losses)
    metrics = {
        "sft/episodes": float(demonstrations.num_episodes),
        "sft/updates": float(len(losses)),
        "sft/loss_first": sum(losses[:tenth]) / tenth,
        "sft/loss_last": sum(losses[-tenth:]) / tenth,
        **({} if success is None else {"sft/success": success}),
    }
    return metrics, losses


def _learner_of_phase(learner: Learner, sft: SftSettings, num_updates: int) -> Learner:
    optim = learner.optim.model_copy(
        update={
            "lr": sft.lr,
            "warmup_steps": round(sft.warmup_share * num_updates),
            "decay": "cosine" if sft.until_success is None else "constant",
            "minibatches": 1,
            "epochs": 1,
        }
    )
    return learner.with_optimizer(optim, num_steps=num_updates, rates=["sft.lr"])


async def _fit(
    context: RunContext,
    sft: SftSettings,
    rows: Sequence[TrainRow],
    learner: Learner,
    plan: CollectPlan,
    on_progress: OnProgress,
) -> tuple[list[float], float | None]:
    """Run the epochs of a phase, or stop where the policy succeeds often enough.

    Returns: the loss of every update, and the success at the last check (None where nothing was checked).
    """
    num_updates = learner.num_steps
    losses: list[float] = []
    success: float | None = None
    checked: Metrics = {}
    for batch in _batches(rows, sft, seed=plan.seed):
        losses.append(learner.train_step(batch, LIKELIHOOD, step=len(losses))["loss/policy"])
        tenth = _tenth(losses)
        detail = f"loss {sum(losses[-tenth:]) / tenth:.3g}" + ("" if success is None else f", success {success:.1%}")
        on_progress("warm start", len(losses), num_updates, detail)
        await asyncio.sleep(0)  # an interrupt cancels here, not at the end of the phase
        if sft.until_success is not None and len(losses) % sft.check_every == 0:
            checked = await _check(context, sft, plan, check=len(losses))
            success = checked.get("train/success", 0.0)
            if success >= sft.until_success:
                detail = f"stopped after {len(losses)} updates at success {success:.1%}"
                on_progress("warm start", num_updates, num_updates, detail)
                break
    if success == 0.0:
        _log.warning("the warm start ended at success 0.0%%: %s", _endings(checked))
    return losses, success


def _tenth(losses: Sequence[float]) -> int:
    return max(len(losses) // 10, 1)


def _batches(rows: Sequence[TrainRow], sft: SftSettings, *, seed: int) -> Iterator[list[TrainRow]]:
    for epoch in range(sft.epochs):
        order = list(range(len(rows)))
        random.Random(derive_seed(seed, "sft", epoch)).shuffle(order)
        for start in range(0, len(order), sft.batch_size):
            yield [rows[number] for number in order[start : start + sft.batch_size]]


async def _check(context: RunContext, sft: SftSettings, plan: CollectPlan, *, check: int) -> Metrics:
    """Return the metrics of sampled episodes on train tasks; without success where all of them are invalid."""
    if not context.policy.shares_weights:
        update_policy(context, 0)
    rollout, seed = RolloutSettings(groups=sft.check_tasks, group_size=1), derive_seed(plan.seed, "sft check")
    with sampler_turn(context):
        async with Collector(replace(plan, rollout=rollout, search=Chain(), seed=seed)) as collector:
            collected = await collector.take(check, stats={})
    return rollout_metrics(collected.groups, success_at=context.method.success_at)


def _endings(checked: Metrics) -> str:
    shares = {name.removeprefix("ending/"): share for name, share in checked.items() if name.startswith("ending/")}
    text = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
    return f"its {checked['rollout/episodes']:.0f} episodes of the last check ended as {text}"


def likelihood_rows(episode: Trajectory) -> list[TrainRow]:
    """Return the rows of an episode to imitate, with advantage 1 on every token that trains."""
    return [train_row(row, [float(trains) for trains in row.loss_mask]) for row in episode.rows if any(row.loss_mask)]
