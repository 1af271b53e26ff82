"""The parts of a run, and what is done with several of them at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from envgym.agents.loop.agent import Agent
from envgym.agents.protocols import Policy
from envgym.agents.search import Strategy
from envgym.agents.settings import ModelSettings
from envgym.core.trajectory import Group
from envgym.trainer.batch.build import TrainingBatch, build_batch
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.batch.scores import ComputeScores
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.learner.train_step import SamplesCheck
from envgym.trainer.method import Method
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.metrics.times import StepTimes
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.reference import begin_models, reference_of
from envgym.trainer.models.scores import ScoringModels
from envgym.trainer.models.token_critic import TokenCritic
from envgym.trainer.models.trained import TrainedModel
from envgym.trainer.settings import TrainRunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What was built for one run."""

    run: TrainRunSettings
    model_settings: ModelSettings
    env_sources: dict[str, EnvSource]
    tasks: TaskPool
    """The tasks of the envs, and those that the run adds."""
    method: Method
    model: Any
    """PreTrainedModel or PeftModel."""
    tokenizer: Any
    agent: Agent
    evaluation_search: Strategy
    """Finds the episodes of evaluations."""
    policy: Policy
    """Samples from `model` itself, or from a copy that `update_policy` renews."""
    learner: Learner
    device: torch.device
    is_colocated: bool = False
    """Whether policy and learner use the device in turns."""
    keeps_whole_model: bool = True
    """Whether something reads the weights of `model`; else the learner of several ranks releases them."""
    models: Mapping[str, Model] = field(default_factory=dict)
    """The named models, and the reference of a KL term."""
    probed: Mapping[str, float] = field(default_factory=dict)
    """What annotators measured of their models before the run began."""

    @property
    def critic(self) -> TokenCritic | None:
        """The critic with weights of its own; None: there is none, or it is a head on the policy."""
        return next((model for model in self.models.values() if isinstance(model, TokenCritic)), None)

    @property
    def compute_scores(self) -> ComputeScores:
        """Computes scores of rows, with the policy as it is and the named models."""
        temperature = self.method.objective.temperature
        critic = None if self.critic is None else self.critic.learner
        return ScoringModels(learner=self.learner, models=self.models, temperature=temperature, critic=critic)


def prepare_models(context: RunContext, folder: Path, *, reference_step: int = 0) -> None:
    """Let the named models take up the policy as it is now, or what they kept in a run's `folder` before.

    Raises: SettingsError: the model called `reference` has no module that a KL term can read. RunError: it was reset
        after `reference_step` steps, and is not there.
    """
    begin_models(context.models, folder, reference_step=reference_step)
    open_reference(context)


def open_reference(context: RunContext) -> None:
    """Let the learner read the reference where the objective has a KL term. Raises: SettingsError: it cannot."""
    needs_reference = context.method.objective.settings.kl_coef > 0
    reference = reference_of(context.models, context.learner.forward) if needs_reference else None
    context.learner.set_reference(reference, context.policy.pause)


def update_policy(context: RunContext, version: int) -> None:
    """Let the policy sample from the learner's weights as they are now."""
    if context.policy.shares_weights:
        context.policy.set_version(version)
    else:
        dtype = getattr(torch, context.model_settings.sampler_dtype)
        context.policy.update_weights(context.learner.weights(dtype), version)


@contextmanager
def learner_turn(context: RunContext, times: StepTimes | None = None) -> Iterator[None]:
    """Let the learner use the device for a block, at whose end the policy has its weights.

    A policy that shares the device sleeps meanwhile: it frees its memory, and wakes when the learner has freed what it
    computed with. If the block fails, the policy stays asleep. Without colocation nothing happens.

    Args:
        context: of the run.
        times: measures `sleep` and `wake`; None: they are not measured.
    """
    if not context.is_colocated:
        yield
        return
    times = StepTimes() if times is None else times
    with times.measure("sleep"):
        context.policy.sleep()
    yield
    with times.measure("wake"):
        _free_unused(context.device)
        context.policy.wake()


@contextmanager
def sampler_turn(context: RunContext) -> Iterator[None]:
    """Let the policy use the device for a block within `learner_turn`, where learning looks at samples."""
    if not context.is_colocated:
        yield
        return
    _free_unused(context.device)
    context.policy.wake()
    try:
        yield
    finally:
        context.policy.sleep()


def _free_unused(device: torch.device) -> None:
    """Give memory that torch keeps for later tensors back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def credit_groups(context: RunContext, groups: Sequence[Group], *, step: int = 0) -> TrainingBatch:
    """Credit the episodes of groups as `Method.keep_groups` returned them, and make rows; steps count from 0."""
    method = context.method
    return build_batch(
        groups,
        method.credit,
        once=method.objective.settings.shared_tokens == "once",
        origins=method.objective.origins,
        step=step,
        scores=method.scores,
        compute=context.compute_scores,
        weights=method.weights,
    )


def train_step(
    context: RunContext,
    rows: Sequence[TrainRow],
    *,
    step: int,
    check_samples: SamplesCheck | None = None,
    record: TokenRecord | None = None,
) -> Metrics:
    """Run the updates of one train step on its rows: the policy's, and those of a critic with weights of its own.

    `check_samples` and `record` are as for `Learner.train_step`.

    Raises: InvalidInput: a loss or a gradient is not finite.
    """
    learner, objective, critic = context.learner, context.method.objective, context.critic
    learned = learner.train_step(rows, objective, step=step, check_samples=check_samples, record=record)
    return learned if critic is None else learned | critic.learn(rows, learner.optim, step=step)


def train_models(models: Mapping[str, Model], groups: Sequence[Group], *, step: int) -> Metrics:
    """Let the named models that learn do so from the groups of a step; return their metrics, `models/NAME/...`."""
    learning = {name: model for name, model in models.items() if isinstance(model, TrainedModel)}
    learned = {name: model.train_step(groups, step=step) for name, model in learning.items()}
    return {f"models/{name}/{key}": value for name, metrics in learned.items() for key, value in metrics.items()}
