"""Everything a run needs in one process: model, tokenizer, agent, policy and learner, built from settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from envgym.agents.loop.agent import make_agent
from envgym.agents.models.loading import prepare_device
from envgym.agents.policies.backends import autocast_dtype, build_trained_policy
from envgym.agents.protocols import Policy
from envgym.agents.search import Strategy
from envgym.agents.search.protocol import SEARCH, TreeStrategy
from envgym.errors import SettingsError
from envgym.trainer.checks.changes import planned_settings
from envgym.trainer.checks.compatibility import check_critic_stays
from envgym.trainer.checks.environments import (
    check_run,
    check_search,
    check_task_inputs,
    check_wrapper_inputs,
    warn_of_idle_choices,
    warn_of_program_turns,
)
from envgym.trainer.env_source import EnvSource, TaskPool, build_env_sources, decontaminate
from envgym.trainer.launch.endpoints import Endpoints
from envgym.trainer.learner.causal_lm import check_head
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import CriticSettings
from envgym.trainer.method import Method, build_method, changed_method
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from envgym.trainer.methods.protocols import (
    CriticCredit,
)
from envgym.trainer.methods.scores import ScoreRequest
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
from envgym.trainer.models.reference import reference_of
from envgym.trainer.models.scores import check_score_models
from envgym.trainer.rollout.annotate import AnnotateStage
from envgym.trainer.rollout.groups import CollectPlan
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings

if TYPE_CHECKING:
    from envgym.trainer.learner.ranks.learner import RankCalls

_ALONE = Endpoints()


def build_run_context(
    settings: TrainSettings,
    *,
    method: Method | None = None,
    checkpoint: Path | None = None,
    endpoints: Endpoints = _ALONE,
    ranks: "RankCalls | None" = None,
) -> RunContext:
    """Build the parts; cheap checks first, the model last.

    Args:
        settings: of the run.
        method: of these settings; None: it is built, too.
        checkpoint: take the weights from here instead of from `model.name`.
        endpoints: where the processes beside this one serve.
        ranks: that learn together, of which this is the first; None: this process learns alone.
    """
    method = build_method(settings) if method is None else method
    env_sources = build_env_sources(settings.envs, settings.evaluation, servers=endpoints.env_servers)
    env_sources = decontaminate(env_sources, settings.decontamination)
    evaluation_search = SEARCH.build(settings.evaluation.search)
    planned = list(planned_settings(settings, method.controllers))
    requests = _check_choices(method, evaluation_search, settings, planned, env_sources)
    engine = endpoints.engine(settings.engine)
    device = prepare_device(engine.device, engine.threads)
    if engine.colocate:
        check_colocation(device, has_ranks=ranks is not None)
    settings = settings.model_copy(update={"model": settings.model.on(device.type)})
    torch.manual_seed(settings.run.seed)
    # The learner ranks cut the model from main memory; rank 0 needs the whole on its device only where it reads it.
    model, tokenizer = load_model(settings.model, device if ranks is None else torch.device("cpu"), checkpoint)
    agent = make_agent(settings.agent, tokenizer)
    check_head(model)
    for search in (method.search, evaluation_search):
        if isinstance(search, TreeStrategy):
            search.check_tokenizer(tokenizer)
    learner = _build_learner(settings, method, model, device, ranks)
    policy = build_trained_policy(
        settings.model,
        engine,
        learner_model=model,
        deterministic=settings.rollout.deterministic,
        endpoints=endpoints.policy,
    )
    policy.check_sampling(settings.sampling.sampling)
    is_read = policy.shares_weights or bool(settings.models or requests or method.annotators or method.controllers)
    # The learner ranks cut a KL reference from main memory, so that for it alone no GPU has a whole model.
    whole_device = device if ranks is None or is_read else torch.device("cpu")
    parts = model_context(settings, model=model, tokenizer=tokenizer, policy=policy, device=whole_device)
    models = build_models(settings.models, parts)
    has_kl = any(item.objective.kl_coef for item in (settings, *planned))
    if has_kl or any(request.model == REFERENCE for request in requests):
        models.setdefault(REFERENCE, SnapshotModel(parts))
    if has_kl:
        reference_of(models, learner.forward)  # refused now if it cannot be read, not after a warm start
    check_score_models(requests, models)
    env_sources = seat_models(env_sources, models)
    keeps_whole_model = ranks is None or policy.shares_weights or bool(models) or bool(method.controllers)
    if keeps_whole_model:
        model.to(whole_device)
    return RunContext(
        run=settings.run,
        model_settings=settings.model,
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
        is_colocated=engine.colocate,
        keeps_whole_model=keeps_whole_model,
        models=models,
        probed=probe_models(method.annotators, models, [source.tasks for source in env_sources.values()]),
    )


def check_colocation(device: torch.device, *, has_ranks: bool) -> None:
    """Check that learner and engine can use a device in turns. Raises: SettingsError: they cannot."""
    do = "leave engine.colocate out: without a GPU both are in memory at once"
    must = "be cuda with engine.colocate"
    SettingsError.unless(device.type == "cuda", "engine.device", must, device.type, where="engine", do=do)
    do = "start it without torchrun, or sample with policy servers"
    must = "learn in one process with engine.colocate"
    SettingsError.unless(not has_ranks, "the run", must, "several ranks", where="engine", do=do)


def model_context(
    settings: TrainSettings, *, model: nn.Module, tokenizer: object, policy: Policy, device: torch.device
) -> ModelContext:
    """Return the parts and the sections that the named models of a run may share."""
    return ModelContext(
        model=model,
        tokenizer=tokenizer,
        policy=policy,
        device=device,
        run=settings.run,
        model_settings=settings.model.on(device.type),
        agent=settings.agent,
        sampling=settings.sampling,
        staleness=settings.rollout.staleness,
        optim=settings.optim,
        critic=settings.critic or CriticSettings(),
        objective=settings.objective,
        correction=settings.correction,
    )


def collect_plan(context: RunContext, settings: TrainSettings) -> CollectPlan:
    """Return how a run collects the groups of a single step; one that trains also has rounds, a replay and an end."""
    method = context.method
    annotate = AnnotateStage(annotators=method.annotators, models=context.models) if method.annotators else None
    return CollectPlan(
        rollout=settings.rollout,
        env_sources=context.env_sources,
        tasks=context.tasks,
        agent=context.agent,
        policy=context.policy,
        sampling=settings.sampling.sampling,
        curriculum=method.curriculum,
        search=method.search,
        keep_groups=method.keep_groups,
        concurrency=settings.engine.concurrency,
        seed=settings.run.seed,
        annotate=annotate,
        allocator=method.allocator,
        weighs_samples=method.objective.weighs_samples,
    )


def changed_run_context(context: RunContext, before: TrainSettings, after: TrainSettings) -> RunContext:
    """Return a run's parts after a change of settings, which the learner follows from now on.

    A method whose choice did not change stays the object that it was; one that keeps a state and gets other settings
    goes on with its state.

    Raises: SettingsError: the settings do not suit the run.
    """
    method = changed_method(context.method, before, after)
    check_score_models(method.scores, context.models)
    check_run(method, context.env_sources, after.agent, after.rollout.group_size)
    if isinstance(method.search, TreeStrategy):
        method.search.check_tokenizer(context.tokenizer)
    context.learner.change_optim(after.optim)
    return replace(context, method=method, agent=replace(context.agent, settings=after.agent))


def _check_choices(
    method: Method,
    evaluation_search: Strategy,
    settings: TrainSettings,
    planned: Sequence[TrainSettings],
    env_sources: Mapping[str, EnvSource],
) -> list[ScoreRequest]:
    """Check that the choices of a run, and of the settings that its controllers plan, fit together and its envs.

    Returns: the scores that the methods request.

    Raises: SettingsError, InvalidInput: two choices, or a choice and an env, do not fit.
    """
    check_run(method, env_sources, settings.agent, settings.rollout.group_size)
    check_task_inputs(method.task_readers, env_sources)
    check_wrapper_inputs(env_sources)
    requests = list(method.scores)
    for changed in planned:
        planned_method = build_method(changed, warns=False)
        requests += planned_method.scores
        check_run(planned_method, env_sources, changed.agent, changed.rollout.group_size)
        check_task_inputs(planned_method.task_readers, env_sources)
        check_critic_stays(method.credit, planned_method.credit, changed.credit.name)
    check_search(evaluation_search, env_sources, settings.agent, group_size=None)
    check_models(settings.models, {f"annotate {name}": annotator for name, annotator in method.annotators.items()})
    readers = {name: getattr(method, name) for name in ("curriculum", "filter", "shaping", "credit")}
    check_annotations_are_made(method.annotators, readers)
    if settings.demonstrations is None:  # those may read annotations, too
        warn_of_idle_choices(method.curriculum, method.annotators, readers.values(), env_sources)
    warn_of_program_turns(method.credit, settings.credit.name, settings.agent)
    return requests


def _build_learner(
    settings: TrainSettings, method: Method, model: nn.Module, device: torch.device, ranks: "RankCalls | None"
) -> Learner:
    critic_settings = settings.critic or CriticSettings()
    has_critic = isinstance(method.credit, CriticCredit) and critic_settings.model is None
    rates = ["optim.lr", "critic.lr"] if has_critic else ["optim.lr"]
    if ranks is not None:
        from envgym.trainer.launch.ranks import LearnerSections, lead  # heavy, for few runs

        critic = critic_settings if has_critic else None
        sections = LearnerSections(settings.run, settings.model, settings.optim, critic)
        return lead(ranks, settings.model_dump(mode="json"), model, sections, rates=rates)
    return Learner(
        model,
        optim=settings.optim,
        num_steps=settings.run.steps,
        device=device,
        autocast=autocast_dtype(settings.model),
        critic=Critic(model, critic_settings, settings.optim, device=device) if has_critic else None,
        rates=rates,
    )
