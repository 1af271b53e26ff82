"""Preference pairs: siblings of a group or of a fork, of which one was rewarded more."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from envgym.core.messages import Message
from envgym.core.pairs import Pair, sibling_pairs
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Scored
from envgym.export.contexts import Context, TreeConversations
from envgym.export.episodes import RecordedGroup, RecordedTree
from envgym.export.rows import (
    EPISODE_COLUMNS,
    INVALID,
    MESSAGES,
    TOOLS_COLUMN,
    DataKind,
    DataRow,
    Json,
    RowOptions,
    Span,
    episode_cells,
    message_cell,
    recorded_contexts,
    tools_cell,
)

_TurnName = tuple[int | str, int]
"""Number of a tree in its group and the node at which the turn ends; or a text for what trees share: the
opening, or with it the first message of the policy."""


class _Sibling(NamedTuple):
    """A turn, as an episode through it goes on."""

    recorded: RecordedTree
    episode: Trajectory
    reward: float
    context: Context
    place: int
    """Of the turn in the context."""

    @property
    def prompt(self) -> list[Json]:
        return [message_cell(message) for message in self._messages[: self._start]]

    def completion(self, span: str) -> list[Json]:
        end = self._start + 1 if span == "turn" else None
        return [message_cell(message) for message in self._messages[self._start : end]]

    @property
    def _messages(self) -> list[Message]:
        return [message for message, _ in self.context.messages]

    @property
    def _start(self) -> int:
        assert self.context.opening is not None, "only recorded contexts are compared"
        return len(self.context.opening) + sum(len(turn.messages) for turn in self.context.turns[: self.place])


@dataclass(slots=True)
class _Siblings:
    """The turns of a group that siblings have, with the best and the worst episode through each."""

    paths: list[list[_TurnName]]
    rewards: list[float]
    best: dict[_TurnName, _Sibling]
    worst: dict[_TurnName, _Sibling]

    def add(
        self, number: int, recorded: RecordedTree, episode: Trajectory, contexts: list[Context], span: Span
    ) -> None:
        """Add an episode. A group's trees with one opening are siblings at it.

        First turns of one message are one sibling there, if nothing but the message is compared.
        """
        assert isinstance(episode.reward, Scored), "only valid episodes are compared"
        reward = episode.reward.value
        opening = json.dumps([message_cell(message) for message in contexts[0].opening or ()])
        is_message = span == "turn" or sum(len(context.turns) for context in contexts) == 1
        path: list[_TurnName] = [(opening, 0)]
        for context in contexts:
            for place, turn in enumerate(context.turns):
                name: _TurnName = (number, turn.node)
                if is_message and len(path) == 1:
                    first = (f"{opening} {json.dumps(message_cell(turn.messages[0]))}", 0)
                    self.paths.append([*path, first])
                    self.rewards.append(reward)
                    path, name = [name], first
                else:
                    path.append(name)
                sibling = _Sibling(recorded, episode, reward, context, place)
                if turn.is_sampled:
                    self.best[name] = max(self.best.get(name, sibling), sibling, key=lambda item: item.reward)
                    self.worst[name] = min(self.worst.get(name, sibling), sibling, key=lambda item: item.reward)
        self.paths.append(path)
        self.rewards.append(reward)


def _rows(group: RecordedGroup, options: RowOptions) -> Iterator[DataRow]:
    siblings = _Siblings([], [], {}, {})
    for number, recorded in enumerate(group.trees):
        conversations = TreeConversations(recorded.tree, options.redact)
        for leaf in recorded.tree.leaves:
            episode = Trajectory(tree=recorded.tree, leaf=leaf)
            if not (episode.is_valid and episode.has_reward):
                options.left_out[INVALID] += 1
                continue
            contexts = list(recorded_contexts(conversations.contexts(episode), options))
            if contexts:
                siblings.add(number, recorded, episode, contexts, options.span)
    pairs = sibling_pairs(siblings.paths, siblings.rewards, which=options.pairs, min_margin=options.min_margin)
    for pair in pairs:
        yield from _row(pair, siblings, options)


def _row(pair: Pair[_TurnName], siblings: _Siblings, options: RowOptions) -> Iterator[DataRow]:
    if pair.chosen not in siblings.best or pair.rejected not in siblings.worst:
        options.left_out["pairs of turns that the policy did not sample"] += 1
        return
    better, worse = siblings.best[pair.chosen], siblings.worst[pair.rejected]
    tree = better.recorded.tree
    prompt, preferred, other = better.prompt, better.completion(options.span), worse.completion(options.span)
    if prompt != worse.prompt:
        options.left_out["pairs with different contexts"] += 1
    elif preferred == other:
        options.left_out["pairs with equal messages"] += 1
    else:
        shared = {
            name: value for name, value in episode_cells(better.recorded, better.episode).items() if name in _SHARED
        }
        cells = {
            **shared,
            "rejected_id": episode_cells(worse.recorded, worse.episode)["id"],
            "turn": better.context.turns[better.place].number,
            "prompt": prompt,
            "chosen": preferred,
            "rejected": other,
            "tools": tools_cell(tree.tools),
            "margin": pair.margin,
        }
        num_turns = sum(message["role"] == "assistant" for message in (*preferred, *other))
        yield DataRow(tree.split, tree.task_key, num_turns, cells)


_SHARED: Final = ("id", "env_id", "task_id", "step")
KIND: Final = DataKind(
    name="preferences",
    title="two siblings: answers to one context, of which the chosen one was rewarded more",
    use=(
        "Preference learning: TRL's `DPOTrainer`. With `--span episode`, completions of several turns also hold the "
        "replies of the environment."
    ),
    columns={
        **{name: EPISODE_COLUMNS[name] for name in _SHARED},
        "rejected_id": (pa.string(), "the same of the rejected episode"),
        "turn": (pa.int64(), "number of the turn at which the two differ, from 0"),
        "prompt": (MESSAGES, "messages that both answer, in OpenAI's form"),
        "chosen": (MESSAGES, "messages from the turn on, in the best episode through it"),
        "rejected": (MESSAGES, "messages from the turn on, in the worst episode through it"),
        "tools": TOOLS_COLUMN,
        "margin": (pa.float64(), "mean reward of the episodes through the chosen turn minus that of the rejected turn"),
    },
    rows=_rows,
    options=("redact", "min_margin", "pairs", "span"),
)
