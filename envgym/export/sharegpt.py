"""Conversations in ShareGPT's form: one row for each context of an episode."""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from envgym.chats.sharegpt import write_sharegpt
from envgym.core.json_types import well_formed
from envgym.core.messages import Message, Role, ToolCall
from envgym.errors import InvalidInput
from envgym.export.contexts import TreeConversations
from envgym.export.episodes import RecordedGroup
from envgym.export.rows import (
    CONTEXT_COLUMNS,
    CONVERSATION,
    EPISODE_COLUMNS,
    TOOLS_COLUMN,
    DataKind,
    DataRow,
    Json,
    RowOptions,
    chosen_episodes,
    context_cells,
    episode_cells,
    learned_contexts,
    tools_cell,
)

_ENTRIES: Final = pa.list_(pa.struct({"from": pa.string(), "value": pa.string(), "weight": pa.int64()}))
NOT_HELD: Final = "with text that ShareGPT's form cannot hold"


def _rows(group: RecordedGroup, options: RowOptions) -> Iterator[DataRow]:
    specs, tools = group.trees[0].tree.tools, tools_cell(group.trees[0].tree.tools)
    for recorded in group.trees:
        tree = recorded.tree
        conversations = TreeConversations(tree, options.redact)
        if tree.tools != specs:
            specs, tools = tree.tools, tools_cell(tree.tools)
        for episode in chosen_episodes(recorded, options):
            for context in learned_contexts(conversations.contexts(episode), options):
                try:
                    entries = _entries(context.messages)
                except InvalidInput:
                    options.left_out[NOT_HELD] += 1
                    continue
                cells = episode_cells(recorded, episode) | context_cells(context)
                cells |= {"conversations": entries, "tools": tools}
                yield DataRow(tree.split, tree.task_key, len(context.turns), cells)


def _entries(messages: Sequence[tuple[Message, bool]]) -> list[Json]:
    """Write messages, without ids of calls and names. Raises: InvalidInput: the form cannot hold one."""
    entries: list[Json] = []
    for message, is_learned in messages:
        entry = write_sharegpt(without_ids(message))
        entry["value"] = well_formed(entry["value"])
        entries.append(entry if is_learned or message.role is not Role.ASSISTANT else {**entry, "weight": 0})
    return entries


def without_ids(message: Message) -> Message:
    """Return a message without ids of calls and names, for forms that are text."""
    names = {message.name, message.tool_call_id, *(call.id for call in message.tool_calls)}
    if names == {None} and not message.is_error and len(message.parts) == bool(message.content):
        return message
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in message.tool_calls)
    return Message(role=message.role, content=message.content, thinking=message.thinking, tool_calls=calls)


KIND: Final = DataKind(
    name="sharegpt",
    title=CONVERSATION,
    use="Supervised fine-tuning with tools that read ShareGPT's form, such as LLaMA-Factory and Axolotl.",
    columns={
        **EPISODE_COLUMNS,
        **CONTEXT_COLUMNS,
        "conversations": (
            _ENTRIES,
            "entries of `from` and `value`; `weight` is 0 where the policy did not write the entry here, or where it "
            "called an unknown tool",
        ),
        "tools": TOOLS_COLUMN,
    },
    rows=_rows,
)
