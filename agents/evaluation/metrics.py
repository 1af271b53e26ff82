"""Metrics of episodes, in training and evaluation alike: a metric gets episodes and returns named numbers."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from envgym.core.trajectory import Trajectory
from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.report.data import ToolFailure

MAX_TOOL_FAILURES = 50
_MAX_MESSAGE = 300
"""Characters of an answer that are kept."""


class Metric(Protocol):
    """Measures episodes."""

    def __call__(self, episodes: Sequence[Trajectory]) -> Mapping[str, float]:
        """Return numbers by name; {} where nothing can be measured.

        Args:
            episodes: those of a train step, or of one env's evaluation; with and without a valid reward.
        """
        ...


def endings(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of the episodes with each ending, by its name."""
    counts = Counter(episode.ending for episode in episodes)
    return {str(ending): counts[ending] / len(episodes) for ending in Ending if counts[ending]}


def lengths(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return means of turns, sampled tokens and rows over episodes, and the largest number of tokens of a row."""
    if not episodes:
        return {}
    turns = {"turns": sum(len(episode.turns) for episode in episodes) / len(episodes)}
    rows = [len(row) for episode in episodes for row in episode.rows]
    if not rows:  # episodes by messages have no tokens
        return turns
    return turns | {
        "sampled_tokens": statistics.fmean(episode.num_sampled for episode in episodes),
        "row_tokens": statistics.fmean(rows),
        "row_tokens_max": float(max(rows)),
        "rows_per_episode": len(rows) / len(episodes),
    }


def count_tool_failures(episodes: Sequence[Trajectory]) -> tuple[ToolFailure, ...]:
    """Return how often tools failed, by tool and answer: the most frequent `MAX_TOOL_FAILURES`, those first."""
    calls: Counter[tuple[str, str]] = Counter()
    in_episodes: Counter[tuple[str, str]] = Counter()
    for episode in episodes:
        messages = (message for turn in episode.turns if turn.outcome for message in turn.outcome.observation.messages)
        failed = Counter((item.name or "", " ".join(item.content.split())) for item in messages if item.is_error)
        calls += failed
        in_episodes.update(failed.keys())
    return tuple(
        ToolFailure(tool=tool, message=message[:_MAX_MESSAGE], calls=count, episodes=in_episodes[tool, message])
        for (tool, message), count in calls.most_common(MAX_TOOL_FAILURES)
    )


def compute_metrics(metrics: Sequence[Metric], episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the numbers of all metrics, called `metric/<name>`. Raises: InvalidInput: two metrics share a name."""
    numbers: dict[str, float] = {}
    for metric in metrics:
        measured = {f"metric/{name}": float(value) for name, value in metric(episodes).items()}
        for name in measured.keys() & numbers.keys():
            do = "rename one, or leave one of the metrics out"
            raise InvalidInput.of(name, "be of one metric", "two", where="metrics", do=do)
        numbers |= measured
    return numbers
