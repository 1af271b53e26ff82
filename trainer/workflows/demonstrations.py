"""Where the demonstrations of a warm start come from: the envs' oracles, another run's episodes, or a source of yours.

An oracle's episodes run through the same agent loop, so rows, masks and templates are those of training proper.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, runtime_checkable

from envgym.agents.loop.agent import Agent, AgentSettings, OnLength
from envgym.agents.rollout.driver import run_oracle_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.config.plugins import PluginKind
from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Group, Trajectory, Turn, trajectories
from envgym.core.tree import Annotation, Edge, Node, Source, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome, is_success
from envgym.errors import SettingsError, sentence
from envgym.runs.episodes import trees_of
from envgym.seeds import derive_seed
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.annotators.process_reward import turn_prefixes
from envgym.trainer.methods.protocols import Curriculum, CurriculumContext
from envgym.trainer.methods.replay.recorded import check_vocabulary, open_recorded, train_trees
from envgym.trainer.tables import KINDS
from envgym.trainer.workflows.critic_value import critic
from envgym.trainer.workflows.settings import SftSettings

_log = logging.getLogger(__name__)


class Demonstrations(NamedTuple):
    """The episodes of one phase of a warm start."""

    num_episodes: int
    """Played or read."""
    imitated: list[Trajectory]
    """Those to learn from."""
    num_truncated: int = 0
    """Played episodes that did not fit the agent's context: they ended as `TRUNCATED_TOKENS`."""


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
    is_sample: bool = False
    """Whether the first `num_episodes` are enough, also of a source that reads all that it has."""

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


DEMONSTRATIONS: Final[PluginKind[DemonstrationSource]] = KINDS["demonstrations"]


class OracleDemonstrations(DemonstrationSource):
    """The episodes of the envs' oracles that succeed."""

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Play the oracles on train tasks."""
        trees: list[Tree] = []
        for job in (jobs := request.jobs(tasks_seed=derive_seed(request.seed, "sft"))):
            trees.append(await run_oracle_episode(job, request.agent))
            request.on_progress("oracle episodes", len(trees), len(jobs))
        episodes = [episode for tree in trees for episode in trajectories(tree)]
        num_truncated = sum(episode.ending is Ending.TRUNCATED_TOKENS for episode in episodes)
        return _successes(episodes, request.success_at)._replace(num_truncated=num_truncated)


class RecordedDemonstrations(DemonstrationSource):
    """The train episodes of another run that succeeded; their tokens are taken as they were sampled."""

    def __init__(self, directory: str, *, min_value: float | None = None) -> None:
        """Find the run.

        Args:
            directory: of the run.
            min_value: least value of an episode by the run's own critic, such as `envgym value` fits one; None: any.

        Raises: RunError: there is none. SettingsError: it saved no train episodes.
        """
        self._run = open_recorded(directory, where="sft.source recorded")
        self._min_value = min_value

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Read the episodes. Raises: RunError: a value is asked for, and the run has no critic."""
        episodes = [episode for tree in train_trees(self._run) for episode in trajectories(tree)]
        demonstrations = _successes(episodes, request.success_at)
        if self._min_value is None:
            return demonstrations
        prefixes = [turn_prefixes(episode)[-1].token_ids for episode in demonstrations.imitated]
        values = critic(str(self._run.path)).compute_values(prefixes, [True] * len(prefixes))
        imitated = [item for item, v in zip(demonstrations.imitated, values, strict=True) if v >= self._min_value]
        return demonstrations._replace(imitated=imitated)

    def check_agent(self, agent: Agent) -> None:
        """See that recorded ids are to this model the tokens that they were. Raises: SettingsError: they are not."""
        first = trees_of(self._run.episodes(self._run.episode_steps()[:1], label="train"))
        check_vocabulary(first, agent, where=str(self._run.path))


@runtime_checkable
class StepDemonstrations(DemonstrationSource, Protocol):
    """Gives demonstrations that are made of what a step has sampled, in place of episodes that were there before."""

    def of_step(self, groups: Sequence[Group]) -> list[Trajectory]:
        """Return the demonstrations of a step."""
        ...


class RewrittenDemonstrations(StepDemonstrations):
    """What an annotator such as `rewriter` wrote about a step's episodes, as answers to their first context.

    Texts of value 1 alone are taken. Source: 2505.17005 (R1-Searcher++), the memorisation of what was looked up.
    """

    def __init__(self, annotation: str = "rewrite") -> None:
        """Name the annotations.

        Args:
            annotation: Name of the annotations whose texts are imitated.
        """
        self.annotation = annotation
        self._agent: Agent | None = None

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Give nothing before the first step."""
        del request
        return Demonstrations(0, [])

    def check_agent(self, agent: Agent) -> None:
        """Take the agent, whose model the texts are written for."""
        self._agent = agent

    def of_step(self, groups: Sequence[Group]) -> list[Trajectory]:
        """Return the texts as episodes of one turn. Raises: InvalidInput: the model's tokens cannot spell one."""
        return [
            self._episode(tree, item)
            for group in groups
            for tree in group.trees
            for item in tree.annotations
            if item.name == self.annotation and item.level == "episode" and item.value == 1.0
        ]

    def _episode(self, tree: Tree, item: Annotation) -> Trajectory:
        assert self._agent is not None, "a run checks its agent first"
        action = Action(item.verdict)
        ids = self._agent.renderer.encode_action(action)
        segment = Segment(
            origin=Origin.POLICY, token_ids=tuple(ids), behavior_logprobs=(0.0,) * len(ids), policy_version=0
        )
        outcome = TurnOutcome(action=action, observation=Observation(), reward=Scored(value=1.0))
        turn = Node(parent=0, edge=Edge(segments=(segment,), ends_turn=True), outcome=outcome, ending=Ending.TERMINATED)
        nodes = (replace(tree.nodes[0], stats=None), turn)
        id = f"{tree.id}/{item.node}/{self.annotation}"
        written = replace(
            tree, id=id, nodes=nodes, source=Source.DEMONSTRATION, annotations=(), prompts={}, prefix=None
        )
        return Trajectory(tree=written, leaf=1)


def demonstration_sources(sft: SftSettings | None) -> list[DemonstrationSource]:
    """Build the source of every phase. Raises: SettingsError, UnknownName, RunError: one cannot be used."""
    return [] if sft is None else [DEMONSTRATIONS.build(phase.source) for phase in sft.phases]


def check_lengths(demonstrations: Demonstrations, agent: AgentSettings, *, where: str) -> None:
    """Warn where the agent's limits are too low for some demonstrations: the policy could not do what it learns.

    Raises: SettingsError: they are too low for all. A turn that is closed at its limit reaches the env all the same, so
        turns are refused with `on_length: truncate` alone.
    """
    turns = [max(map(_num_sampled, episode.turns), default=0) for episode in demonstrations.imitated]
    is_closed = agent.on_length is OnLength.CLOSE  # then no token is needed that ends the turn
    if num_long := sum(length > agent.max_turn_tokens + is_closed for length in turns):
        got = f"{agent.max_turn_tokens} where {num_long} of {len(turns)} have turns of up to {max(turns)} tokens"
        must, do = "hold the turns of the demonstrations", f"set it to {max(turns)}"
        text = sentence("agent.max_turn_tokens", must, got, where=where, do=do)
        _warn_or_refuse(text, refuses=num_long == len(turns) and not is_closed)
    rows = [max(map(len, episode.rows)) for episode in demonstrations.imitated]
    too_long = sum(length > agent.max_context_tokens for length in rows) + demonstrations.num_truncated
    if too_long:
        num_episodes = len(rows) + demonstrations.num_truncated
        got = f"{agent.max_context_tokens} where {too_long} of {num_episodes} do not fit"
        do = "raise it, or lower agent.max_turn_tokens, for which room is kept free"
        text = sentence("agent.max_context_tokens", "hold the demonstrations", got, where=where, do=do)
        _warn_or_refuse(text, refuses=too_long == num_episodes)


def _num_sampled(turn: Turn) -> int:
    """Return the tokens of a turn that the policy would have to sample."""
    return sum(len(segment) for segment in turn.segments if segment.origin is Origin.POLICY)


def _warn_or_refuse(text: str, *, refuses: bool) -> None:
    if refuses:
        raise SettingsError(text)
    _log.warning("%s", text)


def _successes(episodes: list[Trajectory], success_at: float) -> Demonstrations:
    return Demonstrations(len(episodes), [episode for episode in episodes if is_success(episode.reward, success_at)])
