"""Failed calls of tools, counted by tool and answer."""

from collections import Counter
from collections.abc import Sequence

from envgym.core.trajectory import Trajectory
from envgym.report.data import ToolFailure

MAX_TOOL_FAILURES = 50
_MAX_MESSAGE = 300
"""Characters of an answer that are kept."""


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
