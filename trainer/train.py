"""The training loop: warm start, evaluate, then collect, shape, filter, credit, learn, record; resume where it stopped.

Step numbers count from 1; what is recorded at step n was made by it, and a checkpoint at n holds what n steps gave.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgym.agents.evaluation.play import EvalRecord
from envgym.agents.models.loading import describe_device
from envgym.core.trajectory import Group
from envgym.core.tree import Source
from envgym.report.data import ComparisonData
from envgym.report.from_run import comparisons_of_run, write_run_report
from envgym.runs.wall_time import WallClock
from envgym.runtime.event_loop import Runner, make_runner
from envgym.trainer.batch.build import TrainingBatch
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.build import changed_run_context, collect_plan
from envgym.trainer.checks.changes import SettingsInForce
from envgym.trainer.checks.mask_audit import AuditedPolicy, MaskAudit
from envgym.trainer.checks.preflight import resolve_precision
from envgym.trainer.checks.term_audit import TermAudit
from envgym.trainer.checks.weight_canary import TEXT, WeightCanary
from envgym.trainer.launch.workers.fleet import RolloutWorkers
from envgym.trainer.launch.workers.start import rollout_workers
from envgym.trainer.learner.checkpoint import (
    TrainState,
    checkpoint_of_step,
    drop_old_checkpoints,
    drop_old_references,
    has_part,
    load_parts,
    load_state,
    save_checkpoint,
)
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.methods.protocols import Checkpointed
from envgym.trainer.metrics.callbacks import COLLECT, LEARN, Callback, Callbacks, EpisodeCounter, TimeKeeper
from envgym.trainer.metrics.failures import SurvivedFailures
from envgym.trainer.metrics.rollout import replay_metrics
from envgym.trainer.metrics.times import StepTimes, peak_memory_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.prepare import PreparedRun, prepared
from envgym.trainer.rollout.collector import Collected, Collector
from envgym.trainer.rollout.groups import CollectPlan, Stats, updated_stats
from envgym.trainer.run import credit_groups, learner_turn, prepare_models, train_models, train_step, update_policy
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.best_checkpoint import BestCheckpointKeeper
from envgym.trainer.workflows.control import RunControl
from envgym.trainer.workflows.evaluations import Evaluations
from envgym.trainer.workflows.sft import warm_start
from envgym.trainer.workflows.step_end import check_groups, observe_step, step_metrics, write_step


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
    settings = resolve_precision(settings)  # once: what is recorded, told and sent to workers names it
    with prepared(settings, resume=resume) as run, make_runner() as runner:
        clock = WallClock(run.directory.path, device=describe_device(run.context.device), started=started)
        return TrainLoop(settings, run, Callbacks([TimeKeeper(clock), *callbacks])).run(runner)


class TrainLoop:
    """One run, step by step."""

    def __init__(self, settings: TrainSettings, run: PreparedRun, callbacks: Callback) -> None:
        """Join the parts; nothing runs yet."""
        context = run.context
        self.settings, self.context, self.callbacks = settings, context, callbacks
        self.run_directory, self._checkpoint = run.directory, run.checkpoint
        self._demonstrations, self._journal = run.demonstrations, run.journal
        self._warm_sources = run.warm_sources
        self.stats: Stats = {}
        self.step = 0
        self._audit, self._terms, self._failures = MaskAudit(), TermAudit(), SurvivedFailures()
        prompt = context.tokenizer(TEXT)["input_ids"][: settings.agent.max_context_tokens // 2]
        self._canary = WeightCanary(settings.canary, prompt) if settings.canary.enabled else None
        concurrency, seed = settings.engine.concurrency, settings.run.seed
        self._evaluations = Evaluations(
            settings.evaluation, run.directory, context, callbacks, concurrency=concurrency, seed=seed
        )
        self._best: BestCheckpointKeeper | None = None
        self._in_force = SettingsInForce(settings)
        self._control = RunControl(self._in_force, context.method, run.directory.path)
        self._sampler = context.policy if self._journal is None else self._journal.around(context.policy)
        if self._canary is not None:
            self._sampler = AuditedPolicy(self._sampler, self._audit.record)
        self._workers = self._connect_workers(run)
        self._collector = Collector(self._collect_plan())

    def run(self, runner: Runner) -> TrainResult:
        """Go from the start, or from the checkpoint, to the last step and write the report."""
        steps = self.settings.run.steps
        report: Path | None = None
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
        try:
            self.callbacks.on_start(self.run_directory.path, self.settings.model_dump(mode="json"), self.step, steps)
            if self.settings.run.keep_best is not None:
                limit = self.settings.evaluation.max_invalid_rate
                self._best = BestCheckpointKeeper(self.settings.run, self.run_directory.path, max_invalid_rate=limit)
            if self._workers is not None:
                runner.run(self._workers.set_up())
            if self._checkpoint is None:
                self._warm_start(runner)
            if self._demonstrations is not None:
                runner.run(self._demonstrations.fill(self.context, on_progress=self.callbacks.on_progress))
            self._check_weights(runner)
            self._evaluations.run_full(runner, step=0)
            if self.step == 0:
                self._keep_best(runner)
            while self.step < steps and self._control.stopped is None:
                if self._evaluations.is_due(self.step):
                    self._check_weights(runner)
                    self._evaluations.run_in_between(runner, step=self.step)
                    self._keep_best(runner)
                self._train_step(runner)
            self._check_weights(runner)
            self._evaluations.run_full(runner, step=self.step)
            self._keep_best(runner)
            report = write_run_report(self.run_directory)
        finally:
            try:
                runner.run(self._close())
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

    def _warm_start(self, runner: Runner) -> None:
        metrics = dict(self.context.probed)
        if self.settings.model.adapter is not None and not self.context.policy.shares_weights:
            with learner_turn(self.context):
                update_policy(self.context, self.step)  # a sampler with its own copy was started with the base
        if self.settings.sft is not None:
            sft, on_progress = self.settings.sft, self.callbacks.on_progress
            plan = collect_plan(self.context, self.settings)
            with learner_turn(self.context):
                done = runner.run(warm_start(self.context, sft, self._warm_sources, plan, on_progress=on_progress))
                metrics |= done.metrics
                self.run_directory.write_warm_start(done.losses)
                update_policy(self.context, self.step)
        if metrics:
            self.run_directory.append_metrics({"step": 0, **metrics})
        prepare_models(self.context, self.run_directory.path)
        self._save()

    def _train_step(self, runner: Runner) -> None:
        times, step = StepTimes(), self.step + 1
        with times.measure("collect"):
            collected = self._collect(runner, step)
        check_groups(groups := collected.groups, self.settings.run, self.settings.canary, step=step)
        joined, replayed = self._join_replayed(collected, step)
        result = self.context.method.keep_groups(joined).at_most(collected.target + len(joined) - len(groups))
        self.callbacks.on_progress(LEARN, 0, len(result.kept))
        record = TokenRecord() if self.settings.run.saves_episodes(step) else None
        with learner_turn(self.context, times):
            with times.measure("learn"):
                batch, learned = self._learn(runner, result.kept, collected, step, record)
            self.callbacks.on_progress(LEARN, len(result.kept), len(result.kept))
            with times.measure("sync"):
                self.step = step
                if not self.context.policy.shares_weights:  # else sampling may go on already
                    update_policy(self.context, self.step)
        with times.measure("canary"):
            canary_metrics = self._check_weights(runner)
        self.stats = updated_stats(self.stats, collected.requests, groups, step=step)
        observed = observe_step(self.context.method, collected, result, batch.credits, step=step)
        if record is not None:
            with times.measure("save"):
                write_step(self.run_directory, groups, batch, record, result.dropped, step=step)
        measured = step_metrics(self.context, collected, result, batch, learned, step=step)
        metrics = {
            **(measured | replayed | canary_metrics | observed),
            **self._failures.since_last(),
            **({} if self._journal is None else self._journal.take_metrics()),
            **times.metrics(sampled_tokens=measured.get("cost/tokens_generated", 0.0)),
            **self.context.policy.take_metrics(),
            **peak_memory_metrics(self.context.device),
        }
        if self.context.method.controllers:
            metrics |= self._call_controllers(runner, metrics)
        self.run_directory.append_metrics({"step": step, **metrics})
        is_last = step == self.settings.run.steps or self._control.stopped is not None
        if step % self.settings.run.checkpoint_every == 0 or is_last:
            self._save()
        self.callbacks.on_episodes(step, [tree for group in groups for tree in group.trees])
        self.callbacks.on_step(step, metrics)

    def _collect(self, runner: Runner, step: int) -> Collected:
        rollout, rounds = self.settings.rollout, self.settings.resampling.rounds
        self._audit.begin_step(remembered=rollout.staleness)
        count = EpisodeCounter(self.callbacks, COLLECT, rollout.groups * rollout.group_size * rounds)
        taking = self._collector.take(step - 1, stats=self.stats, on_finished=count, on_groups=count.count_groups)
        return runner.run(taking)

    def _learn(
        self, runner: Runner, groups: Sequence[Group], collected: Collected, step: int, record: TokenRecord | None
    ) -> tuple[TrainingBatch, Metrics]:
        """Learn from the groups that were kept, and let the models beside the policy learn from those as sampled.

        A policy that shares the weights has the new ones with the end of the pause.
        """

        def work() -> tuple[TrainingBatch, Metrics]:
            with self.context.policy.pause(step):
                batch = credit_groups(self.context, groups, step=step - 1)
                if self._demonstrations is not None:
                    batch = self._demonstrations.join(self.context, batch, collected.groups, self._audit, step=step)
                check = None
                if self._canary is not None:
                    self._audit.check(batch.rows, step=step)
                    common = collected.common_sampling(self.settings.sampling.sampling, self.context.method.allocator)
                    check = self._canary.samples_check(batch.rows, common, step=step)
                learned: Metrics = {"optim/updates": 0.0}
                self._terms.check(self.context.method.objective, batch.rows, step=step, last=self.settings.run.steps)
                if batch.rows:  # else every group was dropped: nothing to learn from, and the step says so
                    learned = train_step(self.context, batch.rows, step=step - 1, check_samples=check, record=record)
            return batch, learned | train_models(self.context.models, collected.groups, step=step - 1)

        return runner.run(asyncio.to_thread(work)) if self.settings.rollout.overlaps else work()

    def _call_controllers(self, runner: Runner, metrics: Metrics) -> Metrics:
        controls, own = self._control.decide(self.context, metrics, self._evaluations.summaries, step=self.step)
        self._put_in_force()
        changes = own | self._control.act(controls, self.context, step=self.step)
        if not changes["control/weights"]:
            return changes
        if self._journal is not None:
            self._journal.drop(self.step)  # what other weights sampled under this version
        return changes | self._check_weights(runner)

    def _collect_plan(self) -> CollectPlan:
        settings, replay = self.settings, self.context.method.replay
        plan, rounds = collect_plan(self.context, settings), settings.resampling.rounds
        grow = None if self._workers is None else self._workers.grower()
        return replace(
            plan, policy=self._sampler, rounds=rounds, last=settings.run.steps, replay=replay, grow_elsewhere=grow
        )

    def _connect_workers(self, run: PreparedRun) -> RolloutWorkers | None:
        """Return the rollout workers, of which nothing is asked yet; None: the run has none."""
        if run.endpoints.workers is None:
            return None
        return rollout_workers(
            self.settings.model_dump(mode="json"),
            run.endpoints,
            wait_s=self.settings.launch.start_timeout_s,
            policy=self.context.policy,
            run=self.run_directory,
            journal=self._journal,
            record=None if self._canary is None else self._audit.record,
        )

    def _put_in_force(self) -> None:
        before, self.settings = self.settings, self._in_force.now
        if self.settings != before:
            self.context = changed_run_context(self.context, before, self.settings)
            if self._workers is not None:
                self._workers.change(self.settings.model_dump(mode="json"))
            self._collector.change(self._collect_plan())

    def _join_replayed(self, collected: Collected, step: int) -> tuple[Sequence[Group], Metrics]:
        """Join replayed episodes to the groups of a step, declare what is not of this step's policy, keep the rest."""
        replay, groups, seed = self.context.method.replay, collected.groups, self.settings.run.seed
        joined = groups if replay is None else replay.join(step, collected.requests, groups, seed=seed)
        for tree in (tree for group in joined for tree in group.trees if tree.source is not Source.POLICY):
            self._audit.declare(tree)
        if replay is None:
            return groups, {}
        replay.add(step, groups)
        return joined, replay_metrics(joined)

    def _save(self) -> None:
        save_checkpoint(
            self.run_directory.checkpoints,
            state=TrainState(step=self.step, stats=self.stats),
            tokenizer=self.context.tokenizer,
            learner=self.context.learner,
            keep=self.settings.run.keep_checkpoints,
            best=None if self._best is None else self._best.step,
            parts=self._parts() | self._control.parts(),
        )
        drop_old_references(self.run_directory.path)
        if self._journal is not None:
            self._journal.forget(self.step)

    def _keep_best(self, runner: Runner) -> None:
        """Keep the checkpoint of this step where its evaluation is the best so far."""
        if self._best is None:
            return
        self._evaluations.run_comparable(runner, step=self.step)
        best = self._best.candidate(self._evaluations.comparable(self.step), self.step)
        if best is None:
            return
        if not checkpoint_of_step(self.run_directory.path, self.step).exists():
            self._save()
        self._best.keep(best)
        folder, keep = self.run_directory.checkpoints, self.settings.run.keep_checkpoints
        drop_old_checkpoints(folder, keep=keep, best=best.step)

    def _restore(self, checkpoint: Path) -> None:
        state = load_state(checkpoint)
        load_parts(checkpoint, self._control.parts())
        self._put_in_force()
        self.context.learner.load(checkpoint)
        load_parts(checkpoint, self._parts(checkpoint))
        if self.context.method.replay is not None:
            self.context.method.replay.check_agent(self.context.agent)
        self.step, self.stats, self._terms.resumed_at = state.step, state.stats, state.step
        self.run_directory.forget_after(state.step)
        prepare_models(self.context, self.run_directory.path, reference_step=self._control.reference_step)
        update_policy(self.context, self.step)

    def _check_weights(self, runner: Runner) -> Metrics:
        if self._workers is not None:
            runner.run(self._workers.tell_weights())  # those that have just changed count for turns under way
        if self._canary is None:
            return {}
        return runner.run(self._canary.check(self.context.policy, self._compute_logprobs, step=self.step))

    def _compute_logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Return the learner's log-probs of the scored tokens of rows at temperature 1, nats, while nobody samples."""
        with self.context.policy.pause():
            return self.context.learner.compute_logprobs(rows, temperature=1.0).tolist()

    def _parts(self, checkpoint: Path | None = None) -> dict[str, Checkpointed]:
        """Return the parts of a checkpoint; some only where they are needed, or where `checkpoint` holds them."""
        context, draws = self.context, self._collector.draws
        needed = {"tasks": context.tasks.has_grown, "draws": draws.has_state}
        if checkpoint is not None:
            needed = {name: has_part(checkpoint, name) for name in needed}
        named = {f"model_{name}": model for name, model in context.models.items()}
        parts = {**named, "evaluation_search": context.evaluation_search}
        return {
            **context.method.checkpointed_parts(),
            **{name: part for name, part in parts.items() if isinstance(part, Checkpointed)},
            **({"tasks": context.tasks} if needed["tasks"] else {}),
            **self._collector.parts(),
            **({"draws": draws} if needed["draws"] else {}),
        }

    async def _close(self) -> None:
        await self._collector.close()
        if self._workers is not None:
            await self._workers.close()
        for model in self.context.models.values():
            await model.close()
