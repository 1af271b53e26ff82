"""The other side of a game of two: a second policy that learns from its own seat, or a snapshot of the policy.

The game asks its party for a move and tells it, as a `Player`, what the episode paid it. The party is a seat that a
named model takes when the run is built.
"""

import statistics
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from envgym.agents.loop.agent import make_agent
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.core.builder import TreeBuilder
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Task
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Rewrite, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.env import Env
from envgym.errors import PartyFailure, PolicyFailure, SettingsError, check_known
from envgym.party import Player
from envgym.runs.directory import read_object
from envgym.runs.files import write_json
from envgym.runtime.event_loop import run_coroutine
from envgym.seeds import derive_seed
from envgym.trainer.batch.build import build_batch
from envgym.trainer.env_source import EnvSource
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.corrections.base import CORRECTION
from envgym.trainer.methods.credit.outcome import Grpo, episode_rewards
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.trained import LearningModel

_STATE = "version.json"
_Conversation = tuple[tuple[Role, str], ...]


class Game(NamedTuple):
    """A group of episodes that begin alike: what belongs to one train step."""

    task_key: str
    seed: int
    """Of the env's reset."""


@dataclass(slots=True)
class _Record:
    version: int
    """Of the opponent's weights when it began."""
    moves: dict[_Conversation, Generation] = field(default_factory=dict)
    """By the conversation that each answers."""
    finished: list[tuple[_Conversation, float, Task]] = field(default_factory=list)
    """Whole conversations, and what each has paid."""


class Opponent(LearningModel):
    """Play the other side of the run's games with its own weights, and learn from its rewards.

    Its episodes of a group of the run are a group of GRPO. They train in the step that the group is for, with the
    correction of the run. Within a group equal conversations have equal moves. With `refresh=n` it does not learn: it
    takes the policy's weights before the first step and after every n-th, which is self-play against the policy as it
    was.
    """

    def __init__(
        self,
        context: ModelContext,
        *,
        path: str | None = None,
        lr: float = 1e-6,
        grad_clip: float = 1.0,
        refresh: int | None = None,
    ) -> None:
        """Name the model.

        Args:
            context: of the run.
            path: model that it begins with, as `model.name`; null: a copy of the policy.
            lr: learning rate of AdamW.
            grad_clip: largest norm of the gradient.
            refresh: train steps between copies of the policy's weights, at least 1; None: it learns instead.
        """
        super().__init__(context, path=path, optim=OptimSettings(lr=lr, grad_clip=grad_clip))
        if refresh is not None and refresh < 1:
            do = "leave it out for an opponent that learns"
            raise SettingsError.of("refresh", "be at least 1", refresh, where="model opponent", do=do)
        self._refresh = refresh
        self._agent = make_agent(context.agent, context.tokenizer)
        temperature = context.sampling.temperature
        self._sampling = Sampling(
            temperature=temperature,
            max_new_tokens=context.agent.max_turn_tokens,
            stop_token_ids=tuple(self._agent.renderer.stop_token_ids),
        )
        self._objective = Objective(
            loss=PpoClip(),
            correction=CORRECTION.build(context.correction),
            settings=ObjectiveSettings(old_policy=context.objective.old_policy),
            temperature=temperature,
        )
        self._games: dict[Game, _Record] = {}
        """Begun and not learned from; a game that no step can train any more is forgotten."""
        self._records = threading.Lock()

    def _learner_of(self, module: nn.Module) -> Learner:
        self._policy = TransformersPolicy(module, shares_weights=True)
        return super()._learner_of(module)

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, the version that moves derive from, and the moves of games that go on."""
        super().save(folder)
        with self._records:
            games = [
                [*game, record.version, [[key, move.to_data()] for key, move in record.moves.items()]]
                for game, record in self._games.items()
            ]
        write_json(folder / _STATE, {"version": self._policy.version, "games": games})

    def load(self, folder: Path) -> None:
        super().load(folder)
        state = read_object(folder / _STATE)
        self._policy.set_version(state["version"])
        self._games = {}
        for task_key, seed, version, moves in state["games"]:
            of_game = {tuple((Role(r), text) for r, text in key): Generation.from_data(move) for key, move in moves}
            self._games[Game(task_key, seed)] = _Record(version, of_game)

    async def close(self) -> None:
        if self._learner is not None:
            self._policy.close()

    # ---- playing -------------------------------------------------------------------------------------------------

    def reply(self, messages: Sequence[Message], *, game: Game) -> Message:
        """Sample the next move in a conversation; equal conversations have equal moves until the weights change.

        Raises: PartyFailure: the model failed.
        """
        key = _key(messages)
        with self._records:
            move = self._record_of(game).moves.get(key)
        if move is None:
            move = self._sample(messages)
            with self._records:  # of two that asked at a time, the first is heard
                move = self._record_of(game).moves.setdefault(key, move)
        return Message(role=Role.ASSISTANT, content=self._agent.parse(move).content)

    def end(self, messages: Sequence[Message], reward: float, *, task: Task, game: Game) -> None:
        """Take in what an episode has paid."""
        with self._records:
            self._record_of(game).finished.append((_key(messages), reward, task))

    def _record_of(self, game: Game) -> _Record:
        return self._games.setdefault(game, _Record(self._policy.version))

    def _context_of(self, messages: Sequence[Message]) -> tuple[Segment, ...]:
        return self._agent.start(messages, ()).segments

    def _sample(self, messages: Sequence[Message]) -> Generation:
        token_ids = tuple(token for segment in self._context_of(messages) for token in segment.token_ids)
        seed = derive_seed(self._context.run.seed, "opponent", self._policy.version, *_texts(messages))
        request = GenerateRequest(token_ids=token_ids, sampling=self._sampling, seed=seed)
        try:
            with self._one_at_a_time:
                return run_coroutine(self._policy.generate(request))
        except PolicyFailure as error:
            raise PartyFailure(str(error)) from error

    # ---- learning --------------------------------------------------------------------------------------------------

    def train_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Learn from its side of the step's groups, or take the policy's weights where it is time to."""
        games = dict.fromkeys(Game(tree.task_key, tree.seed) for group in groups for tree in group.trees)
        staleness = self._context.staleness
        with self._records:
            records = {game: self._games.pop(game) for game in games if game in self._games}
            self._games = {game: of for game, of in self._games.items() if step < of.version + staleness}
        by_game = {game: self._trees(game, record) for game, record in records.items()}
        played = [Group(key=f"opponent/{n}", trees=trees) for n, trees in enumerate(by_game.values()) if trees]
        rewards = [reward for group in played for reward in episode_rewards(group)]
        metrics = {"episodes": float(len(rewards)), **({"reward": statistics.fmean(rewards)} if rewards else {})}
        with self._one_at_a_time, self._policy.pause(step + 1):
            if self._refresh is not None:
                if (step + 1) % self._refresh == 0:
                    self.learner.model.load_state_dict(self._context.model.state_dict())
                return metrics
            rows = build_batch(played, Grpo(), once=False).rows
            learned = self.learner.train_step(rows, self._objective, step=step) if rows else {}
        return metrics | {name: learned[f"{of}/{name}"] for of, name in _SHOWN if f"{of}/{name}" in learned}

    def _trees(self, game: Game, record: _Record) -> tuple[Tree, ...]:
        """Return its episodes of a game in which it moved; in an order that does not depend on which ended first."""
        trees: list[Tree] = []
        for conversation, reward, task in sorted(record.finished, key=lambda item: item[:2]):
            messages = [Message(role=role, content=text) for role, text in conversation]
            places = [place for place, (role, _) in enumerate(conversation) if role is Role.ASSISTANT]
            if places:
                played = [(self._context_of(messages[:end]), record.moves[conversation[:end]]) for end in places]
                trees.append(_tree(f"opponent/{game.task_key}/{game.seed}/{len(trees)}", task, played, reward))
        return tuple(trees)


_SHOWN = (("loss", "policy"), ("optim", "grad_norm"))


def _texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages for text in (message.role.value, message.content)]


def _key(messages: Sequence[Message]) -> _Conversation:
    return tuple((message.role, message.content) for message in messages)


def _tree(id: str, task: Task, played: Sequence[tuple[tuple[Segment, ...], Generation]], reward: float) -> Tree:
    """Return an episode whose context was rendered anew before every move."""
    builder = TreeBuilder(id=id, env_id="opponent", task=task, seed=0, prompt=played[0][0])
    node = builder.root
    for number, (context, generation) in enumerate(played):
        sampled = Segment(
            origin=Origin.POLICY,
            token_ids=generation.token_ids,
            behavior_logprobs=generation.behavior_logprobs,
            policy_version=generation.policy_version,
        )
        again = tuple(replace(segment, origin=Origin.PROMPT) for segment in context) if number else ()
        is_last = number == len(played) - 1
        outcome = TurnOutcome(action=Action(""), observation=Observation(), reward=Scored(value=reward * is_last))
        node = builder.add(
            node,
            Edge(segments=(*again, sampled), ends_turn=True, rewrite=Rewrite.TEMPLATE if number else None),
            outcome=outcome,
            ending=Ending.TERMINATED if is_last else None,
        )
    return builder.freeze()


# ---- seats -----------------------------------------------------------------------------------------------------------


class ModelParty(Player):
    """A seat of an env that one of the run's models takes: `parties: {opponent: {name: ..., model: NAME}}`."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._player: Opponent | None = None
        self._env: Env[Any] | None = None

    def take(self, models: Mapping[str, Model], env: Env[Any], *, where: str) -> None:
        """Let the model play in an env. Raises: UnknownName: there is none. SettingsError: it plays no games."""
        remedy = f"add models.{self.model} to the settings"
        check_known("model", self.model, list(models), where=where, remedy=remedy)
        player = models[self.model]
        if not isinstance(player, Opponent):
            got, do = type(player).__name__, "name a model of the kind opponent"
            raise SettingsError.of(f"model {self.model}", "play a seat", got, where=where, do=do)
        self._player, self._env = player, env.unwrapped

    def reply(self, messages: Sequence[Message]) -> Message:
        """Ask the model. Raises: PartyFailure: no training run has given the seat to one, or it failed."""
        if self._player is None:
            do = "evaluate with another party, such as scripted"
            raise PartyFailure.of("seat", "be taken by a model of a training run", "none", where=self.model, do=do)
        return self._player.reply(messages, game=self._game)

    def end(self, messages: Sequence[Message], reward: float, task: Task) -> None:
        """Tell the model what it was paid."""
        if self._player is not None:
            self._player.end(messages, reward, task=task, game=self._game)

    @property
    def _game(self) -> Game:
        """What the env plays: forks of it share the seat, and its seed."""
        assert self._env is not None, "the seat was taken"
        return Game(self._env.task.key, self._env.np_random_seed)


def seat_models(env_sources: Mapping[str, EnvSource], models: Mapping[str, Model]) -> dict[str, EnvSource]:
    """Return the env sources with the run's models in the seats that name them; others are as they were.

    Raises: UnknownName, SettingsError: a seat names a model that the run has not, or that plays no games.
    """

    def seated(source: EnvSource) -> Env[Any]:  # every env has its own state type
        env = source.make()
        for seat in model_seats(env):
            seat.take(models, env, where=f"parties of {source.label}")
        return env

    sources = dict(env_sources)
    for label, source in env_sources.items():
        with closing(source.make()) as env:
            has_seats = bool(model_seats(env))
        if has_seats:
            seated(source).close()
            sources[label] = replace(source, make=partial(seated, source))
    return sources


def model_seats(env: Env[Any]) -> list[ModelParty]:
    """Return the seats of an env that models of the run take."""
    return [party for party in env.unwrapped.parties.values() if isinstance(party, ModelParty)]
