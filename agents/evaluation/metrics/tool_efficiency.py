"""Calls and errors of tools that a success takes."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import SuccessSettings, by_task, reward_of
from envgym.core.trajectory import Trajectory
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean


class ToolEfficiency(SuccessSettings):
    """Tool calls, and failed ones, of a successful episode: the mean over the tasks that have one."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `tool_calls_per_success` and `tool_errors_per_success`; nothing where no episode succeeds."""
        solved = [item for item in episodes if (reward := reward_of(item)) is not None and reward >= self.success_at]
        counts = {"tool_calls": num_tool_calls, "tool_errors": num_tool_errors}
        return {
            f"{name}_per_success": estimate_mean(by_task(solved, count), rng=generator("metric", name))
            for name, count in counts.items()
            if solved
        }


def num_tool_calls(episode: Trajectory) -> float:
    """Return how many calls the actions of an episode hold, those that could not be read included."""
    actions = [outcome.action for outcome in episode.outcomes if outcome is not None]
    return float(sum(len(action.tool_calls) + len(action.malformed) for action in actions))


def num_tool_errors(episode: Trajectory) -> float:
    """Return how many of them were malformed or refused."""
    return float(sum(outcome.tool_errors for outcome in episode.outcomes if outcome is not None))
