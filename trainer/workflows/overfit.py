"""Train many updates on one batch: a sanity check that the gradient does what it should.

The mean log-prob of rows with a positive advantage must rise and that of the others fall. Where it does not, masks,
advantages or the learning rate are wrong, and no longer run will tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from envgym.errors import SettingsError
from envgym.runtime.event_loop import run_coroutine
from envgym.runtime.progress import OnProgress
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.learner.learner import Learner
from envgym.trainer.rollout.groups import CollectPlan
from envgym.trainer.run import RunContext, update_policy
from envgym.trainer.workflows.demonstrations import demonstration_sources
from envgym.trainer.workflows.dry_run import collect_batch
from envgym.trainer.workflows.settings import SftSettings
from envgym.trainer.workflows.sft import warm_start


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfitPoint:
    """Where the policy stands on the batch after some updates; means over trained tokens, in nats."""

    updates: int
    surrogate: float
    """-A π/π_sampler: what a step-by-step descent on this batch lowers."""
    logprob_positive: float | None
    """Of tokens with an advantage above 0; None where there is none."""
    logprob_negative: float | None
    """Of tokens with an advantage below 0."""
    ratio_mean: float
    """Mean of policy / sampler."""
    ratio_max: float
    grad_norm: float | None
    """Of the last update; None before the first."""


def overfit(
    context: RunContext,
    plan: CollectPlan,
    updates: int,
    *,
    sft: SftSettings | None,
    on_point: Callable[[OverfitPoint], None],
    on_progress: OnProgress,
) -> list[OverfitPoint]:
    """Warm-start as `sft` says, collect one batch, and train `updates` times on all of it at a constant rate.

    There is no reference model, and nothing is written.

    Raises: SettingsError: no row of the batch has an advantage other than 0.
    """
    if sft is not None:
        sources = demonstration_sources(sft)
        for source in sources:
            source.check_agent(context.agent)
        run_coroutine(warm_start(context, sft, sources, plan, on_progress=on_progress))
        update_policy(context, 0)
    rows = collect_batch(context, plan).train_rows
    if not any(advantage for row in rows for advantage in row.advantages):
        got = f"none among {len(rows)} rows"
        do = "raise rollout.groups, or warm-start with an sft section until some episodes succeed"
        raise SettingsError.of("batch", "hold advantages other than 0", got, where="--overfit-one-batch", do=do)
    constant_rate = {"warmup_steps": 0, "decay": "constant", "minibatches": 1, "epochs": 1}
    optim = context.learner.optim.model_copy(update=constant_rate)
    learner = Learner(
        context.model,
        optim=optim,
        num_steps=updates,
        device=context.device,
        autocast=context.learner.autocast,
        critic=context.learner.critic,
        rates=context.learner.rates,
    )
    objective = context.method.objective.without_reference
    points: list[OverfitPoint] = []
    seen: dict[str, float] = {}
    for update in range(updates + 1):
        points.append(_point(update, seen, rows, learner.compute_logprobs(rows, objective.temperature).tolist()))
        on_point(points[-1])
        if update < updates:
            seen = learner.train_step(rows, objective, step=update)
    return points


def _point(
    update: int, seen: dict[str, float], rows: Sequence[TrainRow], logprobs: Sequence[Sequence[float]]
) -> OverfitPoint:
    tokens = [
        (advantage, now, now - then)
        for row, scored in zip(rows, logprobs, strict=True)
        for advantage, now, then, trains in zip(
            row.advantages, scored[: len(row)], row.behavior_logprobs, row.loss_mask, strict=True
        )
        if trains
    ]
    advantages = torch.tensor([advantage for advantage, _, _ in tokens], dtype=torch.float64)
    ratios = torch.tensor([gap for _, _, gap in tokens], dtype=torch.float64).exp()
    return OverfitPoint(
        updates=update,
        surrogate=-(advantages * ratios).mean().item(),
        logprob_positive=_mean([now for advantage, now, _ in tokens if advantage > 0]),
        logprob_negative=_mean([now for advantage, now, _ in tokens if advantage < 0]),
        ratio_mean=ratios.mean().item(),
        ratio_max=ratios.max().item(),
        grad_norm=seen.get("optim/grad_norm"),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
