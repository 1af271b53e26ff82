"""What the kinds of data sets share: their interface, the columns of every row, and messages as cells."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from envgym.chats.openai import listed_tools, message_fields
from envgym.core.json_types import well_formed
from envgym.core.messages import Message, Role
from envgym.core.pairs import Which
from envgym.core.tasks import Split
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Scored
from envgym.export.contexts import Context, Redact
from envgym.export.episodes import EpisodeChoice, RecordedGroup, RecordedTree
from envgym.export.provenance import public_env_id
from envgym.tools import ToolSpec

Json = dict[str, Any]  # the cells of a row
Span = Literal["episode", "turn"]

_CALL: Final = pa.struct({
    "id": pa.string(), "type": pa.string(),
    "function": pa.struct({"name": pa.string(), "arguments": pa.string()}),
})  # fmt: skip
MESSAGES: Final = pa.list_(pa.struct({
    "role": pa.string(), "content": pa.string(), "reasoning_content": pa.string(), "tool_calls": pa.list_(_CALL),
    "tool_call_id": pa.string(), "name": pa.string(), "weight": pa.int64(),
}))  # fmt: skip
"""Messages in OpenAI's form. Fields that no message of a data set has are left out of its files."""
EPISODE_COLUMNS: Final[Mapping[str, tuple[pa.DataType, str]]] = MappingProxyType(
    {
        "id": (pa.string(), "label, step, tree and leaf of the episode, as `envgym view` names them"),
        "env_id": (pa.string(), "environment"),
        "task_id": (pa.string(), "task of the environment"),
        "step": (pa.int64(), "train step that sampled the episode, or train steps before the evaluation"),
        "ending": (pa.string(), "how the episode ended"),
        "reward": (pa.float64(), "reward of the episode; null if it is invalid, or if the episode has none"),
    }
)
CONVERSATION: Final = "a conversation: the messages of one context of an episode, up to the last message of the policy"
"""Title of a kind whose row is one."""
TOOLS_COLUMN: Final = (pa.string(), "JSON text of the tools in OpenAI's form; null if there are none")
CONTEXT_COLUMNS: Final[Mapping[str, tuple[pa.DataType, str]]] = MappingProxyType(
    {
        "context": (pa.int64(), "number of the context in its episode, from 0"),
        "rewrite": (pa.string(), "why the context was rewritten; null for the first one"),
    }
)
NO_MESSAGES: Final = "recorded before messages were kept"
NO_TOKENS: Final = "recorded without tokens"
NO_TURN: Final = "without a finished turn of the policy"
NO_KNOWN_CALL: Final = "with calls of unknown tools only"
INVALID: Final = "without a valid reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """What the rows of a data set are made with."""

    choice: EpisodeChoice
    redact: Redact | None = None
    min_margin: float = 0.0
    """Preferences: rewards of chosen and rejected differ by more than this."""
    pairs: Which = "extremes"
    """Preferences: which siblings are paired."""
    span: Span = "episode"
    """Preferences: what is compared from the fork on."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of episodes, contexts or pairs that are in no row."""


class DataRow(NamedTuple):
    """One row of a data set."""

    split: Split
    task_key: str
    num_turns: int
    cells: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKind:
    """A kind of data set."""

    name: str
    title: str
    """What a row is, for the card."""
    use: str
    """How the rows are used elsewhere, for the card."""
    columns: Mapping[str, tuple[pa.DataType, str]]
    """Column -> its type and its meaning."""
    rows: Callable[[RecordedGroup, RowOptions], Iterator[DataRow]]
    options: tuple[str, ...] = ("redact",)
    """Fields of `RowOptions`, besides `choice`, that the rows are made with."""
    needs_tokens: bool = False


def chosen_episodes(recorded: RecordedTree, options: RowOptions) -> Iterator[Trajectory]:
    """Yield the episodes of a tree that are exported, and count the others."""
    for leaf in recorded.tree.leaves:
        episode = Trajectory(tree=recorded.tree, leaf=leaf)
        if options.choice.takes(episode):
            yield episode
        else:
            options.left_out[INVALID if not episode.is_valid else "without success"] += 1


def recorded_contexts(contexts: tuple[Context, ...], options: RowOptions) -> Iterator[Context]:
    """Yield the contexts of an episode whose messages are known and hold one of the policy; count the others."""
    if not contexts:
        options.left_out[NO_TURN] += 1
    for context in contexts:
        if context.opening is None:
            options.left_out[NO_MESSAGES] += 1
        elif not any(turn.is_sampled for turn in context.turns):
            options.left_out[NO_TURN] += 1
        else:
            yield context


def learned_contexts(contexts: tuple[Context, ...], options: RowOptions) -> Iterator[Context]:
    """Yield the contexts with a message that a reader may train on; count the others."""
    for context in recorded_contexts(contexts, options):
        if any(turn.is_learned for turn in context.turns):
            yield context
        else:
            options.left_out[NO_KNOWN_CALL] += 1


def episode_cells(recorded: RecordedTree, episode: Trajectory) -> Json:
    """Return the cells of `EPISODE_COLUMNS`."""
    tree, reward = episode.tree, episode.reward
    return {
        "id": well_formed(f"{recorded.label}/{recorded.step}/{tree.id}/{episode.leaf}"),
        "env_id": public_env_id(tree.env_id),
        "task_id": well_formed(tree.task_id),
        "step": recorded.step,
        "ending": episode.ending.value,
        "reward": reward.value if isinstance(reward, Scored) and episode.has_reward else None,
    }


def context_cells(context: Context) -> Json:
    """Return the cells of `CONTEXT_COLUMNS`."""
    return {"context": context.number, "rewrite": context.rewrite and context.rewrite.value}


def message_cell(message: Message, *, is_learned: bool = True) -> Json:
    """Return a plain message in OpenAI's form; `weight` is 0 for an assistant message that is not to be learned."""
    cell = message_fields(message)
    if message.tool_calls:
        for call in cell["tool_calls"]:
            call["function"]["arguments"] = well_formed(call["function"]["arguments"])
    if message.role is Role.ASSISTANT and not is_learned:
        cell["weight"] = 0
    return cell


def tools_cell(tools: tuple[ToolSpec, ...]) -> str | None:
    """Return tools in OpenAI's form as JSON text, since a file would give each tool the parameters of all others."""
    return well_formed(json.dumps(listed_tools(tools), ensure_ascii=False)) if tools else None
