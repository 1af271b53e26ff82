"""The training loop: warm start, evaluate, then collect, filter, credit, learn, record; and resume where it stopped.

Step numbers count from 1; what is recorded at step n was made by it, and a checkpoint at n holds what n steps gave.
"""

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from envgym.agents.evaluation.play import EvalRecord
from envgym.agents.models.loading import describe_device
from envgym.core.trajectory import Group
from envgym.core.tree import Source
from envgym.errors import RunError, SettingsError
from envgym.event_loop import Runner, make_runner
from envgym.files import sole_writer
from envgym.report.data import ComparisonData
from envgym.report.from_run import comparisons_of_run, write_run_report
from envgym.runs import RunDirectory, file_step
from envgym.trainer.batch.build import TrainingBatch
from envgym.trainer.build import RunContext, build_run_context
from envgym.trainer.checks.mask_audit import AuditedPolicy, MaskAudit
from envgym.trainer.checks.memory import check_memory
from envgym.trainer.checks.preflight import open_run_directory
from envgym.trainer.checks.weight_canary import TEXT, WeightCanary
from envgym.trainer.launch import launched
from envgym.trainer.learner.allocator import freed_memory_kept
from envgym.trainer.learner.checkpoint import (
    TrainState,
    drop_old_references,
    has_part,
    load_parts,
    load_state,
    newest_checkpoint,
    save_checkpoint,
)
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.method import build_method
from envgym.trainer.methods.protocols import Checkpointed
from envgym.trainer.metrics.callbacks import COLLECT, LEARN, Callback, Callbacks, EpisodeCounter, TimeKeeper
from envgym.trainer.metrics.failures import SurvivedFailures
from envgym.trainer.metrics.rollout import replay_metrics
from envgym.trainer.metrics.times import StepTimes, peak_memory_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import check_annotations_are_made
from envgym.trainer.rollout.collector import Collected, Collector
from envgym.trainer.rollout.groups import Stats, updated_stats
from envgym.trainer.rollout.journal import TurnJournal, open_journal
from envgym.trainer.server_membership import has_servers
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.control import RunControl
from envgym.trainer.workflows.demonstration_pool import DemonstrationPool
from envgym.trainer.workflows.demonstrations import demonstration_sources
from envgym.trainer.workflows.evaluations import Evaluations
from envgym.trainer.workflows.sft import warm_start
from envgym.trainer.workflows.step_end import check_groups, observe_step, step_metrics, write_step
from envgym.wall_time import WallClock


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The results of a run."""

    directory: Path
    report: Path
    steps: int
    stopped: str | None
    """Why a controller ended the run before its last step; None: it did not."""
    evaluations: tuple[EvalRecord, ...]
    comparisons: tuple[ComparisonData, ...]
    """What changed from the first evaluation to the last, paired by task, for every label that has two."""

    def __repr__(self) -> str:
        """Return directory, steps and what changed, a line each."""
        lines = [f"<TrainResult {self.directory}, {self.steps} train steps"]
        for item in self.comparisons:
            change = f"{item.paired.difference.points}, p = {item.paired.p_value:.2g}"
            lines.append(f"{item.label}: success {item.before.percent} -> {item.after.percent}, change {change}")
        return "\n  ".join(lines) + ">"


def train(
    settings: TrainSettings,
    *,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    started: float | None = None,
) -> TrainResult:
    """Train as `settings` say and write a run directory.

    Args:
        settings: of the run.
        callbacks: called as it goes on.
        resume: go on from the newest checkpoint of the run directory, which may have moved. Its settings must be these,
            but for how long it goes on (`preflight.EXTENDABLE`); what changes is recorded.
        started: what `time.perf_counter()` was when the work began, for its wall time; None: now.

    Raises:
        SettingsError, UnknownName, RunError: bad settings or directory; nothing has been written then.
    """
    started = time.perf_counter() if started is None else started
    build_method(settings)
    run = open_run_directory(settings, resume=resume)
    with ExitStack() as held:
        starts = settings.launch.num_started > 0 or has_servers(settings)
        if run is not None or starts:
            held.enter_context(sole_writer(settings.run.path))
        recorded, (settings, meeting) = settings, held.enter_context(launched(settings))
        ranks = None
        if meeting is not None:
            from envgym.trainer.ranks import joined  # heavy, for few runs

            ranks = held.enter_context(joined(settings, meeting))
        checkpoint = None if run is None else newest_checkpoint(run.path)
        sources = demonstration_sources(settings.sft if checkpoint is None else None)
        demonstrations = None if settings.demonstrations is None else DemonstrationPool(settings)
        if demonstrations is not None:
            sources.append(demonstrations.source)
        context = build_run_context(settings, checkpoint=checkpoint, ranks=ranks)
        held.callback(context.policy.close)
        check_memory([context.learner, *([] if context.critic is None else [context.critic.learner])], settings)
        if context.device.type == "cpu":
            held.enter_context(freed_memory_kept())
        for source in sources:
            source.check_agent(context.agent)
        readers = {f"demonstrations {number}": source for number, source in enumerate(sources)}
        check_annotations_are_made(context.method.annotators, readers)
        if context.method.replay is not None:
            context.method.replay.check_agent(context.agent)
        if run is None:
            if not starts:
                held.enter_context(sole_writer(settings.run.path))
            run = RunDirectory.create(settings.run.path, name=settings.run.name, config=_config(recorded))
            held.enter_context(_nothing_left_of_refused(run))
        else:
            _extend(run, recorded, 0 if checkpoint is None else file_step(checkpoint))
            if checkpoint is None:  # it was killed before its first one, and begins again
                run.forget_after(-1)
        # Without a checkpoint there were no weights to go on from.
        journal = open_journal(run, settings, version=-1 if checkpoint is None else file_step(checkpoint))
        if journal is not None:
            held.callback(journal.close)
        clock = WallClock(run.path, device=describe_device(context.device), started=started)
        told = Callbacks([TimeKeeper(clock), *callbacks])
        loop = TrainLoop(settings, run, context, told, demonstrations=demonstrations, journal=journal)
        with make_runner() as runner:
            return loop.run(runner, checkpoint)


@contextmanager
def _nothing_left_of_refused(run: RunDirectory) -> Iterator[None]:
    """Remove a new run whose settings are refused before anything is measured: the next one can take its place."""
    try:
        yield
    except SettingsError:
        if not run.metrics() and newest_checkpoint(run.path) is None:
            shutil.rmtree(run.path)
        raise


def _extend(run: RunDirectory, settings: TrainSettings, step: int) -> None:
    """Go on with the settings of now. Raises: RunError: they end before what is done."""
    must, do = f"be at least the {step} that are done", "raise it"
    RunError.unless(settings.run.steps >= step, "run.steps", must, settings.run.steps, where=str(run.path), do=do)
    run.change_config(_config(settings), step=step)


def _config(settings: TrainSettings) -> dict[str, object]:
    return settings.model_dump(mode="json")


class TrainLoop:
    """One run, step by step."""

    def __init__(
        self,
        settings: TrainSettings,
        run: RunDirectory,
        context: RunContext,
        callbacks: Callback,
        *,
        demonstrations: DemonstrationPool | None = None,
        journal: TurnJournal | None = None,
    ) -> None:
        """Join the parts; nothing runs yet."""
        self.settings, self.run_directory, self.context, self.callbacks = settings, run, context, callbacks
        self.stats: Stats = {}
        self.step = 0
        self._demonstrations = demonstrations
        prompt = context.tokenizer(TEXT)["input_ids"][: settings.agent.max_context_tokens // 2]
        self._canary = WeightCanary(settings.canary, prompt) if settings.canary.enabled else None
        self._audit, self._failures, self._journal = MaskAudit(), SurvivedFailures(), journal
        sampled_from = context if journal is None else replace(context, policy=journal.around(context.policy))
        if self._canary is not None:
            sampled_from = replace(context, policy=AuditedPolicy(sampled_from.policy, self._audit))
        self._evaluations = Evaluations(settings, run, context, callbacks)
        self._control = RunControl(settings, context.method, run.path)
        self._collector = sampled_from.make_collector(
            settings, rounds=settings.resampling.rounds, last=settings.run.steps, replay=context.method.replay
        )

    def run(self, runner: Runner, checkpoint: Path | None) -> TrainResult:
        """Go from the start, or from `checkpoint`, to the last step and write the report."""
        steps = self.settings.run.steps
        report: Path | None = None
        if checkpoint is not None:
            self._restore(checkpoint)
        self.callbacks.on_start(self.run_directory.path, _config(self.settings), self.step, steps)
        try:
            if checkpoint is None:
                self._warm_start(runner)
            if self._demonstrations is not None:
                runner.run(self._demonstrations.fill(self.context, on_progress=self.callbacks.on_progress))
            self._check_weights(runner)
            self._evaluations.run_full(runner, step=0)
            while self.step < steps and self._control.stopped is None:
                if self._evaluations.is_due(self.step):
                    self._check_weights(runner)
                    self._evaluations.run_in_between(runner, step=self.step)
                self._train_step(runner)
            self._check_weights(runner)
            self._evaluations.run_full(runner, step=self.step)
            report = write_run_report(self.run_directory)
        finally:
            try:
                runner.run(self.context.close(self._collector))
            finally:  # also where a second Ctrl-C cuts that short
                self.callbacks.on_end(report)
        return TrainResult(
            directory=self.run_directory.path,
            report=report,
            steps=self.step,
            stopped=self._control.stopped,
            evaluations=self._evaluations.records,
            comparisons=comparisons_of_run(self.run_directory),
        )

    # ---- phases ----------------------------------------------------------------------------------------------

    def _warm_start(self, runner: Runner) -> None:
        metrics = dict(self.context.probed)
        if self.settings.sft is not None:
            on_progress = self.callbacks.on_progress
            done = runner.run(warm_start(self.context, self.settings, self.settings.sft, on_progress=on_progress))
            metrics |= done.metrics
            self.run_directory.write_warm_start(done.losses)
            self.context.update_policy(self.step)
        if metrics:
            self.run_directory.append_metrics({"step": 0, **metrics})
        self.context.begin_models(self.run_directory.path)
        self._save()

    def _train_step(self, runner: Runner) -> None:
        times, step = StepTimes(), self.step + 1
        with times.measure("collect"):
            collected = self._collect(runner, step)
        check_groups(groups := collected.groups, self.settings, step=step)
        joined, replayed = _join_replayed(self.context, self._audit, self.settings.run.seed, step, collected)
        result = self.context.method.filter(joined).at_most(collected.wanted + len(joined) - len(groups))
        self.callbacks.on_progress(LEARN, 0, len(result.kept))
        record = TokenRecord() if self.settings.run.saves_episodes(step) else None
        with times.measure("learn"):
            batch, learned = self._learn(runner, result.kept, collected, step, record)
        self.callbacks.on_progress(LEARN, len(result.kept), len(result.kept))
        with times.measure("sync"):
            self.step = step
            if not self.context.policy.shares_weights:  # else sampling may go on already
                self.context.update_policy(self.step)
        with times.measure("canary"):
            canary_metrics = self._check_weights(runner)
        self.stats = updated_stats(self.stats, collected.requests, groups, step=step)
        observed = observe_step(self.context.method, collected, result, batch.credits, step=step)
        if record is not None:
            with times.measure("save"):
                write_step(self.run_directory, groups, batch, record, result.dropped, step=step)
        measured = step_metrics(self.settings, self.context.method, collected, result, batch, learned, step=step)
        metrics = {
            **measured,
            **replayed,
            **canary_metrics,
            **observed,
            **self._failures.since_last(),
            **({} if self._journal is None else self._journal.take_metrics()),
            **times.metrics(sampled_tokens=measured.get("cost/tokens_generated", 0.0)),
            **peak_memory_metrics(self.context.device),
        }
        if self.context.method.controllers:
            metrics |= self._call_controllers(runner, metrics)
        self.run_directory.append_metrics({"step": step, **metrics})
        is_last = step == self.settings.run.steps or self._control.stopped is not None
        if step % self.settings.run.checkpoint_every == 0 or is_last:
            self._save()
        self.callbacks.on_step(step, metrics)

    def _collect(self, runner: Runner, step: int) -> Collected:
        rollout, rounds = self.settings.rollout, self.settings.resampling.rounds
        self._audit.begin_step(remembered=rollout.staleness)
        count = EpisodeCounter(self.callbacks, COLLECT, rollout.groups * rollout.group_size * rounds)
        taking = self._collector.take(step - 1, stats=self.stats, on_finished=count, on_groups=count.count_groups)
        return runner.run(taking)

    def _learn(
        self, runner: Runner, kept: Sequence[Group], collected: Collected, step: int, record: TokenRecord | None
    ) -> tuple[TrainingBatch, Metrics]:
        """Learn from the groups that were kept, and let the models beside the policy learn from those as sampled.

        A policy that shares the weights has the new ones with the end of the pause.
        """

        def work() -> tuple[TrainingBatch, Metrics]:
            with self.context.policy.pause(step):
                batch = self.context.build_batch(kept, step=step - 1)
                if self._demonstrations is not None:
                    batch = self._demonstrations.join(batch, collected.groups, step=step, declare=self._audit.declare)
                check = None
                if self._canary is not None:
                    self._audit.check(batch.rows, step=step)
                    check = self._canary.samples_check(batch.rows, collected.common_sampling(self.settings), step=step)
                learned: Metrics = {"optim/updates": 0.0}
                if batch.rows:  # else every group was dropped: nothing to learn from, and the step says so
                    learned = self.context.train_step(batch.rows, step=step - 1, check_samples=check, record=record)
            return batch, learned | self.context.train_models(collected.groups, step=step - 1)

        return runner.run(asyncio.to_thread(work)) if self.settings.rollout.overlaps else work()

    def _call_controllers(self, runner: Runner, metrics: Metrics) -> Metrics:
        """Let the controllers change how the run goes on; return what they did."""
        evaluations, before = self._evaluations.summaries, self.context
        self.context, changes = self._control.after_step(before, self._collector, self.step, metrics, evaluations)
        self.settings = self._control.settings
        if not changes["control/weights"]:
            return changes
        if self._journal is not None:
            self._journal.drop(self.step)  # what other weights sampled under this version
        return changes | self._check_weights(runner)

    # ---- pieces ----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        save_checkpoint(
            self.run_directory.checkpoints,
            state=TrainState(step=self.step, stats=self.stats),
            model=self.context.model,
            tokenizer=self.context.tokenizer,
            learner=self.context.learner,
            keep=self.settings.run.keep_checkpoints,
            parts=_parts(self.context, self._collector) | self._control.parts(),
        )
        drop_old_references(self.run_directory.path)
        if self._journal is not None:
            self._journal.forget(self.step)

    def _restore(self, checkpoint: Path) -> None:
        state = load_state(checkpoint)
        load_parts(checkpoint, self._control.parts())
        self.context = self._control.put_in_force(self.context, self._collector, self.settings)
        self.settings = self._control.settings
        self.context.learner.load(checkpoint)
        load_parts(checkpoint, _parts(self.context, self._collector, checkpoint))
        if self.context.method.replay is not None:
            self.context.method.replay.check_agent(self.context.agent)
        self.step, self.stats = state.step, state.stats
        self.run_directory.forget_after(state.step)
        self.context.begin_models(self.run_directory.path, reference_step=self._control.reference_step)
        self.context.update_policy(self.step)

    def _check_weights(self, runner: Runner) -> Metrics:
        """Check that the policy samples from the learner's weights. Raises: RunError: it does not."""
        if self._canary is None:
            return {}
        return runner.run(self._canary.check(self.context.policy, self.context.compute_logprobs, step=self.step))


def _parts(context: RunContext, collector: Collector, checkpoint: Path | None = None) -> dict[str, Checkpointed]:
    with_tasks = context.tasks.has_grown if checkpoint is None else has_part(checkpoint, "tasks")
    return context.checkpointed_parts(with_tasks=with_tasks) | collector.parts()


def _join_replayed(
    context: RunContext, audit: MaskAudit, seed: int, step: int, collected: Collected
) -> tuple[Sequence[Group], Metrics]:
    """Join replayed episodes to the groups of a step, declare what is not of this step's policy, and keep the rest."""
    replay, groups = context.method.replay, collected.groups
    joined = groups if replay is None else replay.join(step, collected.requests, groups, seed=seed)
    for tree in (tree for group in joined for tree in group.trees if tree.source is not Source.POLICY):
        audit.declare(tree)
    if replay is None:
        return groups, {}
    replay.add(step, groups)
    return joined, replay_metrics(joined)
