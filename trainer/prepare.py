"""What comes before the loop of a run: its processes, its parts and its directory."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envgym.runs.directory import RunDirectory, file_step
from envgym.runs.files import sole_writer
from envgym.trainer.build import build_run_context
from envgym.trainer.checks.memory import check_memory
from envgym.trainer.checks.preflight import extend_run, nothing_left_of_refused, open_run_directory
from envgym.trainer.launch.endpoints import Endpoints
from envgym.trainer.launch.launch import launched
from envgym.trainer.launch.server_membership import has_servers
from envgym.trainer.launch.workers.checks import check_parts
from envgym.trainer.learner.allocator import freed_memory_kept
from envgym.trainer.learner.checkpoint import newest_checkpoint
from envgym.trainer.method import build_method
from envgym.trainer.models.base import check_annotations_are_made
from envgym.trainer.rollout.journal import TurnJournal, open_journal
from envgym.trainer.run import RunContext, learner_turn
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.demonstration_pool import DemonstrationPool
from envgym.trainer.workflows.demonstrations import DemonstrationSource, demonstration_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """What the loop of a run needs."""

    directory: RunDirectory
    context: RunContext
    warm_sources: Sequence[DemonstrationSource]
    """Of each phase of the warm start that is to come."""
    checkpoint: Path | None = None
    """From which the run goes on; None: it begins."""
    demonstrations: DemonstrationPool | None = None
    journal: TurnJournal | None = None
    endpoints: Endpoints = field(default_factory=Endpoints)
    """The processes beside the run."""


@contextmanager
def prepared(settings: TrainSettings, *, resume: bool) -> Iterator[PreparedRun]:
    """Start the processes of a run, build its parts and open its directory, for a block.

    The precision of the settings must be resolved. Raises: as `train`.
    """
    method = build_method(settings)
    directory = open_run_directory(settings, resume=resume)
    with ExitStack() as stack:
        starts = settings.launch.num_started > 0 or has_servers(settings.engine, settings.envs)
        if directory is not None or starts:
            stack.enter_context(sole_writer(settings.run.path))
        checkpoint = None if directory is None else newest_checkpoint(directory.path)
        endpoints, ranks = stack.enter_context(launched(settings)), None
        if endpoints.meeting is not None:
            from envgym.trainer.launch.ranks import joined  # heavy, for few runs

            engine, timeout_s = endpoints.engine(settings.engine), settings.launch.rank_timeout_s
            ranks = stack.enter_context(joined(engine, endpoints.meeting, timeout_s=timeout_s))
        warm_sources = demonstration_sources(settings.sft if checkpoint is None else None)
        sources = list(warm_sources)
        demonstrations, section, success_at = None, settings.demonstrations, settings.evaluation.success_at
        if section is not None:
            demonstrations = DemonstrationPool(
                section, seed=settings.run.seed, success_at=success_at, curriculum=settings.curriculum
            )
            sources.append(demonstrations.source)
        context = build_run_context(settings, method=method, checkpoint=checkpoint, endpoints=endpoints, ranks=ranks)
        stack.callback(context.policy.close)
        if settings.launch.rollout_workers:
            check_parts(context.env_sources, context.method.search, settings.launch.rollout_workers)
        learners = [context.learner, *([] if context.critic is None else [context.critic.learner])]
        longest, rollout = settings.agent.max_context_tokens, settings.rollout
        tokens_per_step = rollout.groups * rollout.group_size * longest
        with learner_turn(context):
            check_memory(learners, settings.optim, settings.objective, tokens_per_step=tokens_per_step)
        if not context.keeps_whole_model:
            context.learner.release_whole()
        if context.device.type == "cpu":
            stack.enter_context(freed_memory_kept())
        for source in sources:
            source.check_agent(context.agent)
        readers = {f"demonstrations {number}": source for number, source in enumerate(sources)}
        check_annotations_are_made(context.method.annotators, readers)
        if context.method.replay is not None:
            context.method.replay.check_agent(context.agent)
        if directory is None:
            if not starts:
                stack.enter_context(sole_writer(settings.run.path))
            config = settings.model_dump(mode="json")
            directory = RunDirectory.create(settings.run.path, name=settings.run.name, config=config)
            stack.enter_context(nothing_left_of_refused(directory))
        else:
            extend_run(directory, settings, 0 if checkpoint is None else file_step(checkpoint))
            if checkpoint is None:  # it was killed before its first one, and begins again
                directory.forget_after(-1)
        journal = None
        if settings.run.journal:
            # Without a checkpoint there were no weights to go on from.
            version = -1 if checkpoint is None else file_step(checkpoint)
            journal = open_journal(directory, staleness=settings.rollout.staleness, version=version)
            stack.callback(journal.close)
        yield PreparedRun(
            directory=directory,
            context=context,
            checkpoint=checkpoint,
            warm_sources=warm_sources,
            demonstrations=demonstrations,
            journal=journal,
            endpoints=endpoints,
        )
