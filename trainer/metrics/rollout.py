"""Metrics of a step's rollouts: success, rewards, endings, lengths, costs, contexts rendered anew, and where rows went.

Success, rewards and endings count episodes, never rows; every row is either trained on or dropped for a reason.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from envgym.agents.evaluation.metrics.base import Metric, compute_metrics
from envgym.agents.evaluation.metrics.effort import endings, lengths
from envgym.agents.evaluation.metrics.programs import programs
from envgym.agents.rollout.programs.endings import CRASHES, IGNORED_OPTIONS
from envgym.core.trajectory import Group, Trajectory, Turn
from envgym.core.tree import Rewrite, Source
from envgym.core.turns import Cost, Invalid, Scored, reaches
from envgym.errors import RunError
from envgym.stats import wilson_interval
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import FilterResult, TrajectoryCredit
from envgym.trainer.metrics.update import Metrics


def sampled_metrics(
    groups: Sequence[Group], labels: Sequence[str] | None, *, success_at: float, metrics: Sequence[Metric]
) -> Metrics:
    """Return all that is measured of a step's episodes.

    Args:
        groups: as they were collected.
        labels: of every group its env, in a mixture; None = there is one env.
        success_at: reward from which an episode counts as solved.
        metrics: what else the run measures.
    """
    values = rollout_metrics(groups, success_at=success_at) | context_rewrite_metrics(groups)
    episodes = [episode for group in groups for episode in group.trajectories]
    values |= annotation_metrics(groups) | programs(episodes)
    if labels is not None:
        values |= env_metrics(labels, groups, success_at=success_at)
    return values | compute_metrics(metrics, episodes)


def rollout_metrics(groups: Sequence[Group], *, success_at: float) -> Metrics:
    """Return the metrics of collected groups; rewards and success count valid episodes only.

    Every episode is valid or counts as invalid by its cause, so `rollout/invalid` is the sum of `invalid/*`.
    """
    episodes = [episode for group in groups for episode in group.trajectories]
    rewards = [reward for episode in episodes if isinstance(reward := episode.reward, Scored)]
    metrics: Metrics = {
        "rollout/episodes": float(len(episodes)),
        "rollout/invalid": float(len(episodes) - len(rewards)),
        "rollout/groups": float(len(groups)),
    }
    causes = Counter(item.reward.cause for item in episodes if isinstance(item.reward, Invalid))
    metrics |= {f"invalid/{cause}": float(count) for cause, count in sorted(causes.items())}
    stats = [tree.nodes[0].stats for group in groups for tree in group.trees]  # the root says why leaves are missing
    if num_short := sum(of_root is not None and of_root.shortfall is not None for of_root in stats):
        metrics["rollout/short_trees"] = float(num_short)
    if rewards:
        metrics |= _success(groups, success_at)
        metrics["reward/mean"] = statistics.fmean(reward.value for reward in rewards)
        metrics |= _components(rewards)
    if episodes:
        metrics |= {f"ending/{name}": share for name, share in endings(episodes).items()} | _lengths(episodes, groups)
    return metrics


def annotation_metrics(groups: Sequence[Group]) -> Metrics:
    """Return for each name how many annotations there are, how many of them failed, and the mean of the others.

    Those that rollouts make of agent programs have metrics of their own.
    """
    annotations = [item for group in groups for tree in group.trees for item in tree.annotations]
    metrics: Metrics = {}
    for name in sorted({item.name for item in annotations} - {CRASHES, IGNORED_OPTIONS}):
        values = [item.value for item in annotations if item.name == name]
        numbers = [value for value in values if value is not None]
        metrics[f"annotate/{name}_count"] = float(len(values))
        metrics[f"annotate/{name}_failed"] = float(len(values) - len(numbers))
        if numbers:
            metrics[f"annotate/{name}_mean"] = statistics.fmean(numbers)
    return metrics


def env_metrics(labels: Sequence[str], groups: Sequence[Group], *, success_at: float) -> Metrics:
    """Return groups, success and reward of each env of a mixture; `labels` names the env of every group."""
    metrics: Metrics = {}
    for label in sorted(set(labels)):
        own = [group for name, group in zip(labels, groups, strict=True) if name == label]
        metrics[f"envs/{label}/groups"] = float(len(own))
        if rewards := [reward for group in own for reward in episode_rewards(group)]:
            metrics[f"envs/{label}/success"] = statistics.fmean(_success_of_groups(own, success_at))
            metrics[f"envs/{label}/reward"] = statistics.fmean(rewards)
    return metrics


def _success_of_groups(groups: Sequence[Group], success_at: float) -> list[float]:
    rewards = [episode_rewards(group) for group in groups if group.valid]
    return [statistics.fmean(float(reaches(reward, success_at)) for reward in of_group) for of_group in rewards]


def _success(groups: Sequence[Group], success_at: float) -> Metrics:
    """Return the success rate with the 95 % interval of an evaluation; its unit is the group, which shares a task."""
    means = _success_of_groups(groups, success_at)
    num_episodes = sum(len(episode_rewards(group)) for group in groups)
    interval = wilson_interval(means, num_trials=num_episodes)
    return {
        "train/success": statistics.fmean(means),
        "train/success_low": interval.low,
        "train/success_high": interval.high,
    }


def _components(rewards: Sequence[Scored]) -> Metrics:
    names = sorted({name for reward in rewards for name in reward.components})
    return {
        f"reward/{name}": statistics.fmean(reward.components.get(name, 0.0) for reward in rewards) for name in names
    }


def _lengths(episodes: Sequence[Trajectory], groups: Sequence[Group]) -> Metrics:
    trees = [tree for group in groups for tree in group.trees]
    cost = sum((tree.total_cost for tree in trees), Cost())
    turns = [turn for episode in episodes for turn in episode.turns]
    errors = sum(turn.outcome.tool_errors for turn in turns if turn.outcome is not None)
    return {
        **{f"rollout/{name}": value for name, value in lengths(episodes).items()},
        "rollout/tool_calls": sum(tree.cost.tool_calls for tree in trees) / len(episodes),
        "rollout/tool_errors": errors / len(episodes),
        "cost/tokens_generated": float(cost.tokens_generated),
        "cost/tokens_prefilled": float(cost.tokens_prefilled),
        "cost/env_steps": float(cost.env_steps),
    }


def replay_metrics(groups: Sequence[Group]) -> Metrics:
    """Return how many of the episodes of some groups are replayed, and what they earned."""
    replayed = [item for group in groups for item in group.valid if item.tree.source is Source.REPLAY]
    rewards = [item.reward.value for item in replayed if isinstance(item.reward, Scored)]
    return {"replay/episodes": float(len(rewards)), **({"replay/reward": statistics.fmean(rewards)} if rewards else {})}


def age_metrics(groups: Sequence[Group], *, step: int) -> Metrics:
    """Return how many steps old the samples of some groups are, over the tokens that step number `step` trains."""
    sampled = [tree for group in groups for tree in group.trees if tree.source is Source.POLICY]
    nodes = [node for tree in sampled for node in tree.nodes]
    ages: Counter[int] = Counter()
    for segment in chain.from_iterable(node.edge.segments for node in nodes):
        if segment.policy_version is not None:
            ages[step - 1 - segment.policy_version] += len(segment)
    if not ages:
        return {}
    mean = sum(age * count for age, count in ages.items()) / ages.total()
    return {"staleness/mean": mean, "staleness/max": float(max(ages))}


def trained_reward_metrics(groups: Sequence[Group]) -> Metrics:
    """Return the mean reward after shaping of the valid episodes of kept groups; nothing if there are none."""
    rewards = [reward for group in groups for reward in episode_rewards(group)]
    return {"train/reward": statistics.fmean(rewards)} if rewards else {}


def filter_metrics(result: FilterResult) -> Metrics:
    """Return the share of groups kept, and of each reason to drop one."""
    total = max(len(result.kept) + len(result.dropped), 1)
    reasons = Counter(reason for _, reason in result.dropped)
    return {
        "filter/kept": len(result.kept) / total,
        **{f"filter/{reason}": count / total for reason, count in sorted(reasons.items())},
    }


def row_metrics(result: FilterResult, credits: Sequence[TrajectoryCredit], *, rejected: float) -> Metrics:
    """Return how many rows were collected, trained on, and dropped by reason; the latter two add up to the first.

    An invalid episode is dropped for its ending, whatever became of its group; then a group's reason holds for its
    rows; a row of an episode without a credit, or without a sampled token, has nothing to learn from; last comes what
    the correction rejected whole.

    Args:
        result: of the filter, over all groups collected.
        credits: of the kept groups.
        rejected: share of the remaining rows that the correction left without a token: `logprob_gap/rejected_rows`.
    """
    credited = {(credit.trajectory.tree.id, credit.trajectory.leaf) for credit in credits}
    dropped: Counter[str] = Counter()
    trained = 0
    for group, reason in [*((group, None) for group in result.kept), *result.dropped]:
        for episode in group.trajectories:
            why = _why(episode, reason, credited)
            sampled = 0 if why else sum(any(row.loss_mask) for row in episode.rows)
            trained += sampled
            dropped[why or "no_sampled_token"] += len(episode.rows) - sampled
    dropped_by_correction = rejected * trained
    counts = {reason: float(count) for reason, count in sorted(dropped.items()) if count}
    if dropped_by_correction:
        counts["correction"] = counts.get("correction", 0.0) + dropped_by_correction
    return {
        "rows/collected": float(trained + dropped.total()),
        "rows/trained": trained - dropped_by_correction,
        **{f"dropped/{reason}": count for reason, count in counts.items()},
    }


def _why(episode: Trajectory, reason: str | None, credited: set[tuple[str, int]]) -> str | None:
    """Return why no row of an episode trains; None where they may."""
    if isinstance(episode.reward, Invalid):
        return episode.reward.cause.value
    if reason is not None:
        return reason
    return None if (episode.tree.id, episode.leaf) in credited else "no_credit"


def context_rewrite_metrics(groups: Sequence[Group]) -> Metrics:
    """Return how many turns began in a context rendered anew, by reason, and the share of episodes with such a turn.

    A turn that several episodes of a tree share counts once. A new conversation is no rewrite; where there are several
    in an episode, their mean number and the largest are added.
    """
    episodes = [episode for group in groups for episode in group.trajectories]
    counts = Counter(turn.rewrite for _, turn in _rewritten(groups))
    drifted = sum(any(_is_rewritten(turn) for turn in episode.turns) for episode in episodes)
    conversations = [1 + sum(turn.rewrite is _CONVERSATION for turn in episode.turns) for episode in episodes]
    largest = max(conversations, default=1)
    several = {"mean": sum(conversations) / max(len(episodes), 1), "max": float(largest)} if largest > 1 else {}
    return {
        "context_rewrites/turns": float(counts.total()),
        "context_rewrites/episodes": drifted / max(len(episodes), 1),
        **{f"context_rewrites/{rewrite}": float(counts[rewrite]) for rewrite in Rewrite if counts[rewrite]},
        **{f"conversations/{name}": value for name, value in several.items()},
    }


def check_context_rewrites(groups: Sequence[Group], *, step: int) -> None:
    """Check that every context extends the one before. Raises: RunError: one was rendered anew."""
    if rewrites := _rewritten(groups):
        episode, turn = rewrites[0]
        got = f"{len(rewrites)} turns of others, the first in turn {turn.index} of {episode.tree.id} ({turn.rewrite})"
        do = "use a template and an agent.context that do not change earlier turns, or set canary.on_rewrite=row"
        must = "continue the tokens of earlier turns unchanged, as canary.on_rewrite=fail requires"
        raise RunError.of("contexts", must, got, where=f"step {step}", do=do)


_CONVERSATION = Rewrite.CONVERSATION


def _is_rewritten(turn: Turn) -> bool:
    return turn.rewrite not in (None, _CONVERSATION)


def _rewritten(groups: Sequence[Group]) -> list[tuple[Trajectory, Turn]]:
    """Return the turns that began in a context rendered anew, each with one of its episodes."""
    rewrites: dict[tuple[int, str, int], tuple[Trajectory, Turn]] = {}
    for number, group in enumerate(groups):
        for episode in group.trajectories:
            for turn in episode.turns:
                if _is_rewritten(turn):
                    rewrites.setdefault((number, episode.tree.id, turn.nodes[0]), (episode, turn))
    return list(rewrites.values())
