"""Process-reward data: the turns of an episode as steps, each with a label from the episodes that went through it."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from envgym.chats.sharegpt import answer_text
from envgym.core.messages import Message, Role
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Invalid, Scored, is_success
from envgym.export.contexts import Context, TreeConversations
from envgym.export.episodes import RecordedGroup, RecordedTree
from envgym.export.rows import (
    CONTEXT_COLUMNS,
    EPISODE_COLUMNS,
    INVALID,
    DataKind,
    DataRow,
    Json,
    RowOptions,
    chosen_episodes,
    context_cells,
    episode_cells,
    recorded_contexts,
)

_SEPARATOR: Final = "\n\n"


def _rows(group: RecordedGroup, options: RowOptions) -> Iterator[DataRow]:
    for recorded in group.trees:
        tree = recorded.tree
        conversations, rewards = TreeConversations(tree, options.redact), _rewards_through(tree)
        for episode in chosen_episodes(recorded, options):
            if not (episode.is_valid and episode.has_reward):
                options.left_out[INVALID] += 1
                continue
            for context in recorded_contexts(conversations.contexts(episode), options):
                cells = episode_cells(recorded, episode) | context_cells(context)
                cells |= _steps(recorded, episode, context, rewards, options.choice.success_at)
                yield DataRow(tree.split, tree.task_key, len(context.turns), cells)


def _rewards_through(tree: Tree) -> dict[int, list[Scored]]:
    """Return node -> rewards of the valid episodes through it."""
    rewards: dict[int, list[Scored]] = defaultdict(list)
    for episode in trajectories(tree):
        if isinstance(episode.reward, Scored):
            for node in episode.path:
                rewards[node].append(episode.reward)
    return rewards


def _steps(
    recorded: RecordedTree,
    episode: Trajectory,
    context: Context,
    rewards_through: dict[int, list[Scored]],
    success_at: float,
) -> Json:
    assert context.opening is not None, "only recorded contexts are exported"
    completions: list[str] = []
    replies: Sequence[Message] = ()
    for turn in context.turns:
        completions.append(_SEPARATOR.join(map(_text, (*replies, turn.messages[0]))))
        replies = turn.messages[1:]
    through = [rewards_through[turn.node] for turn in context.turns]
    paid = [recorded.tree.nodes[turn.node].outcome for turn in context.turns]
    return {
        "prompt": _SEPARATOR.join(map(_text, context.opening)),
        "completions": completions,
        "labels": [any(is_success(reward, success_at) for reward in of_turn) for of_turn in through],
        "values": [statistics.fmean(reward.value for reward in of_turn) for of_turn in through],
        "rewards": [
            None if outcome is None or isinstance(outcome.reward, Invalid) else outcome.reward.value for outcome in paid
        ],
        "advantages": _turn_advantages(recorded, episode, context),
    }


def _turn_advantages(recorded: RecordedTree, episode: Trajectory, context: Context) -> list[float | None]:
    """Return the mean advantage of each turn over its nodes and their tokens; None where it was not trained on."""
    entries = recorded.advantages.get(episode.leaf)
    if entries is None:
        return [None] * len(context.turns)
    by_node = dict(zip(episode.path, entries, strict=True))
    means: list[float | None] = []
    for turn in context.turns:
        values: list[float] = []
        for node in episode.turn_nodes[turn.number]:
            entry = by_node[node]
            values += entry if isinstance(entry, Sequence) else [entry]
        means.append(statistics.fmean(values) if values else None)
    return means


def _text(message: Message) -> str:
    return answer_text(message) if message.role is Role.ASSISTANT else message.content


KIND: Final = DataKind(
    name="steps",
    title="a context of an episode as text: the prompt, and one step for each turn of the policy with its label",
    use="Process reward models: `prompt`, `completions` and `labels` are the usual columns of stepwise supervision.",
    columns={
        **EPISODE_COLUMNS,
        **CONTEXT_COLUMNS,
        "prompt": (pa.string(), "text of the messages before the first turn"),
        "completions": (
            pa.list_(pa.string()),
            "text of each turn; from the second one on, after the replies of the environment to the turn before",
        ),
        "labels": (pa.list_(pa.bool_()), "whether any episode through the turn succeeded"),
        "values": (pa.list_(pa.float64()), "mean reward of the valid episodes through the turn"),
        "rewards": (pa.list_(pa.float64()), "reward of the turn itself"),
        "advantages": (pa.list_(pa.float64()), "mean advantage in training; null if the turn was not trained on"),
    },
    rows=_rows,
)
