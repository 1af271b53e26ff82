"""The other side of a game of two: a second policy that learns from its own seat, or a snapshot of the policy.

The game asks its party for a move and tells it, as a `Player`, what the episode paid it. The party is a seat that a
named model takes when the run is built.
"""

import asyncio
import statistics
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from envgym.agents.loop.agent import make_agent
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.core.builder import TreeBuilder
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Task
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Rewrite, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.env import Env
from envgym.errors import PartyFailure, PolicyFailure, SettingsError, check_known, sentence
from envgym.files import write_json
from envgym.party import Player
from envgym.runs import read_object
from envgym.seeds import derive_seed
from envgym.trainer.batch.build import build_batch
from envgym.trainer.env_source import EnvSource
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.credit.outcome import Grpo, episode_rewards
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.trained import LearningModel
from envgym.trainer.sections import ObjectiveSettings, OptimSettings

_VERSION = "version.json"
_Conversation = tuple[tuple[Role, str], ...]


class Opponent(LearningModel):
    """Play the other side of the run's games with its own weights, and learn from its rewards.

    Its episodes of a task are a group of GRPO. With `refresh=n` it does not learn: it takes the policy's weights before
    the first step and after every n-th, which is self-play against the policy as it was.
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
            raise SettingsError(sentence("refresh", "be at least 1", refresh, where="model opponent", do=do))
        self._refresh = refresh
        self._agent = make_agent(context.settings.agent, context.tokenizer)
        temperature = context.settings.sampling.temperature
        self._sampling = Sampling(
            temperature=temperature,
            max_new_tokens=context.settings.agent.max_turn_tokens,
            stop_token_ids=tuple(self._agent.renderer.stop_token_ids),
        )
        self._objective = Objective(
            loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=temperature
        )
        self._moves: dict[_Conversation, tuple[tuple[Segment, ...], Generation]] = {}
        self._finished: dict[str, list[tuple[_Conversation, float, Task]]] = {}
        """By task."""
        self._records = threading.Lock()

    def _learner_of(self, module: nn.Module) -> Learner:
        self._policy = TransformersPolicy(module, shares_weights=True)
        return super()._learner_of(module)

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and the version that moves derive from."""
        super().save(folder)
        write_json(folder / _VERSION, {"version": self._policy.version})

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote."""
        super().load(folder)
        self._policy.set_version(read_object(folder / _VERSION)["version"])

    async def close(self) -> None:
        """End its sampling."""
        if self._learner is not None:
            self._policy.close()

    # ---- playing -------------------------------------------------------------------------------------------------

    def reply(self, messages: Sequence[Message]) -> Message:
        """Sample the next move in a conversation; equal conversations have equal moves until the weights change.

        Raises: PartyFailure: the model failed.
        """
        context = self._agent.start(messages, ())
        token_ids = tuple(token for segment in context.segments for token in segment.token_ids)
        seed = derive_seed(self._context.settings.run.seed, "opponent", self._policy.version, *_texts(messages))
        request = GenerateRequest(token_ids=token_ids, sampling=self._sampling, seed=seed)
        try:
            with self._one_at_a_time:
                generation = asyncio.run(self._policy.generate(request))
        except PolicyFailure as error:
            raise PartyFailure(str(error)) from error
        with self._records:
            self._moves[_key(messages)] = (context.segments, generation)
        return Message(role=Role.ASSISTANT, content=self._agent.parse(generation).content)

    def end(self, messages: Sequence[Message], reward: float, task: Task) -> None:
        """Take in what an episode has paid."""
        with self._records:
            self._finished.setdefault(task.key, []).append((_key(messages), reward, task))

    # ---- learning --------------------------------------------------------------------------------------------------

    def train_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Learn from its side of the step's tasks, or take the policy's weights where it is time to."""
        with self._records:
            finished, moves = self._finished, self._moves
            self._finished, self._moves = {}, {}
        keys = dict.fromkeys(group.trees[0].task_key for group in groups)
        found = {key: self._trees(key, finished.get(key, ()), moves) for key in keys}
        played = [Group(key=f"opponent/{key}", trees=trees) for key, trees in found.items() if trees]
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

    def _trees(
        self,
        key: str,
        finished: Sequence[tuple[_Conversation, float, Task]],
        moves: Mapping[_Conversation, tuple[tuple[Segment, ...], Generation]],
    ) -> tuple[Tree, ...]:
        """Return its episodes of a task in which it moved; in an order that does not depend on which ended first."""
        trees: list[Tree] = []
        for conversation, reward, task in sorted(finished, key=lambda item: item[:2]):
            places = [place for place, (role, _) in enumerate(conversation) if role is Role.ASSISTANT]
            if places:
                played = [moves[conversation[:place]] for place in places]
                trees.append(_tree(f"opponent/{key}/{len(trees)}", task, played, reward))
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
        """Name the model."""
        self.model = model
        self._player: Opponent | None = None

    def take(self, models: Mapping[str, Model], *, where: str) -> None:
        """Let the model play. Raises: UnknownName: there is none. SettingsError: it plays no games."""
        check_known("model", self.model, list(models), where=where)
        player = models[self.model]
        if not isinstance(player, Opponent):
            got, do = type(player).__name__, "name a model of the kind opponent"
            raise SettingsError(sentence(f"model {self.model}", "play a seat", got, where=where, do=do))
        self._player = player

    def reply(self, messages: Sequence[Message]) -> Message:
        """Ask the model. Raises: PartyFailure: no training run has given the seat to one, or it failed."""
        if self._player is None:
            do = "evaluate with another party, such as scripted"
            raise PartyFailure.of("seat", "be taken by a model of a training run", "none", where=self.model, do=do)
        return self._player.reply(messages)

    def end(self, messages: Sequence[Message], reward: float, task: Task) -> None:
        """Tell the model what it was paid."""
        if self._player is not None:
            self._player.end(messages, reward, task)


def seat_models(env_sources: Mapping[str, EnvSource], models: Mapping[str, Model]) -> dict[str, EnvSource]:
    """Return the env sources with the run's models in the seats that name them; others are as they were.

    Raises: UnknownName, SettingsError: a seat names a model that the run has not, or that plays no games.
    """

    def seated(source: EnvSource) -> Env[Any]:  # every env has its own state type
        env = source.make()
        for seat in _seats(env):
            seat.take(models, where=f"parties of {source.label}")
        return env

    found = dict(env_sources)
    for label, source in env_sources.items():
        with closing(source.make()) as env:
            has_seats = bool(_seats(env))
        if has_seats:
            seated(source).close()
            found[label] = replace(source, make=partial(seated, source))
    return found


def _seats(env: Env[Any]) -> list[ModelParty]:
    return [party for party in env.unwrapped.parties.values() if isinstance(party, ModelParty)]
