"""Demonstrations beside the episodes of every step, for terms of the objective that imitate."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Source, Tree
from envgym.errors import SettingsError
from envgym.seeds import derive_seed, generator
from envgym.trainer.batch.build import TrainingBatch
from envgym.trainer.batch.rows import TrainRow, train_rows
from envgym.trainer.build import RunContext
from envgym.trainer.catalog import DEMONSTRATIONS
from envgym.trainer.methods.credit.outcome import episode_credits
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.demonstrations import DemonstrationRequest, DemonstrationSource, StepDemonstrations


class DemonstrationPool:
    """The demonstrations of a run, from which every step draws some."""

    def __init__(self, settings: TrainSettings) -> None:
        """Build the source. Raises: SettingsError, UnknownName, RunError: it cannot be used."""
        assert settings.demonstrations is not None, "the caller has seen the section"
        self._settings, self._run = settings.demonstrations, settings
        self.source: DemonstrationSource = DEMONSTRATIONS.build(self._settings.source)
        self._episodes: list[Trajectory] = []

    async def fill(self, context: RunContext, *, on_progress: Callable[[str, int, int], None]) -> None:
        """Play or read the episodes, unless every step makes its own. Raises: SettingsError: none succeeds."""
        if isinstance(self.source, StepDemonstrations):
            return
        request = DemonstrationRequest(
            num_episodes=self._settings.episodes,
            success_at=self._run.evaluation.success_at,
            seed=derive_seed(self._run.run.seed, "demonstrations"),
            agent=context.agent,
            env_sources=context.env_sources,
            curriculum=context.method.curriculum,
            on_progress=on_progress,
        )
        self.hold((await self.source(request)).imitated)

    def hold(self, episodes: Sequence[Trajectory]) -> None:
        """Draw from these episodes, as demonstrations. Raises: SettingsError: there are none."""
        if not episodes:
            where, do = "demonstrations", "check the env's oracle with `envgym check`, or choose another source"
            raise SettingsError.of("demonstrations", "have successful episodes", "none", where=where, do=do)
        trees = {id(episode.tree): replace(episode.tree, source=Source.DEMONSTRATION) for episode in episodes}
        self._episodes = [replace(episode, tree=trees[id(episode.tree)]) for episode in episodes]

    def draw(self, step: int, sampled: Sequence[Group] = ()) -> list[Trajectory]:
        """Return the episodes of a step that `sampled` these groups, each at most once; equal ones draw equal ones."""
        episodes = self.source.of_step(sampled) if isinstance(self.source, StepDemonstrations) else self._episodes
        count = min(self._settings.per_step, len(episodes))
        chosen = generator(self._run.run.seed, "demonstrations", step).choice(len(episodes), count, replace=False)
        return [episodes[number] for number in chosen]

    def join(
        self, batch: TrainingBatch, sampled: Sequence[Group], *, step: int, declare: Callable[[Tree], None]
    ) -> TrainingBatch:
        """Add the rows of a step's episodes to its batch, after `declare` was told of each."""
        episodes = self.draw(step, sampled)
        for episode in episodes:
            declare(episode.tree)
        return batch._replace(rows=[*batch.rows, *demonstration_rows(episodes, after=batch.rows)])


def demonstration_rows(episodes: Sequence[Trajectory], *, after: Sequence[TrainRow]) -> list[TrainRow]:
    """Return the rows of episodes to imitate, numbered after those of a step, with advantage 0.

    Whatever reads them does not read advantages: no baseline was ever theirs.
    """
    rows = train_rows(episode_credits(episodes, [0.0] * len(episodes)), once=False)
    first = {
        name: 1 + max((getattr(row.id, name) for row in after), default=-1)
        for name in ("episode", "tree", "group", "task")
    }
    return [
        replace(row, id=replace(row.id, **{name: getattr(row.id, name) + start for name, start in first.items()}))
        for row in rows
    ]
