"""Everything a run needs in one process: model, tokenizer, agent, policy and learner, built from settings."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from envgym.agents.catalog import SEARCH
from envgym.agents.loop.agent import Agent, make_agent
from envgym.agents.models.loading import prepare_device
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.backends import autocast_dtype, build_trained_policy
from envgym.agents.protocols import Policy
from envgym.agents.search import RolloutContext, Strategy
from envgym.agents.search.protocol import TreeStrategy
from envgym.core.trajectory import Group
from envgym.trainer.batch.build import TrainingBatch, build_batch
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.batch.scores import ComputeScores
from envgym.trainer.checks.changes import planned_settings
from envgym.trainer.checks.compatibility import (
    check_critic_stays,
    check_run,
    check_search,
)
from envgym.trainer.env_source import EnvSource, TaskPool, build_env_sources, decontaminate
from envgym.trainer.learner.causal_lm import check_head
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.learner.train_step import SamplesCheck
from envgym.trainer.method import Method, build_method
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from envgym.trainer.methods.protocols import (
    Checkpointed,
    CriticCredit,
)
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import (
    ModelContext,
    build_models,
    check_annotations_are_made,
    check_models,
    probe_models,
)
from envgym.trainer.models.frozen import SnapshotModel
from envgym.trainer.models.opponent import seat_models
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.models.reference import begin_models, reference_of
from envgym.trainer.models.scores import ScoringModels, check_score_models
from envgym.trainer.models.token_critic import TokenCritic
from envgym.trainer.models.trained import TrainedModel
from envgym.trainer.rollout.annotate import AnnotateStage
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.sections import CriticSettings, RolloutSettings
from envgym.trainer.settings import TrainSettings

if TYPE_CHECKING:
    from envgym.trainer.learner.ranks.learner import RankCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The parts of one run."""

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
    """Samples from `model` itself, or from a copy that `sync` renews."""
    learner: Learner
    device: torch.device
    models: Mapping[str, Model] = field(default_factory=dict)
    """The named models, and the reference of a KL term."""
    probed: Mapping[str, float] = field(default_factory=dict)
    """What annotators measured of their models before the run began."""

    @property
    def trained_models(self) -> dict[str, TrainedModel]:
        """The named models that learn beside the policy."""
        return {name: model for name, model in self.models.items() if isinstance(model, TrainedModel)}

    @property
    def critic(self) -> TokenCritic | None:
        """The critic with weights of its own; None: there is none, or it is a head on the policy."""
        return next((model for model in self.models.values() if isinstance(model, TokenCritic)), None)

    def compute_logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Return the learner's log-probs of the scored tokens of rows at temperature 1, nats, while nobody samples."""
        with self.policy.pause():
            return self.learner.compute_logprobs(rows, temperature=1.0).tolist()

    def train_step(
        self,
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
        objective = self.method.objective
        learned = self.learner.train_step(rows, objective, step=step, check_samples=check_samples, record=record)
        return learned if self.critic is None else learned | self.critic.learn(rows, self.learner.optim, step=step)

    def train_models(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Let the named models learn from the groups of a step; return their metrics, `models/NAME/...`."""
        learned = {name: model.train_step(groups, step=step) for name, model in self.trained_models.items()}
        return {f"models/{name}/{key}": value for name, found in learned.items() for key, value in found.items()}

    def checkpointed_parts(self, *, with_tasks: bool) -> dict[str, Checkpointed]:
        """Return what a checkpoint holds of methods and models, and with them the tasks that the run has added."""
        parts = self.method.checkpointed_parts()
        parts |= {f"model_{name}": model for name, model in self.models.items() if isinstance(model, Checkpointed)}
        return parts | ({"tasks": self.tasks} if with_tasks else {})

    def begin_models(self, folder: Path, *, reference_step: int = 0) -> None:
        """Let the named models take up the policy as it is now, or what they kept in a run's `folder` before.

        Raises: SettingsError: the model called `reference` has no module that a KL term can read. RunError: it was
        reset after `reference_step` steps, and is not there.
        """
        begin_models(self.models, folder, reference_step=reference_step)
        self.open_reference()

    def open_reference(self) -> None:
        """Let the learner read the reference where the objective has a KL term. Raises: SettingsError: it cannot."""
        needs_reference = self.method.objective.settings.kl_coef > 0
        reference = reference_of(self.models, self.learner.forward) if needs_reference else None
        self.learner.set_reference(reference, self.policy.pause)

    def update_policy(self, version: int) -> None:
        """Let the policy sample from the learner's weights as they are now."""
        if self.policy.shares_weights:
            self.policy.set_version(version)
        else:
            self.policy.update_weights(merged_weights(self.model), version)

    async def close(self, collector: Collector) -> None:
        """End what still runs: the groups that a collector grows, and the models beside the policy."""
        await collector.close()
        for model in self.models.values():
            await model.close()

    @property
    def compute_scores(self) -> ComputeScores:
        """Computes scores of rows, with the policy as it is and the named models."""
        temperature = self.method.objective.temperature
        critic = None if self.critic is None else self.critic.learner
        return ScoringModels(learner=self.learner, models=self.models, temperature=temperature, critic=critic)

    def build_batch(self, groups: Sequence[Group], *, step: int = 0) -> TrainingBatch:
        """Shape the rewards of kept groups, credit their episodes, where needed with the critic, and make rows.

        Args:
            groups: kept by the filter.
            step: the train step, from 0.
        """
        method = self.method
        return build_batch(
            [method.shaping(group) for group in groups],
            method.credit,
            once=method.objective.settings.shared_tokens == "once",
            origins=method.objective.origins,
            step=step,
            scores=method.scores,
            compute=self.compute_scores,
            weights=method.weights,
        )

    def make_collector(
        self,
        settings: TrainSettings,
        *,
        rollout: RolloutSettings | None = None,
        search: Strategy | None = None,
        seed: int | None = None,
        rounds: int = 1,
        last: int | None = None,
        replay: Replay | None = None,
    ) -> Collector:
        """Return a collector of this run's groups.

        Args:
            settings: of the run.
            rollout: instead of the settings' section.
            search: instead of the method's.
            seed: instead of the run's.
            rounds: as for `Collector`.
            last: as for `Collector`.
            replay: as for `Collector`.
        """
        agent, concurrency = self.agent, settings.engine.concurrency
        sampling = settings.sampling.sampling
        slots = asyncio.Semaphore(concurrency)
        return Collector(
            RolloutContext(agent=agent, policy=self.policy, sampling=sampling, slots=slots),
            rollout or settings.rollout,
            env_sources=self.env_sources,
            tasks=self.tasks,
            curriculum=self.method.curriculum,
            search=search or self.method.search,
            keep_groups=self.method.filter,
            concurrency=concurrency,
            seed=settings.run.seed if seed is None else seed,
            rounds=rounds,
            last=last,
            annotate=self._annotate_stage,
            replay=replay,
            allocator=self.method.allocator,
            weighs_samples=self.method.objective.weighs_samples,
        )

    @property
    def _annotate_stage(self) -> AnnotateStage | None:
        annotators = self.method.annotators
        return AnnotateStage(annotators=annotators, models=self.models) if annotators else None

    def change_collector(self, collector: Collector, settings: TrainSettings) -> None:
        """Let a collector of this run begin its next groups by other settings, and by this method."""
        collector.change(
            settings.rollout,
            agent=self.agent,
            sampling=settings.sampling.sampling,
            curriculum=self.method.curriculum,
            search=self.method.search,
            keep_groups=self.method.filter,
            rounds=settings.resampling.rounds,
            weighs_samples=self.method.objective.weighs_samples,
        )


def build_run_context(
    settings: TrainSettings, *, checkpoint: Path | None = None, ranks: "RankCalls | None" = None
) -> RunContext:
    """Build the parts; cheap checks first, the model last.

    Args:
        settings: of the run.
        checkpoint: take the weights from here instead of from `model.name`.
        ranks: that learn together, of which this is the first; None: this process learns alone.
    """
    method = build_method(settings)
    env_sources = decontaminate(build_env_sources(settings.envs, settings.evaluation), settings.decontamination)
    evaluation_search = SEARCH.build(settings.evaluation.search)
    check_run(method.search, method.credit, method.curriculum, settings, env_sources)
    planned = list(planned_settings(settings, method.controllers))
    requests = list(method.scores)
    for changed in planned:
        changed_method = build_method(changed)
        requests += changed_method.scores
        check_run(changed_method.search, changed_method.credit, changed_method.curriculum, changed, env_sources)
        check_critic_stays(method.credit, changed_method.credit, changed)
    check_search(evaluation_search, env_sources, settings.agent, group_size=None)
    check_models(settings, {f"annotate {name}": annotator for name, annotator in method.annotators.items()})
    readers = {name: getattr(method, name) for name in ("curriculum", "filter", "shaping", "credit")}
    check_annotations_are_made(method.annotators, readers)
    device = prepare_device(settings.engine.device, settings.engine.threads)
    torch.manual_seed(settings.run.seed)
    model, tokenizer = load_model(settings.model, device, checkpoint)
    agent = make_agent(settings.agent, tokenizer)
    check_head(model)
    for search in (method.search, evaluation_search):
        if isinstance(search, TreeStrategy):
            search.check_tokenizer(tokenizer)
    learner = _build_learner(settings, method, model, device, ranks)
    policy = build_trained_policy(
        settings.model, settings.engine, learner_model=model, deterministic=settings.rollout.deterministic
    )
    policy.check_sampling(settings.sampling.sampling)
    if ranks is not None and not policy.shares_weights:
        model.to("cpu")  # it is there to be sent and saved
    parts = ModelContext(model=model, tokenizer=tokenizer, policy=policy, device=device, settings=settings)
    models = build_models(parts)
    has_kl = any(given.objective.kl_coef for given in (settings, *planned))
    if has_kl or any(request.model == REFERENCE for request in requests):
        models.setdefault(REFERENCE, SnapshotModel(parts))
    if has_kl:
        reference_of(models, learner.forward)  # refused now if it cannot be read, not after a warm start
    check_score_models(requests, models)
    env_sources = seat_models(env_sources, models)
    return RunContext(
        env_sources=env_sources,
        tasks=TaskPool(env_sources),
        method=method,
        model=model,
        tokenizer=tokenizer,
        agent=agent,
        evaluation_search=evaluation_search,
        policy=policy,
        learner=learner,
        device=device,
        models=models,
        probed=probe_models(method.annotators, models, [source.tasks for source in env_sources.values()]),
    )


def _build_learner(
    settings: TrainSettings, method: Method, model: nn.Module, device: torch.device, ranks: "RankCalls | None"
) -> Learner:
    """Build the learner of the run, with a critic on its body where the credit reads one."""
    chosen = settings.critic or CriticSettings()
    has_critic = isinstance(method.credit, CriticCredit) and chosen.model is None
    rates = ["optim.lr", "critic.lr"] if has_critic else ["optim.lr"]
    if ranks is not None:
        from envgym.trainer.ranks import lead  # heavy, for few runs

        return lead(ranks, settings, model, has_critic=has_critic, rates=rates)
    return Learner(
        model,
        optim=settings.optim,
        num_steps=settings.run.steps,
        device=device,
        autocast=autocast_dtype(settings.model),
        critic=Critic(model, chosen, settings.optim, device=device) if has_critic else None,
        rates=rates,
    )
