"""Where the demonstrations of a warm start come from: the envs' oracles, another run's episodes, or a source of yours.

An oracle's episodes run through the same agent loop, so rows, masks and templates are those of training proper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from envgym.agents.loop.agent import Agent
from envgym.agents.rollout.driver import run_oracle_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Scored
from envgym.episodes import trees_of
from envgym.seeds import derive_seed
from envgym.trainer.catalog import DEMONSTRATIONS
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.protocols import Curriculum, CurriculumContext
from envgym.trainer.methods.replay.recorded import check_vocabulary, open_recorded, train_trees
from envgym.trainer.sections import SftSettings


class Demonstrations(NamedTuple):
    """The episodes of one phase of a warm start."""

    num_episodes: int
    """Played or read."""
    imitated: list[Trajectory]
    """Those to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationRequest:
    """What a source is to give, and what it may use."""

    num_episodes: int
    success_at: float
    """An episode succeeds when its reward is at least this."""
    seed: int
    """The run's."""
    agent: Agent
    env_sources: Mapping[str, EnvSource]
    curriculum: Curriculum
    on_progress: Callable[[str, int, int], None]
    """Called with (phase, done, total)."""

    def jobs(self, *, tasks_seed: int) -> list[EpisodeJob]:
        """Return episodes to play on train tasks, dealt over the mixture as the curriculum deals them."""
        tasks = TaskPool(self.env_sources)
        context = CurriculumContext(
            step=0, num_groups=self.num_episodes, group_size=1, supplies=tasks.supplies(), seed=tasks_seed
        )
        requests = [tasks.resolve(request) for request in self.curriculum.choose(context)]
        sources = [self.env_sources[request.env] for request in requests]
        return [
            EpisodeJob(
                make_env=source.make,
                task=tasks.task(request.env, request.index),
                seed=derive_seed(self.seed, "sft", number),
                tree_id=f"oracle/{number:06d}",
                env_id=source.env_id,
            )
            for number, (request, source) in enumerate(zip(requests, sources, strict=True))
        ]


class DemonstrationSource(Protocol):
    """Gives the demonstrations of one phase of a warm start."""

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Play or read the episodes."""
        ...

    def check_agent(self, agent: Agent) -> None:
        """Refuse an agent that cannot learn from them. Raises: SettingsError. Default: any can."""
        return


class OracleDemonstrations(DemonstrationSource):
    """The episodes of the envs' oracles that succeed."""

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Play the oracles on train tasks."""
        trees: list[Tree] = []
        for job in (jobs := request.jobs(tasks_seed=derive_seed(request.seed, "sft"))):
            trees.append(await run_oracle_episode(job, request.agent))
            request.on_progress("oracle episodes", len(trees), len(jobs))
        return _successes([episode for tree in trees for episode in trajectories(tree)], request.success_at)


class RecordedDemonstrations(DemonstrationSource):
    """The train episodes of another run that succeeded; their tokens are taken as they were sampled."""

    def __init__(self, directory: str) -> None:
        """Find the run. Raises: RunError: there is none. SettingsError: it saved no train episodes."""
        self._run = open_recorded(directory, where="sft.source recorded")

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Read the episodes."""
        return _successes(
            [episode for tree in train_trees(self._run) for episode in trajectories(tree)], request.success_at
        )

    def check_agent(self, agent: Agent) -> None:
        """See that recorded ids are to this model the tokens that they were. Raises: SettingsError: they are not."""
        first = trees_of(self._run.episodes(self._run.episode_steps()[:1], label="train"))
        check_vocabulary(first, agent, where=str(self._run.path))


def demonstration_sources(sft: SftSettings | None) -> list[DemonstrationSource]:
    """Build the source of every phase. Raises: SettingsError, UnknownName, RunError: one cannot be used."""
    return [] if sft is None else [DEMONSTRATIONS.build(phase.source) for phase in sft.phases]


def is_success(episode: Trajectory, success_at: float) -> bool:
    """Return whether an episode is valid and its reward at least `success_at`."""
    return isinstance(episode.reward, Scored) and episode.reward.value >= success_at


def _successes(episodes: list[Trajectory], success_at: float) -> Demonstrations:
    return Demonstrations(len(episodes), [episode for episode in episodes if is_success(episode, success_at)])
