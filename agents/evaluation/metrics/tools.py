"""Metrics of tool calls: how many a success takes, and which ones failed."""

from collections import Counter
from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import SuccessSettings, by_task, succeeds
from envgym.core.trajectory import Trajectory
from envgym.report.data import ToolFailure
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean

MAX_TOOL_FAILURES = 50
_MAX_MESSAGE = 300
"""Characters of an answer that are kept."""


class ToolEfficiency(SuccessSettings):
    """Tool calls, and failed ones, of a successful episode: the mean over the tasks that have one."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `tool_calls_per_success` and `tool_errors_per_success`; nothing where no episode succeeds."""
        solved = [episode for episode in episodes if succeeds(episode, self.success_at)]
        counts = {"tool_calls": _num_tool_calls, "tool_errors": _num_tool_errors}
        return {
            f"{name}_per_success": estimate_mean(by_task(solved, count), rng=generator("metric", name))
            for name, count in counts.items()
            if solved
        }


def _num_tool_calls(episode: Trajectory) -> float:
    """Count the calls in the actions of an episode, those that could not be read included."""
    actions = [outcome.action for outcome in episode.outcomes if outcome is not None]
    return float(sum(len(action.tool_calls) + len(action.malformed) for action in actions))


def _num_tool_errors(episode: Trajectory) -> float:
    """Count the calls of an episode that were malformed or refused."""
    return float(sum(outcome.tool_errors for outcome in episode.outcomes if outcome is not None))


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
