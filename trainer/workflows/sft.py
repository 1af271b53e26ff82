"""Supervised warm start: the policy gradient with advantage 1 on demonstrations."""

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from envgym.agents.search import Chain
from envgym.core.trajectory import Trajectory
from envgym.errors import SettingsError, sentence
from envgym.progress import OnProgress
from envgym.seeds import derive_seed
from envgym.trainer.batch.rows import TrainRow, train_row
from envgym.trainer.build import RunContext
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import Reinforce
from envgym.trainer.metrics.rollout import rollout_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.sections import ObjectiveSettings, RolloutSettings, SftSettings
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.demonstrations import (
    DemonstrationRequest,
    Demonstrations,
    DemonstrationSource,
    check_lengths,
    demonstration_sources,
)

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
    settings: TrainSettings,
    sft: SftSettings,
    *,
    on_progress: OnProgress,
) -> WarmStart:
    """Train on the demonstrations of every phase.

    Raises: SettingsError: a phase without a demonstration.
    """
    sources = demonstration_sources(sft)
    for source in sources:
        source.check_agent(context.agent)
    done = [
        await _run_phase(context, settings, phase, source, on_progress)
        for phase, source in zip(sft.phases, sources, strict=True)
    ]
    return WarmStart(metrics=done[0][0], losses=[losses for _, losses in done])


async def play_demonstrations(
    context: RunContext,
    settings: TrainSettings,
    source: DemonstrationSource,
    num_episodes: int,
    on_progress: OnProgress,
) -> Demonstrations:
    """Ask a source for the episodes of one phase. Raises: SettingsError: the agent's limits hold none of them."""
    request = DemonstrationRequest(
        num_episodes=num_episodes,
        success_at=settings.evaluation.success_at,
        seed=settings.run.seed,
        agent=context.agent,
        env_sources=context.env_sources,
        curriculum=context.method.curriculum,
        on_progress=on_progress,
    )
    found = await source(request)
    check_lengths(found, settings.agent, where="sft")
    return found


async def _run_phase(
    context: RunContext,
    settings: TrainSettings,
    phase: SftSettings,
    source: DemonstrationSource,
    on_progress: OnProgress,
) -> tuple[Metrics, list[float]]:
    demonstrations = await play_demonstrations(context, settings, source, phase.episodes, on_progress)
    rows = [row for episode in demonstrations.imitated for row in likelihood_rows(episode)]
    if not rows:
        got = f"none of {demonstrations.num_episodes} episodes succeeded"
        do = "check the env's oracle with `envgym check`, or choose another sft.source"
        raise SettingsError(sentence("warm start", "have successful episodes", got, where="sft", do=do))
    num_updates = phase.epochs * -(-len(rows) // phase.batch_size)
    with closing(_learner_of_phase(context, settings, phase, num_updates)) as learner:
        losses, success = await _fit(context, settings, phase, rows, learner, on_progress)
    tenth = _tenth(losses)
    metrics = {
        "sft/episodes": float(demonstrations.num_episodes),
        "sft/updates": float(len(losses)),
        "sft/loss_first": sum(losses[:tenth]) / tenth,
        "sft/loss_last": sum(losses[-tenth:]) / tenth,
        **({} if success is None else {"sft/success": success}),
    }
    return metrics, losses


def _learner_of_phase(context: RunContext, settings: TrainSettings, sft: SftSettings, num_updates: int) -> Learner:
    """Return a learner of the policy with an optimizer of its own, whose rate is that of the phase."""
    optim = settings.optim.model_copy(
        update={
            "lr": sft.lr,
            "warmup_steps": round(sft.warmup_share * num_updates),
            "decay": "cosine" if sft.until_success is None else "constant",
            "minibatches": 1,
            "epochs": 1,
        }
    )
    return context.learner.with_optimizer(optim, num_steps=num_updates, rates=["sft.lr"])


async def _fit(
    context: RunContext,
    settings: TrainSettings,
    sft: SftSettings,
    rows: Sequence[TrainRow],
    learner: Learner,
    on_progress: OnProgress,
) -> tuple[list[float], float | None]:
    """Run the epochs of a phase, or stop where the policy succeeds often enough.

    Returns: the loss of every update, and the success at the last check (None where nothing was checked).
    """
    num_updates = learner.num_steps
    losses: list[float] = []
    success: float | None = None
    checked: Metrics = {}
    for batch in _batches(rows, sft, seed=settings.run.seed):
        losses.append(learner.train_step(batch, LIKELIHOOD, step=len(losses))["loss/policy"])
        tenth = _tenth(losses)
        detail = f"loss {sum(losses[-tenth:]) / tenth:.3g}" + ("" if success is None else f", success {success:.1%}")
        on_progress("warm start", len(losses), num_updates, detail)
        await asyncio.sleep(0)  # an interrupt cancels here, not at the end of the phase
        if sft.until_success is not None and len(losses) % sft.check_every == 0:
            checked = await _check(context, settings, sft, check=len(losses))
            success = checked.get("train/success", 0.0)
            if success >= sft.until_success:
                detail = f"stopped after {len(losses)} updates at success {success:.1%}"
                on_progress("warm start", num_updates, num_updates, detail)
                break
    if success == 0.0:
        _log.warning("the warm start ended at success 0.0%%: %s", _endings(checked))
    return losses, success


def _tenth(losses: Sequence[float]) -> int:
    """Return how many losses are a tenth, at least one."""
    return max(len(losses) // 10, 1)


def _batches(rows: Sequence[TrainRow], sft: SftSettings, *, seed: int) -> Iterator[list[TrainRow]]:
    """Yield the rows of every epoch in an order of its own."""
    for epoch in range(sft.epochs):
        order = list(range(len(rows)))
        random.Random(derive_seed(seed, "sft", epoch)).shuffle(order)
        for start in range(0, len(order), sft.batch_size):
            yield [rows[number] for number in order[start : start + sft.batch_size]]


async def _check(context: RunContext, settings: TrainSettings, sft: SftSettings, *, check: int) -> Metrics:
    """Return the metrics of sampled episodes on train tasks; without success where all of them are invalid."""
    if not context.policy.shares_weights:
        context.update_policy(0)
    collector = context.make_collector(
        settings,
        rollout=RolloutSettings(groups=sft.check_tasks, group_size=1),
        search=Chain(),
        seed=derive_seed(settings.run.seed, "sft check"),
    )
    async with collector:
        collected = await collector.take(check, stats={})
    return rollout_metrics(collected.groups, success_at=settings.evaluation.success_at)


def _endings(checked: Metrics) -> str:
    """Return how the episodes of a check ended, the most frequent ending first."""
    shares = {name.removeprefix("ending/"): share for name, share in checked.items() if name.startswith("ending/")}
    told = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
    return f"its {checked['rollout/episodes']:.0f} episodes of the last check ended as {told}"


def likelihood_rows(episode: Trajectory) -> list[TrainRow]:
    """Return the rows of an episode to imitate, with advantage 1 on every token that trains."""
    return [train_row(row, [float(trains) for trains in row.loss_mask]) for row in episode.rows if any(row.loss_mask)]
