"""The evaluations of a training run: before the first step, in between, and after the last."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import build_metrics
from envgym.agents.evaluation.play import SPLIT_LABELS, EvalPlan, EvalRecord, evaluate, token_player
from envgym.agents.evaluation.run import write_evaluation
from envgym.agents.settings import EvaluationSettings
from envgym.runs.directory import RunDirectory
from envgym.runtime.event_loop import Runner
from envgym.seeds import derive_seed
from envgym.trainer.methods.controllers.base import EvaluationSummary
from envgym.trainer.metrics.callbacks import Callback, EpisodeCounter
from envgym.trainer.metrics.evaluation import evaluation_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.run import RunContext

DURING = "during"
"""Label of the evaluations in between, on the first tasks."""


class Evaluations:
    """Evaluates one run's policy on held-out tasks and records the results in the run's directory."""

    def __init__(
        self,
        settings: EvaluationSettings,
        run: RunDirectory,
        context: RunContext,
        callbacks: Callback,
        *,
        concurrency: int,
        seed: int,
    ) -> None:
        """Join the parts; nothing runs yet."""
        self._settings, self._run, self._context, self._callbacks = settings, run, context, callbacks
        self._seed = derive_seed(seed, "evaluation")
        self._metrics = build_metrics(settings.metrics, success_at=settings.success_at)
        self._summaries: list[EvaluationSummary] | None = None
        self._player = token_player(
            context.agent,
            context.policy,
            context.evaluation_search,
            settings,
            concurrency=concurrency,
        )

    @property
    def records(self) -> tuple[EvalRecord, ...]:
        """All that the run has recorded so far."""
        return tuple(EvalRecord.from_json(data) for data in self._run.evals())

    @property
    def summaries(self) -> list[EvaluationSummary]:
        """The headline numbers of all evaluations so far, by step."""
        if self._summaries is None:
            records = sorted(self.records, key=lambda record: record.step)
            self._summaries = [EvaluationSummary(r.step, r.label, evaluation_metrics(r)) for r in records]
        return self._summaries

    def run_full(self, runner: Runner, *, step: int) -> None:
        """Evaluate on all tasks after `step` train steps, unless that is recorded already."""
        self._run_missing(runner, SPLIT_LABELS[self._settings.split], step)

    def is_due(self, step: int) -> bool:
        """Return whether the settings ask for an evaluation in between after `step` train steps."""
        every = self._settings.every
        return bool(every and step and step % every == 0)

    def run_in_between(self, runner: Runner, *, step: int) -> None:
        """Evaluate where it is not recorded yet, also when a run resumes right after a step where it is due."""
        self._run_missing(runner, DURING, step)

    def run_comparable(self, runner: Runner, *, step: int) -> None:
        """Evaluate after `step` train steps on the tasks of the evaluations in between, where none covers them yet."""
        if self._settings.tasks_during < self._settings.tasks:  # else a full evaluation has the same tasks
            self._run_missing(runner, DURING, step)

    def comparable(self, step: int) -> list[Metrics]:
        """Return the metrics after `step` train steps on the tasks of the evaluations in between, an entry per env."""
        is_same = self._settings.tasks_during >= self._settings.tasks
        for label in (DURING, *([SPLIT_LABELS[self._settings.split]] if is_same else [])):
            titles = {plan.title for plan in self._plans(label)}
            metrics = [dict(item.metrics) for item in self.summaries if item.step == step and item.label in titles]
            if metrics:
                return metrics
        return []

    def _run_missing(self, runner: Runner, label: str, step: int) -> None:
        done = {(data["label"], data["step"]) for data in self._run.evals()}
        plans = self._plans(label)
        if all((plan.title, step) in done for plan in plans):
            return
        for plan in plans:
            num_episodes = len(plan.tasks) * plan.settings.samples
            on_finished = EpisodeCounter(self._callbacks, f"evaluate {plan.label}", num_episodes)
            evaluation = runner.run(evaluate(plan, self._player, step=step, on_finished=on_finished))
            write_evaluation(self._run, evaluation)
            self._summaries = None
            self._callbacks.on_evaluation(step, plan.title, evaluation_metrics(evaluation.record))

    def _plans(self, label: str) -> Sequence[EvalPlan]:
        """Return one plan per env; the tasks of an evaluation in between are the first of the others'."""
        evaluation, env_sources = self._settings, self._context.env_sources.values()
        num_tasks = min(evaluation.tasks_during, evaluation.tasks) if label == DURING else evaluation.tasks
        return [
            EvalPlan(
                env_id=env_source.env_id,
                make_env=env_source.make,
                tasks=env_source.held_out[:num_tasks],
                settings=evaluation,
                seed=self._seed,
                label=label if len(env_sources) == 1 else f"{label} {env_source.label}",
                selection=self._context.evaluation_search.selection,
                metrics=self._metrics,
            )
            for env_source in env_sources
        ]
