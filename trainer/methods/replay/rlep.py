"""RLEP: verified successes of a trained run beside what the policy samples."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory, trajectories
from envgym.core.turns import is_success
from envgym.seeds import generator
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.methods.replay.base import BufferedReplay, with_replayed
from envgym.trainer.methods.replay.buffer import ReplayBuffer, ReplayEntry, keep_leaves
from envgym.trainer.methods.replay.recorded import open_recorded, train_trees
from envgym.trainer.methods.requirements import Choices, Fault


class Rlep(BufferedReplay):
    """Join up to `draws` successes of the same task to every group, drawn without replacement from a pool.

    The G sampled and the replayed episodes are one group: their rewards are compared together, A = z(r) over all of
    them with `credit=grpo`. With `objective.old_policy=recomputed` the log-probs of the old policy are computed for the
    replayed tokens, too, so their ratio begins at 1, and without a correction nothing weighs the source.

    The pool is that of a trained run (`directory`, the paper) and of this run's own successes (`collect`).

    Source: 2507.07451 (16 sampled and 2 replayed; the pool is of one checkpoint). Deviations: rewards are those that
    were recorded; a task with fewer successes than `draws` gives those, where the authors' code adds rows of padding
    that count in the group's statistics.
    """

    reads_env_rewards: ClassVar[bool] = True
    draws: int = Field(default=2, ge=1)
    """Most replayed episodes of a group."""
    directory: str | None = None
    """A run that saved its train episodes, whose successes the pool begins with; null: it begins empty."""
    collect: bool = True
    """Whether the successes of this run are added to the pool."""
    success_at: float = 1.0
    """An episode is a success when its reward is at least this."""

    def model_post_init(self, context: Any, /) -> None:  # pydantic's own signature
        """Read the pool. Raises: RunError, SettingsError: there is no such run, or it saved no train episodes."""
        super().model_post_init(context)
        if self.directory is not None:
            run = open_recorded(self.directory, where="replay rlep")
            episodes = (episode for tree in train_trees(run) for episode in trajectories(tree))
            pool = [self._entry(0, episode) for episode in episodes if is_success(episode.reward, self.success_at)]
            self._buffer = ReplayBuffer().add(pool, capacity=self.capacity)

    def requires(self, choices: Choices) -> Fault | None:
        """Require something to replay: the successes of another run, or those of this one."""
        del choices
        holds = self.collect or self.directory is not None
        must, do = "be given with replay.collect=false", "set replay.directory=runs/first, or replay.collect=true"
        return Fault.unless(holds, "replay.directory", must, "null", do)

    def join(self, step: int, requests: Sequence[TaskRequest], groups: Sequence[Group], *, seed: int) -> list[Group]:
        """Join successes of its task to every group."""
        return [self._joined(step, group, seed) for group in groups]

    def _joined(self, step: int, group: Group, seed: int) -> Group:
        pool = self.candidates(step, group.trees[0].task_key)
        return with_replayed(group, pool.draw(self.draws, generator(seed, "replay", step, group.key)))

    def entries(self, step: int, group: Group) -> Iterator[ReplayEntry]:
        """Return the successes of a group, one entry for each."""
        if self.collect:
            yield from (
                self._entry(step, episode) for episode in group.valid if is_success(episode.reward, self.success_at)
            )

    @staticmethod
    def _entry(step: int, episode: Trajectory) -> ReplayEntry:
        tree = keep_leaves(episode.tree, [episode.leaf], id=f"{episode.tree.id}/{episode.leaf}")
        return ReplayEntry(tree=tree, step=step)
