"""Fit a value to a policy that stays as it is: what its episodes on train tasks earn from each token on.

The result is a run directory of its own whose checkpoint holds a copy of the model with a critic on it, both trained
on the returns alone; `envgym.trainer.workflows.critic_value:critic:DIR` reads it. The policy's own run is only read.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.runs.files import sole_writer
from envgym.runtime.event_loop import run_coroutine
from envgym.seeds import derive_seed
from envgym.trainer.batch.build import build_batch
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.batch.scores import ComputeScores
from envgym.trainer.checks.preflight import check_invalid
from envgym.trainer.learner.checkpoint import TrainState, load_value_head, require_checkpoint, save_checkpoint
from envgym.trainer.learner.critic import PaddedValueTargets
from envgym.trainer.learner.learner import schedule
from envgym.trainer.learner.value_updates import value_update
from envgym.trainer.methods.protocols import VALUES
from envgym.trainer.methods.scores import POLICY_MODEL, Quantity
from envgym.trainer.metrics.update import Metrics, UpdateMetrics
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.rollout.groups import CollectPlan
from envgym.trainer.run import RunContext
from envgym.trainer.workflows.dry_run import collect_first_step

HELD_BACK = 8
"""The groups of one task in so many are held back from the fit, to measure it on tasks that it never saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFit:
    """The result of a fit."""

    directory: Path
    metrics: Metrics
    """Of the tasks that were held back: `critic/explained_variance`, and the means of values and returns."""


def fit_value(
    context: RunContext,
    plan: CollectPlan,
    config: Mapping[str, Any],
    *,
    before: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ValueFit:
    """Sample episodes, fit a value to their returns, and write a run.

    Args:
        context: of the fit, with the weights of the policy's newest checkpoint.
        plan: of its groups.
        config: all settings of the fit, for its run directory.
        before: run directory of a fit that this one goes on from; None: it begins with the policy's weights.
        on_progress: called with a phase, what is done of it, and of how much.

    Raises: SettingsError, RunError: settings or directories that do not fit; nothing has been written then.
    """
    critic = context.learner.critic
    if critic is None or critic.settings.detach:
        do = "leave credit and critic.detach as they are"
        raise SettingsError.of("critic", "train the model that it reads", "others", where="value", do=do)
    groups = _collect(context, plan, on_progress)
    if before is not None:
        checkpoint = require_checkpoint(before)
        context.model.load_state_dict(load_model(context.model_settings, context.device, checkpoint)[0].state_dict())
        load_value_head(checkpoint, critic)
    run = context.run
    held_back, learned = split_by_task(groups, seed=run.seed)
    with sole_writer(run.path):
        _fit(context, _rows(context, learned, _silent), on_progress)
        judged = _rows(context, held_back, context.compute_scores)
        metrics = PaddedValueTargets.of_rows(judged, dtype=torch.float64, device=context.device).metrics()
        directory = RunDirectory.create(run.path, name=run.name, config=config)
        directory.append_metrics({"step": 1, **metrics})
        directory.write_episodes(1, episode_rows([tree for group in groups for tree in group.trees], step=1))
        save_checkpoint(
            directory.checkpoints,
            state=TrainState(step=1, stats={}),
            tokenizer=context.tokenizer,
            learner=context.learner,
            keep=1,
        )
    return ValueFit(directory=directory.path, metrics=metrics)


def _collect(context: RunContext, plan: CollectPlan, on_progress: Callable[[str, int, int], None]) -> list[Group]:
    total = plan.rollout.groups * plan.rollout.group_size
    done = 0

    def count(tree: Tree) -> None:
        nonlocal done
        done += 1
        on_progress("collect", done, total)

    groups = run_coroutine(collect_first_step(plan, on_finished=count))
    check_invalid(groups, limit=context.run.max_invalid_rate, step=0)
    return groups


def split_by_task(groups: Sequence[Group], *, seed: int) -> tuple[list[Group], list[Group]]:
    """Return the groups of the tasks that are held back, drawn at random, and those of all other tasks.

    Raises: SettingsError: there are fewer than two tasks.
    """
    tasks = list(dict.fromkeys(group.trees[0].task_key for group in groups))
    do = "fit on envs with more train tasks"
    SettingsError.unless(len(tasks) >= 2, "groups", "be of at least 2 tasks", len(tasks), where="value", do=do)
    held_back = set(random.Random(derive_seed(seed, "value")).sample(tasks, max(len(tasks) // HELD_BACK, 1)))
    return (
        [group for group in groups if group.trees[0].task_key in held_back],
        [group for group in groups if group.trees[0].task_key not in held_back],
    )


def _rows(context: RunContext, groups: Sequence[Group], compute: ComputeScores) -> list[TrainRow]:
    return build_batch(groups, context.method.credit, once=False, scores=[VALUES], compute=compute).rows


def _silent(
    rows: Sequence[TrainRow], quantities: Mapping[str, Collection[Quantity]]
) -> dict[tuple[str, Quantity], list[tuple[float, ...]]]:
    return {(POLICY_MODEL, "values"): [(0.0,) * len(row) for row in rows]}


def _fit(context: RunContext, rows: Sequence[TrainRow], on_progress: Callable[[str, int, int], None]) -> None:
    """Train model and critic on the rows' value targets, in a new order in every epoch."""
    optim, learner = context.learner.optim, context.learner
    value_targets = PaddedValueTargets.of_rows(rows, dtype=learner.forward.dtype, device=context.device)
    num_updates = optim.epochs * optim.minibatches
    for epoch in range(optim.epochs):
        order = random.Random(derive_seed(context.run.seed, "value", epoch)).sample(range(len(rows)), len(rows))
        for number in range(optim.minibatches):
            update = epoch * optim.minibatches + number
            factor = schedule(optim, update, num_updates)
            if indices := order[number :: optim.minibatches]:
                value_update(learner, rows, indices, value_targets, factor=factor, metrics=UpdateMetrics())
            on_progress("fit", update + 1, num_updates)
