"""Score recorded episodes again, without sampling: replay their actions in the env, and take its rewards of today.

A replay is verified: where the env's replies or its ending are not those of the record, the episode keeps the reward
that it had, and is reported. What a run held before stays in its folder `rescored`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envgym.agents.evaluation.play import EvalPlan, Evaluation, record_evaluation
from envgym.agents.evaluation.run import Progress, make_plan, write_evaluation
from envgym.agents.rollout.episode import EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import run_pool
from envgym.agents.search.protocol import SEARCH
from envgym.agents.settings import EvalSettings
from envgym.config.plugins import Choice
from envgym.config.settings import build_settings
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Ending, Invalid, TurnOutcome
from envgym.errors import EnvFailure, InfrastructureError, RunError
from envgym.forking import check_equal
from envgym.report.data import to_json
from envgym.report.from_run import write_run_report
from envgym.runs.directory import RunDirectory, file_label, reading
from envgym.runs.episodes import trees_of
from envgym.runs.files import sole_writer, write_json
from envgym.runtime.event_loop import run_coroutine

_FOLDER: Final = "rescored"


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredEpisode:
    """An episode whose reward changed."""

    tree_id: str
    leaf: int
    before: float | None
    """None: invalid."""
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredEvaluation:
    """What scoring an evaluation again changed."""

    label: str
    step: int
    num_episodes: int
    changed: tuple[RescoredEpisode, ...]
    not_repeated: dict[str, str]
    """Tree id -> why its replay differs from the record; it keeps its rewards."""
    saved: str
    """Folder with the evaluation as it was."""


def rescore_run(
    path: Path,
    *,
    metrics: Sequence[str] | None = None,
    success_at: float | None = None,
    trusted: bool = False,
    on_progress: Progress = lambda phase, done, total: None,
) -> list[RescoredEvaluation]:
    """Score the episodes of an evaluation run again, and write its records, episodes and report.

    Args:
        path: directory that `envgym eval` wrote.
        metrics: replace those of the run; None: the run's own.
        success_at: replaces that of the run; None: the run's own.
        trusted: enter the run into the list of the user's own first.
        on_progress: called with (phase, done, total) as episodes are replayed.

    Raises: RunError: no evaluation run, not finished, or episodes that cannot be read; SettingsError, UnknownName: its
        env or a metric cannot be made. Nothing has been written then.
    """
    run = RunDirectory.open(path, trusted=trusted)
    config = run.trusted_config()
    must, do = "be one of `envgym eval`", "evaluate its newest checkpoint: `envgym eval --model RUN`"
    RunError.unless("optim" not in config, "run to score again", must, "a training run", where=str(path), do=do)
    settings = build_settings(EvalSettings, config, where=str(path / "config.json"))
    choices = None if metrics is None else tuple(Choice(name=name) for name in metrics)
    changes = {"metrics": choices, "success_at": success_at}
    overrides = {name: value for name, value in changes.items() if value is not None}
    settings = settings.model_copy(update={"evaluation": settings.evaluation.model_copy(update=overrides)})
    search = SEARCH.build(settings.evaluation.search)
    plans = [make_plan(settings, env, search) for env in settings.envs]
    recorded = {data["label"]: data for data in run.evals()}
    do = "finish it with --resume"
    for plan in plans:
        RunError.unless(plan.title in recorded, "evaluation", "be finished", plan.title, where=str(path), do=do)
    with sole_writer(run.path):
        results = [_rescore(run, plan, float(recorded[plan.title]["seconds"]), settings, on_progress) for plan in plans]
        run.change_config(settings.model_dump(mode="json"), step=settings.model.train_steps)
        write_run_report(run)
    return results


def _rescore(
    run: RunDirectory, plan: EvalPlan, seconds: float, settings: EvalSettings, on_progress: Progress
) -> RescoredEvaluation:
    """Replay the episodes of one plan, save what the run held of it, and write it again."""
    step = settings.model.train_steps
    with reading(f"{run.path}, episodes of {plan.title}"):
        before = trees_of(run.episodes([step], label=plan.title))
    jobs = {job.tree_id: job for job in plan.jobs()}
    trees = {tree.id: tree for tree in before}
    if missing := jobs.keys() - trees.keys():
        do = "finish the run with --resume, or restore its folder `episodes`"
        got = f"{len(missing)} without one, such as {min(missing)}"
        raise RunError.of("samples", "have a saved episode", got, where=f"{run.path}, {plan.title}", do=do)
    not_repeated: dict[str, str] = {}
    done = 0

    async def replay(job: EpisodeJob) -> Tree:
        try:
            return await replay_tree(trees[job.tree_id], job)
        except InfrastructureError as error:
            not_repeated[job.tree_id] = str(error)
            return trees[job.tree_id]

    def on_finished(tree: Tree) -> None:
        nonlocal done
        done += 1
        on_progress(f"score {plan.label}", done, len(jobs))

    concurrency = settings.engine.concurrency
    after = run_coroutine(run_pool(list(jobs.values()), replay, concurrency=concurrency, on_finished=on_finished))
    saved = _save(run, plan.title, step)
    evaluation = Evaluation(after, record_evaluation(plan, after, step=step, seconds=seconds))
    write_evaluation(run, evaluation)
    pairs = [pair for tree in after for pair in zip(trajectories(trees[tree.id]), trajectories(tree), strict=True)]
    result = RescoredEvaluation(
        label=plan.title,
        step=step,
        num_episodes=len(pairs),
        changed=tuple(
            RescoredEpisode(tree_id=was.tree.id, leaf=was.leaf, before=_value(was), after=_value(now))
            for was, now in pairs
            if was.reward != now.reward
        ),
        not_repeated=not_repeated,
        saved=str(saved),
    )
    write_json(saved / f"{file_label(plan.title)}.json", to_json(result))
    return result


def _value(episode: Trajectory) -> float | None:
    return None if isinstance(episode.reward, Invalid) else episode.reward.value


def _save(run: RunDirectory, label: str, step: int) -> Path:
    number = len(list((run.path / _FOLDER).glob("*"))) + 1
    folder = run.path / _FOLDER / f"{number:03d}"
    for file in (
        f"evals/step-{step:06d}-{file_label(label)}.json",
        f"episodes/step-{step:06d}-{file_label(label)}.parquet",
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(run.path / file, folder / file)
    return folder


async def replay_tree(tree: Tree, job: EpisodeJob) -> Tree:
    """Return a recorded tree with the rewards that its actions earn today; episodes that infrastructure ended stay.

    Raises: InfrastructureError: the env fails, or does not reply as it did.
    """
    outcomes: dict[int, TurnOutcome] = {}
    for episode in trajectories(tree):
        if not episode.ending.is_error:
            outcomes |= await _replay_episode(episode, job)
    nodes = (replace(node, outcome=outcomes.get(index, node.outcome)) for index, node in enumerate(tree.nodes))
    return replace(tree, nodes=tuple(nodes))


async def _replay_episode(episode: Trajectory, job: EpisodeJob) -> dict[int, TurnOutcome]:
    """Return node -> outcome of the turn that ends there, with its reward of today."""
    where, outcomes = f"episode {episode.tree.id}", dict[int, TurnOutcome]()
    if episode.tree.task_key != job.task.key:
        do = "evaluate again: the env has another task of this id"
        raise EnvFailure.of("task", "be that of the record", job.task.id, where=where, do=do)
    env = EpisodeEnv(job)
    try:
        await env.reset()
        last = len(episode.outcomes) - 1
        for turn, (nodes, outcome) in enumerate(zip(episode.turn_nodes, episode.outcomes, strict=True)):
            if outcome is None:
                break
            record = (await env.step(outcome.action)).info["envgym"]
            check_equal(
                f"observation of turn {turn}", outcome.observation, record.observation, where=where, kind=EnvFailure
            )
            ended = episode.ending if turn == last and episode.ending is Ending.TERMINATED else None
            if ended or record.ending is Ending.TERMINATED:
                check_equal(f"ending of turn {turn}", ended, record.ending, where=where, kind=EnvFailure)
            outcomes[nodes[-1]] = replace(outcome, reward=record.reward)
    finally:
        await env.close()
    return outcomes
