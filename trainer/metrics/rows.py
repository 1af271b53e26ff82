"""Where the rows of a step went: trained on, or dropped, and why. Every row collected counts exactly once."""

from collections import Counter
from collections.abc import Sequence

from envgym.core.rewards import Invalid
from envgym.core.trajectory import Trajectory
from envgym.trainer.methods.protocols import FilterResult, TrajectoryCredit
from envgym.trainer.metrics.update import Metrics


def row_metrics(result: FilterResult, credits: Sequence[TrajectoryCredit], *, rejected: float) -> Metrics:
    """Return how many rows were collected, trained on, and dropped by reason; the latter two add up to the first.

    An invalid episode is dropped for its ending, whatever became of its group; then a group's reason holds for its
    rows; a row of an episode without a credit, or without a sampled token, has nothing to learn from; last comes what
    the correction rejected whole.

    Args:
        result: of the filter, over all groups collected.
        credits: of the kept groups.
        rejected: share of the remaining rows that the correction left without a token: `gap/rejected_rows`.
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
    found = {reason: float(count) for reason, count in sorted(dropped.items()) if count}
    if dropped_by_correction:
        found["correction"] = found.get("correction", 0.0) + dropped_by_correction
    return {
        "rows/collected": float(trained + dropped.total()),
        "rows/trained": trained - dropped_by_correction,
        **{f"dropped/{reason}": count for reason, count in found.items()},
    }


def _why(episode: Trajectory, reason: str | None, credited: set[tuple[str, int]]) -> str | None:
    """Return why no row of an episode trains; None where they may."""
    if isinstance(episode.reward, Invalid):
        return episode.reward.cause.value
    if reason is not None:
        return reason
    return None if (episode.tree.id, episode.leaf) in credited else "no_credit"
