"""A whole evaluation on disk: episodes are written down as they end, so that one that was killed can be resumed."""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envgym.agents.evaluation.metrics.base import build_metrics
from envgym.agents.evaluation.play import (
    SPLIT_LABELS,
    EvalPlan,
    EvalRecord,
    Evaluation,
    Player,
    evaluate,
    held_out_tasks,
    invalid_reasons,
    message_player,
    token_player,
)
from envgym.agents.loop.agent import agent_kind, make_agent
from envgym.agents.models.loading import check_model
from envgym.agents.policies.backends import build_policy
from envgym.agents.protocols import Policy
from envgym.agents.rollout.messages import MessagePolicy
from envgym.agents.search import Strategy
from envgym.agents.search.protocol import SEARCH, TreeStrategy
from envgym.agents.settings import EngineSettings, EnvSettings, EvalSettings, ModelSettings
from envgym.config.settings import build_settings
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, RunError, SettingsError, UnknownName
from envgym.report.from_run import write_run_report
from envgym.runs.changes import check_same
from envgym.runs.directory import RunDirectory, check_labels, check_new
from envgym.runs.episodes import episode_rows, trees_of
from envgym.runs.files import sole_writer
from envgym.runs.journal import Journal
from envgym.runs.trust import check_trusted
from envgym.runs.wall_time import WallClock
from envgym.runtime.event_loop import run_coroutine
from envgym.seeds import derive_seed

_LOADS_MODEL = ("transformers", "vllm")
"""Backends that read the model of its name from a directory or the hub."""
JOURNAL = "finished.jsonl"
"""Episodes of an evaluation that is not over yet."""
EXTENDABLE: Final = ("tasks", "samples")
"""Settings of the evaluation that may be raised when it is resumed."""

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """The results of an evaluation."""

    directory: Path
    report: Path
    evaluations: tuple[EvalRecord, ...]


class PolicyHolder:
    """Keeps the policy of an evaluation for those after it that want the same; one at a time is held."""

    def __init__(self) -> None:
        self._held: tuple[ModelSettings, EngineSettings, Policy | MessagePolicy] | None = None

    def policy(self, model: ModelSettings, engine: EngineSettings) -> Policy | MessagePolicy:
        """Return the policy of these settings; it is made where another, or none, is held, and that one is closed."""
        if self._held is None or self._held[:2] != (model, engine):
            self.close()
            self._held = (model, engine, build_policy(model, engine))
        return self._held[2]

    def close(self) -> None:
        entry, self._held = self._held, None
        if entry is not None:
            entry[2].close()


def run_evaluation(
    settings: EvalSettings,
    *,
    resume: bool = False,
    on_progress: Progress = lambda phase, done, total: None,
    started: float | None = None,
    policies: PolicyHolder | None = None,
) -> EvalResult:
    """Evaluate as `settings` say and write a run directory.

    Args:
        settings: of the evaluation.
        resume: go on with the directory, whose settings must be these, but for more tasks or samples: the new episodes
            are played, and `history.jsonl` records the change. Episodes that infrastructure ended run again.
        on_progress: called as episodes end.
        started: what `time.perf_counter()` was when the work began, for its wall time; None: now.
        policies: holds the policy, which outlives the evaluation; None: it is closed at its end.

    Raises:
        SettingsError, UnknownName, RunError: bad settings or directory; nothing has been written then. RunError: too
            many invalid episodes; what was finished is kept.
    """
    started = time.perf_counter() if started is None else started
    agent_kind(settings.agent)
    run = _open(settings, resume=resume)
    check_labels((env.label for env in settings.envs), where="envs")
    search = SEARCH.build(settings.evaluation.search)
    plans = [make_plan(settings, env, search) for env in settings.envs]
    with ExitStack() as stack:
        if run is not None:
            stack.enter_context(sole_writer(run.path))
        missing = [plan for plan in plans if run is None or not _is_recorded(run, plan)]
        if run is None or missing:
            if settings.engine.backend.name in _LOADS_MODEL:
                check_model(settings.model.name)
            policies = stack.enter_context(closing(PolicyHolder())) if policies is None else policies
            run = run_coroutine(_evaluate_plans(settings, run, missing, search, policies, on_progress, stack, started))
        report = write_run_report(run)
        (run.path / JOURNAL).unlink(missing_ok=True)  # all of it is in the run's episodes
        records = tuple(EvalRecord.from_json(data) for data in run.evals())
        return EvalResult(directory=run.path, report=report, evaluations=records)


async def _evaluate_plans(
    settings: EvalSettings,
    run: RunDirectory | None,
    plans: Sequence[EvalPlan],
    search: Strategy,
    policies: PolicyHolder,
    on_progress: Progress,
    run_stack: ExitStack,
    started: float,
) -> RunDirectory:
    """Get the policy ready, then play and record the plans; a new directory is made, and held, in between."""
    async with AsyncExitStack() as stack:
        play = await open_player(settings, search, policies, stack)
        if run is None:
            run_stack.enter_context(sole_writer(settings.run.path))
            run = RunDirectory.create(settings.run.path, name=settings.run.name, config=_config(settings))
        else:
            run.change_config(_config(settings), step=settings.model.train_steps)
        clock = WallClock(run.path, device=_device(settings), started=started)
        stack.callback(clock.record)
        journal = Journal(run.path / JOURNAL)
        for plan in plans:
            await _evaluate_plan(settings, run, journal, plan, play, on_progress)
            clock.record()
    return run


def _device(settings: EvalSettings) -> str:
    """Return in words what the model computes on; nothing where it is served."""
    if settings.engine.endpoint is not None:
        return ""
    from envgym.agents.models.loading import describe_device, prepare_device  # torch is heavy

    return describe_device(prepare_device(settings.engine.device, settings.engine.threads))


async def _evaluate_plan(
    settings: EvalSettings, run: RunDirectory, journal: Journal, plan: EvalPlan, play: Player, on_progress: Progress
) -> None:
    record = _record(run, plan)  # of fewer tasks or samples
    recorded = [] if record is None else trees_of(run.episodes(label=plan.title))
    finished = [tree for tree in (*recorded, *journal.of(plan.label)) if not invalid_reasons(tree)]
    total, done = len(plan.tasks) * plan.settings.samples, len({tree.id for tree in finished})
    phase = f"evaluate {plan.label}"
    seconds_before = journal.seconds.get(plan.label, 0.0 if record is None else record["seconds"])
    started = time.perf_counter() - seconds_before

    def on_finished(tree: Tree) -> None:
        nonlocal done
        done += 1
        journal.add(plan.label, tree, seconds=time.perf_counter() - started)
        on_progress(phase, done, total)

    on_progress(phase, done, total)
    evaluation = await evaluate(
        plan,
        play,
        step=settings.model.train_steps,
        max_invalid_rate=settings.evaluation.max_invalid_rate,
        on_finished=on_finished,
        finished=finished,
        seconds_before=seconds_before,
    )
    write_evaluation(run, evaluation)


def _record(run: RunDirectory, plan: EvalPlan) -> dict[str, Any] | None:
    return next((data for data in run.evals() if data["label"] == plan.title), None)


def _is_recorded(run: RunDirectory, plan: EvalPlan) -> bool:
    record = _record(run, plan)
    samples = plan.settings.samples
    return record is not None and all(len(record["rewards"].get(task.id, ())) >= samples for task in plan.tasks)


def write_evaluation(run: RunDirectory, evaluation: Evaluation) -> None:
    """Write episodes and record of a plan into a run directory."""
    step, label = evaluation.record.step, evaluation.record.label
    run.write_episodes(step, episode_rows(evaluation.trees, step=step), label=label)
    run.write_eval(step, label, evaluation.record.to_json())


# ---- before the first episode ---------------------------------------------------------------------------------------


def _open(settings: EvalSettings, *, resume: bool) -> RunDirectory | None:
    path = settings.run.path
    if not resume:
        check_new(path, another="choose another directory with --out")
        return None
    run = RunDirectory.open(path)
    check_trusted(path, {})  # what is written there must stay there
    theirs = build_settings(EvalSettings, run.config, where=str(path / "config.json"))
    free = ("device", "threads", "concurrency", "max_batch", "cache_gib", "tensor_parallel")
    engine = (f"engine.{name}" for name in free)
    raised = (f"evaluation.{name}" for name in EXTENDABLE)
    check_same(_config(theirs), _config(settings), where=path, but=("run.directory", *raised, *engine))
    for name in EXTENDABLE:
        before, now = getattr(theirs.evaluation, name), getattr(settings.evaluation, name)
        must, do = f"be at least the {before} of the run", "raise it, or start another evaluation"
        RunError.unless(now >= before, f"evaluation.{name}", must, now, where=str(path), do=do)
    return run


def _config(settings: EvalSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json")


def make_plan(settings: EvalSettings, env: EnvSettings, search: Strategy) -> EvalPlan:
    """Make the env once, to see that its settings hold, and choose its tasks.

    Raises: SettingsError: the search does not suit the env or the agent, or the split is empty.
    """
    evaluation, make_env = settings.evaluation, env.maker()
    instance = make_env()
    try:
        search.check(instance, settings.agent, group_size=None)
        source = instance.unwrapped.tasks
    finally:
        instance.close()
    tasks = held_out_tasks(source, evaluation.tasks, split=evaluation.split)
    do = "evaluate on another split"
    SettingsError.unless(tasks, "split", "hold a task", str(evaluation.split), where=env.id, do=do)
    label = SPLIT_LABELS[evaluation.split]
    return EvalPlan(
        env_id=env.id,
        make_env=make_env,
        tasks=tasks,
        settings=evaluation,
        seed=derive_seed(settings.run.seed, "evaluation"),
        label=label if len(settings.envs) == 1 else f"{label} {env.label}",
        selection=search.selection,
        metrics=build_metrics(evaluation.metrics, success_at=evaluation.success_at),
    )


async def open_player(
    settings: EvalSettings, search: Strategy, policies: PolicyHolder, stack: AsyncExitStack
) -> Player:
    """Take the policy, open it until `stack` is left, and return what plays with it.

    Raises: UnknownName, InvalidInput, SettingsError: no such model, agent or tokenizer, or a search that does not fit.
        PolicyFailure: a server that does not answer, or that cannot state the log-probs of this sampling.
    """
    evaluation, concurrency = settings.evaluation, settings.engine.concurrency
    policy = policies.policy(settings.model, settings.engine)
    if policy.unit == "messages":
        evaluation.sampling.check("evaluation")
        play = message_player(settings.agent, policy, search, evaluation, concurrency=concurrency)
        await stack.enter_async_context(policy)
        return play
    tokenizer = _tokenizer(settings)
    agent = make_agent(settings.agent, tokenizer)
    if isinstance(search, TreeStrategy):
        search.check_tokenizer(tokenizer)
    await stack.enter_async_context(policy)
    policy.check_sampling(evaluation.sampling)
    return token_player(agent, policy, search, evaluation, concurrency=concurrency)


def _tokenizer(settings: EvalSettings) -> Any:  # PreTrainedTokenizerFast, which is heavy to import
    from envgym.agents.models.loading import load_model_tokenizer  # transformers is heavy

    try:
        return load_model_tokenizer(settings.model)
    except UnknownName as error:
        if settings.engine.endpoint is None:
            raise
        do = "name the served model's own with --tokenizer"
        raise InvalidInput.of("tokenizer", "be found", settings.model.name, where=str(error), do=do) from error
