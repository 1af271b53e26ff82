"""What follows a step's update: methods observe what became of its groups, and the run keeps episodes and metrics."""

from collections.abc import Iterable, Sequence

from envgym.agents.evaluation.play import check_prompts
from envgym.core.trajectory import Group
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import dropped_trees, episode_rows
from envgym.runtime.processes.log import Ids, about, log_event
from envgym.trainer.batch.build import TrainingBatch
from envgym.trainer.batch.scores import token_scores_of
from envgym.trainer.checks.preflight import check_annotations, check_invalid
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.method import Method
from envgym.trainer.methods.protocols import (
    FilterResult,
    ObservingCurriculum,
    StepOutcome,
    TrajectoryCredit,
)
from envgym.trainer.methods.shaping.none import NoShaping
from envgym.trainer.metrics.rollout import (
    age_metrics,
    check_context_rewrites,
    filter_metrics,
    row_metrics,
    sampled_metrics,
    trained_reward_metrics,
)
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.collector import Collected
from envgym.trainer.run import RunContext
from envgym.trainer.settings import CanarySettings, TrainRunSettings


def observe_step(
    method: Method, collected: Collected, filtered: FilterResult, credits: Sequence[TrajectoryCredit], *, step: int
) -> Metrics:
    """Tell the log and the methods that observe what became of a step's groups; return what the curriculum measures."""
    _log_groups(filtered, step=step)
    curriculum, requests, groups = method.curriculum, collected.requests, collected.groups
    method.observe_filtered(groups, step=step)
    if not isinstance(curriculum, ObservingCurriculum):
        return {}
    observed = curriculum.observe(StepOutcome(step=step, requests=requests, groups=groups, credits=credits))
    return {f"curriculum/{name}": value for name, value in observed.items()}


def _log_groups(filtered: FilterResult, *, step: int) -> None:
    for group, reason in (*((group, None) for group in filtered.kept), *filtered.dropped):
        num_episodes = sum(len(tree.leaves) for tree in group.trees)
        with about(Ids(group.key)):
            log_event("trained" if reason is None else "dropped", step=step, episodes=num_episodes, reason=reason)


def write_step(
    run: RunDirectory,
    groups: Iterable[Group],
    batch: TrainingBatch,
    record: TokenRecord,
    dropped: Iterable[tuple[Group, str]],
    *,
    step: int,
) -> None:
    """Keep a step's episodes: what was computed of the tokens of those that trained, and why the others did not."""
    trees = [tree for group in groups for tree in group.trees]
    episodes = [credit.trajectory for credit in batch.credits]
    keys = [(episode.tree.id, episode.leaf) for episode in episodes]
    advantages = dict(zip(keys, (credit.advantages for credit in batch.credits), strict=True))
    scores = dict(zip(keys, token_scores_of(episodes, record.of_rows(batch.rows)), strict=True))
    table = episode_rows(trees, step=step, advantages=advantages, token_scores=scores, dropped=dropped_trees(dropped))
    run.write_episodes(step, table)


def step_metrics(
    context: RunContext,
    collected: Collected,
    filtered: FilterResult,
    batch: TrainingBatch,
    learned: Metrics,
    *,
    step: int,
) -> Metrics:
    """The metrics of a step's episodes, groups, rows and updates."""
    method = context.method
    sampled = sampled_metrics(
        collected.groups,
        [request.env for request in collected.requests] if len(context.env_sources) > 1 else None,
        success_at=method.success_at,
        metrics=method.metrics,
    )
    return {
        **sampled,
        **collected.metrics,
        **({} if isinstance(method.shaping, NoShaping) else trained_reward_metrics(filtered.kept)),
        **age_metrics(filtered.kept, step=step),
        **filter_metrics(filtered),
        **row_metrics(filtered, batch.credits, rejected=learned.get("logprob_gap/rejected_rows", 0.0)),
        **learned,
        "train/rows": float(len(batch.rows)),
    }


def check_groups(groups: Sequence[Group], run: TrainRunSettings, canary: CanarySettings, *, step: int) -> None:
    """See that a step's episodes can train. Raises: RunError: too many are invalid, or a context was rewritten."""
    check_invalid(groups, limit=run.max_invalid_rate, step=step)
    check_prompts([tree for group in groups for tree in group.trees], where=f"step {step}")
    check_annotations(groups, limit=run.max_invalid_rate, step=step)
    if canary.on_rewrite == "fail":
        check_context_rewrites(groups, step=step)
