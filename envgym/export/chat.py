"""Conversations in OpenAI's form: one row for each context of an episode."""

from collections.abc import Iterator
from typing import Final

from envgym.export.contexts import TreeConversations
from envgym.export.episodes import RecordedGroup
from envgym.export.rows import (
    CONTEXT_COLUMNS,
    CONVERSATION,
    EPISODE_COLUMNS,
    MESSAGES,
    TOOLS_COLUMN,
    DataKind,
    DataRow,
    RowOptions,
    chosen_episodes,
    context_cells,
    episode_cells,
    learned_contexts,
    message_cell,
    tools_cell,
)


def _rows(group: RecordedGroup, options: RowOptions) -> Iterator[DataRow]:
    specs, tools = group.trees[0].tree.tools, tools_cell(group.trees[0].tree.tools)
    for recorded in group.trees:
        tree = recorded.tree
        conversations = TreeConversations(tree, options.redact)
        if tree.tools != specs:
            specs, tools = tree.tools, tools_cell(tree.tools)
        for episode in chosen_episodes(recorded, options):
            for context in learned_contexts(conversations.contexts(episode), options):
                cells = episode_cells(recorded, episode) | context_cells(context)
                cells["messages"] = [message_cell(message, is_learned=learned) for message, learned in context.messages]
                cells["tools"] = tools
                yield DataRow(tree.split, tree.task_key, len(context.turns), cells)


KIND: Final = DataKind(
    name="chat",
    title=CONVERSATION,
    use="Supervised fine-tuning: TRL's `SFTTrainer`, or `sft.source: {name: chat, path: ...}` in envgym.",
    columns={
        **EPISODE_COLUMNS,
        **CONTEXT_COLUMNS,
        "messages": (
            MESSAGES,
            "messages in OpenAI's form; `weight` is 0 where the policy did not write the message here, or where it "
            "called an unknown tool",
        ),
        "tools": TOOLS_COLUMN,
    },
    rows=_rows,
)
