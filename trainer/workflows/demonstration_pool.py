"""Demonstrations beside the episodes of every step, for terms of the objective that imitate."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from envgym.config.plugins import Choice
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.seeds import derive_seed, generator
from envgym.trainer.batch.build import TrainingBatch, with_scores
from envgym.trainer.batch.rows import TrainRow, train_rows
from envgym.trainer.batch.scores import ComputeScores, score_episodes
from envgym.trainer.checks.mask_audit import MaskAudit
from envgym.trainer.method import Method
from envgym.trainer.methods.credit.outcome import episode_credits
from envgym.trainer.methods.protocols import CRITIC_VALUES, CURRICULUM
from envgym.trainer.methods.scores import required_scores
from envgym.trainer.run import RunContext
from envgym.trainer.workflows.demonstrations import (
    DEMONSTRATIONS,
    DemonstrationRequest,
    DemonstrationSource,
    StepDemonstrations,
)
from envgym.trainer.workflows.settings import DemonstrationSettings


class DemonstrationPool:
    """The demonstrations of a run, from which every step draws some."""

    def __init__(self, settings: DemonstrationSettings, *, seed: int, success_at: float, curriculum: Choice) -> None:
        """Build the source.

        Args:
            settings: the section.
            seed: of the run.
            success_at: reward from which an episode is a success.
            curriculum: chooses the tasks; as the run began, so that a resumed one has the same.

        Raises: SettingsError, UnknownName, RunError: the source cannot be used.
        """
        self._settings, self._seed, self._success_at, self._curriculum = settings, seed, success_at, curriculum
        self.source: DemonstrationSource = DEMONSTRATIONS.build(self._settings.source)
        self._episodes: list[Trajectory] = []

    async def fill(self, context: RunContext, *, on_progress: Callable[[str, int, int], None]) -> None:
        """Play or read the episodes, unless every step makes its own. Raises: SettingsError: none succeeds."""
        if isinstance(self.source, StepDemonstrations):
            return
        request = DemonstrationRequest(
            num_episodes=self._settings.episodes,
            success_at=self._success_at,
            seed=derive_seed(self._seed, "demonstrations"),
            agent=context.agent,
            env_sources=context.env_sources,
            curriculum=CURRICULUM.build(self._curriculum),
            on_progress=on_progress,
        )
        self.hold((await self.source(request)).imitated)

    def hold(self, episodes: Sequence[Trajectory]) -> None:
        """Draw from these episodes, as demonstrations. Raises: SettingsError: there are none."""
        where, do = "demonstrations", "check the env's oracle with `envgym check`, or choose another source"
        SettingsError.unless(episodes, "demonstrations", "have successful episodes", "none", where=where, do=do)
        trees = {id(episode.tree): replace(episode.tree, source=Source.DEMONSTRATION) for episode in episodes}
        self._episodes = [replace(episode, tree=trees[id(episode.tree)]) for episode in episodes]

    def draw(self, step: int, sampled: Sequence[Group] = ()) -> list[Trajectory]:
        """Return the episodes of a step that `sampled` these groups, each at most once; equal ones draw equal ones."""
        episodes = self.source.of_step(sampled) if isinstance(self.source, StepDemonstrations) else self._episodes
        count = min(self._settings.per_step, len(episodes))
        numbers = generator(self._seed, "demonstrations", step).choice(len(episodes), count, replace=False)
        return [episodes[number] for number in numbers]

    def join(
        self,
        context: RunContext,
        batch: TrainingBatch,
        sampled: Sequence[Group],
        audit: MaskAudit,
        *,
        step: int,
    ) -> TrainingBatch:
        """Add the rows of a step's episodes to its batch.

        Args:
            context: of the run: its terms read the rows, and its models compute their scores.
            batch: of the step.
            sampled: the groups of the step.
            audit: is told of each episode.
            step: the train step, from 1.
        """
        episodes = self.draw(step, sampled)
        for episode in episodes:
            audit.declare(episode.tree)
        rows = demonstration_rows(episodes, context.method, context.compute_scores, after=batch.rows)
        return batch._replace(rows=[*batch.rows, *rows])


def demonstration_rows(
    episodes: Sequence[Trajectory], method: Method, compute: ComputeScores, *, after: Sequence[TrainRow]
) -> list[TrainRow]:
    """Return the rows of episodes to imitate, numbered after those of a step, with advantage 0.

    Whatever reads them does not read advantages: no baseline was ever theirs. Scores are computed for the terms that
    read demonstrations; a score that only others read is 0, so that every row of an update has each score.
    """
    credits, origins = episode_credits(episodes, [0.0] * len(episodes)), method.objective.origins
    rows = train_rows(credits, once=False, origins=origins)
    terms = {term.name: term.loss for term in method.objective.terms if Source.DEMONSTRATION in term.sources}
    scores = score_episodes(episodes, required_scores(terms), compute, origins=origins)
    rows = with_scores(rows, credits, scores)
    others = {request.name for request in method.scores} - {CRITIC_VALUES, *scores}
    first = {
        name: 1 + max((getattr(row.id, name) for row in after), default=-1)
        for name in ("episode", "tree", "group", "task")
    }
    return [
        replace(
            row,
            id=replace(row.id, **{name: getattr(row.id, name) + start for name, start in first.items()}),
            scores={**row.scores, **dict.fromkeys(others, (0.0,) * len(row))},
        )
        for row in rows
    ]
