"""What follows a step's update: methods observe what became of its groups, and the run keeps its episodes."""

from collections.abc import Iterable, Sequence

from envgym.core.trajectory import Group
from envgym.episodes import dropped_trees, episode_rows
from envgym.runs import RunDirectory
from envgym.trainer.methods.protocols import (
    Curriculum,
    Filter,
    ObservingCurriculum,
    ObservingFilter,
    TaskRequest,
    TrajectoryCredit,
)
from envgym.trainer.metrics.update import Metrics


def observe_step(
    curriculum: Curriculum,
    keep_groups: Filter,
    *,
    requests: Sequence[TaskRequest],
    groups: Sequence[Group],
    credits: Sequence[TrajectoryCredit],
    step: int,
) -> Metrics:
    """Tell the methods that observe what became of a step's groups; return what the curriculum measures."""
    if isinstance(keep_groups, ObservingFilter):
        keep_groups.observe(groups, step=step)
    if not isinstance(curriculum, ObservingCurriculum):
        return {}
    observed = curriculum.observe(step=step, requests=requests, groups=groups, credits=credits)
    return {f"curriculum/{name}": value for name, value in observed.items()}


def write_step(
    run: RunDirectory,
    groups: Iterable[Group],
    credits: Iterable[TrajectoryCredit],
    dropped: Iterable[tuple[Group, str]],
    *,
    step: int,
) -> None:
    """Keep a step's episodes, with the advantages of those that trained and why the others did not."""
    trees = [tree for group in groups for tree in group.trees]
    advantages = {(credit.trajectory.tree.id, credit.trajectory.leaf): credit.advantages for credit in credits}
    table = episode_rows(trees, step=step, advantages=advantages, dropped=dropped_trees(dropped))
    run.write_episodes(step, table)
