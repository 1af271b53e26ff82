"""What a step's episodes say: success, rewards, endings, lengths, costs. Counted over episodes, never rows."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from envgym.core.endings import Ending
from envgym.core.rewards import Scored
from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Cost
from envgym.seeds import generator
from envgym.stats import UNIT_RANGE, bootstrap_interval
from envgym.trainer.methods.protocols import FilterResult
from envgym.trainer.metrics.update import Metrics

Z_95 = 1.96
"""Half-width of a 95 % interval in standard errors."""
ALIKE = 1e-9
"""Success rates closer than this are the same."""


def rollout_metrics(groups: Sequence[Group], *, success_at: float) -> Metrics:
    """Return the metrics of collected groups; rewards and success count valid episodes only."""
    episodes = [episode for group in groups for episode in group.trajectories]
    rewards = [reward for episode in episodes if isinstance(reward := episode.reward, Scored)]
    found: Metrics = {
        "rollout/episodes": float(len(episodes)),
        "rollout/invalid": float(len(episodes) - len(rewards)),
        "rollout/groups": float(len(groups)),
    }
    if rewards:
        found |= _success(groups, success_at)
        found["reward/mean"] = statistics.fmean(reward.value for reward in rewards)
        found |= _components(rewards)
    if episodes:
        found |= _endings(episodes) | _lengths(episodes, groups)
    return found


def env_metrics(labels: Sequence[str], groups: Sequence[Group], *, success_at: float) -> Metrics:
    """Return what each env of a mixture was given and how it went; `labels` names the env of every group."""
    found: Metrics = {}
    for label in sorted(set(labels)):
        own = [group for name, group in zip(labels, groups, strict=True) if name == label]
        found[f"envs/{label}/groups"] = float(len(own))
        rewards = [
            reward.value for group in own for episode in group.valid if isinstance(reward := episode.reward, Scored)
        ]
        if rewards:
            found[f"envs/{label}/success"] = statistics.fmean(_success_of_groups(own, success_at))
            found[f"envs/{label}/reward"] = statistics.fmean(rewards)
    return found


def _success_of_groups(groups: Sequence[Group], success_at: float) -> list[float]:
    """Return the success rate of each group that has valid episodes."""
    return [
        statistics.fmean(
            float(reward.value >= success_at) for episode in group.valid if isinstance(reward := episode.reward, Scored)
        )
        for group in groups
        if group.valid
    ]


def _success(groups: Sequence[Group], success_at: float) -> Metrics:
    """Return the success rate with a 95 % interval whose unit is the group (its episodes share a task).

    Groups that are all alike have no spread to go by; their interval is that of an evaluation whose tasks are.
    """
    means = _success_of_groups(groups, success_at)
    mean = statistics.fmean(means)
    half = Z_95 * statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    low, high = max(mean - half, 0.0), min(mean + half, 1.0)
    if max(means) - min(means) < ALIKE:
        interval = bootstrap_interval(means, rng=generator("train/success"), value_range=UNIT_RANGE)
        low, high = interval.low, interval.high
    return {"train/success": mean, "train/success_low": low, "train/success_high": high}


def _components(rewards: Sequence[Scored]) -> Metrics:
    names = sorted({name for reward in rewards for name in reward.components})
    return {
        f"reward/{name}": statistics.fmean(reward.components.get(name, 0.0) for reward in rewards) for name in names
    }


def _endings(episodes: Sequence[Trajectory]) -> Metrics:
    counts = Counter(episode.ending for episode in episodes)
    return {f"ending/{ending}": counts[ending] / len(episodes) for ending in Ending if counts[ending]}


def _lengths(episodes: Sequence[Trajectory], groups: Sequence[Group]) -> Metrics:
    cost = sum((tree.cost for group in groups for tree in group.trees), Cost())
    turns = [turn for episode in episodes for turn in episode.turns]
    errors = sum(turn.outcome.tool_errors for turn in turns if turn.outcome is not None)
    rows = [row for episode in episodes for row in episode.rows]
    return {
        "rollout/turns": len(turns) / len(episodes),
        "rollout/sampled_tokens": statistics.fmean(episode.num_sampled for episode in episodes),
        "rollout/row_tokens": statistics.fmean(len(row) for row in rows),
        "rollout/row_tokens_max": float(max(len(row) for row in rows)),
        "rollout/rows_per_episode": len(rows) / len(episodes),
        "rollout/tool_calls": cost.tool_calls / len(episodes),
        "rollout/tool_errors": errors / len(episodes),
        "cost/tokens_generated": float(cost.tokens_generated),
        "cost/tokens_prefilled": float(cost.tokens_prefilled),
        "cost/env_steps": float(cost.env_steps),
    }


def age_metrics(groups: Sequence[Group], *, step: int) -> Metrics:
    """Return how many steps old the samples of some groups are, over the tokens that step number `step` trains."""
    nodes = [node for group in groups for tree in group.trees for node in tree.nodes]
    ages: Counter[int] = Counter()
    for segment in chain.from_iterable(node.edge.segments for node in nodes):
        if segment.policy_version is not None:
            ages[step - 1 - segment.policy_version] += len(segment)
    if not ages:
        return {}
    mean = sum(age * count for age, count in ages.items()) / ages.total()
    return {"staleness/mean": mean, "staleness/max": float(max(ages))}


def filter_metrics(result: FilterResult) -> Metrics:
    """Return the share of groups kept, and of each reason to drop one."""
    total = max(len(result.kept) + len(result.dropped), 1)
    reasons = Counter(reason for _, reason in result.dropped)
    return {
        "filter/kept": len(result.kept) / total,
        **{f"filter/{reason}": count / total for reason, count in sorted(reasons.items())},
    }
