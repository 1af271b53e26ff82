"""The law of conversations: an exported run that is imported again gives the messages that were recorded."""

import json
import tempfile
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym import Ending, Message, Observation, Role, Scored, Split, Task, ToolCall
from envgym.chats.rows import Conversation, read_row
from envgym.chats.sharegpt import write_sharegpt
from envgym.cli.export import data_kind
from envgym.core.builder import TreeBuilder
from envgym.core.json_types import JsonObject
from envgym.core.serialize import tree_to_json
from envgym.core.tree import Edge, Tree
from envgym.core.turns import TurnOutcome
from envgym.errors import InvalidInput
from envgym.export.data_files import Format
from envgym.export.dataset import export_data
from envgym.export.episodes import EpisodeChoice, RecordedGroup, RecordedTree, read_shortened
from envgym.export.rows import NO_KNOWN_CALL, RowOptions
from envgym.export.sharegpt import NOT_HELD, without_ids
from envgym.trainer.workflows.chat_demonstrations import ChatDemonstrations
from tests.support.example_trees import policy, prompt
from tests.support.recorded_runs import TOOLS, Pairs, Spoken, acted, assistant, recorded_run, spoken_trees, user


def options_for_all() -> RowOptions:
    return RowOptions(choice=EpisodeChoice(only="all"))


def pairs_of(conversation: Conversation) -> Pairs:
    return tuple(zip(conversation.messages, conversation.trained, strict=True))


def recorded(spoken: Spoken) -> list[Pairs]:
    places = sorted(spoken.contexts)
    return [
        spoken.contexts[leaf, number] for leaf in spoken.tree.leaves for of_leaf, number in places if of_leaf == leaf
    ]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
@settings(max_examples=4, deadline=None)
@given(spoken=st.lists(spoken_trees(), min_size=1, max_size=3))
def test_exported_files_give_the_recorded_messages(format: Format, spoken: list[Spoken]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, out = recorded_run(Path(folder) / "run", [item.tree for item in spoken]), Path(folder) / "out"
        options = options_for_all()
        export_data(run, data_kind("chat"), out, options, format=format)
        source = ChatDemonstrations(path=str(out / "data" / f"train.{format}"))
        conversations = [conversation for _, conversation in source.conversations()]
    assert not options.left_out
    assert [pairs_of(item) for item in conversations] == [pairs for item in spoken for pairs in recorded(item)]
    assert all(conversation.tools == TOOLS for conversation in conversations)


def tree_with_calls(*names: str, arguments: JsonObject = MappingProxyType({})) -> Tree:
    """Return an episode in which the policy calls tools of these names, one in each turn."""
    task = Task(id="train/0", prompt="", payload={}, split=Split.TRAIN)
    tree = TreeBuilder(id="step-000001/000/00", env_id="math/arithmetic-v0", task=task, seed=0, prompt=(prompt(4),))
    node = tree.root
    for turn, name in enumerate(names):
        replies = [Message(role=Role.TOOL, content="2", name=name)]
        outcome = TurnOutcome(
            action=acted(assistant(tool_calls=(ToolCall(name=name, arguments=arguments),))),
            observation=Observation.of(replies),
            reward=Scored(value=1.0),
        )
        ending = Ending.TERMINATED if turn == len(names) - 1 else None
        node = tree.add(node, Edge(segments=(policy(2),), ends_turn=True), outcome=outcome, ending=ending)
    return tree.freeze(messages=(user("Add."),), tools=TOOLS)


def test_a_call_of_an_unknown_tool_is_context_when_a_run_is_imported_again(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", [tree_with_calls("subtract", "add"), tree_with_calls("subtract")])
    options = options_for_all()
    export_data(run, data_kind("chat"), tmp_path / "out", options)
    source = ChatDemonstrations(path=str(tmp_path / "out" / "data" / "train.parquet"))
    ((_, conversation),) = source.conversations()
    calls = [(message.tool_calls[0].name, trains) for message, trains in pairs_of(conversation) if message.tool_calls]
    assert calls == [("subtract", False), ("add", True)]
    assert options.left_out == {NO_KNOWN_CALL: 1}


def read_again(spoken: Spoken, kind: str, options: RowOptions) -> list[Pairs]:
    tree = read_shortened(json.dumps(tree_to_json(spoken.tree)))
    group = RecordedGroup((RecordedTree(tree=tree, label="train", step=1),))
    rows = data_kind(kind).rows(group, options)
    return [pairs_of(read_row(json.loads(json.dumps(row.cells)), where="here")) for row in rows]


@settings(max_examples=40, deadline=None)
@given(spoken=spoken_trees())
def test_chat_rows_give_the_recorded_messages(spoken: Spoken) -> None:
    options = options_for_all()
    assert read_again(spoken, "chat", options) == recorded(spoken)
    assert not options.left_out


def is_held(pairs: Pairs) -> bool:
    try:
        return bool([write_sharegpt(without_ids(message)) for message, _ in pairs])
    except InvalidInput:
        return False


@settings(max_examples=40, deadline=None)
@given(spoken=spoken_trees())
def test_sharegpt_rows_give_the_recorded_messages_without_ids(spoken: Spoken) -> None:
    options, expected = options_for_all(), recorded(spoken)
    held = [pairs for pairs in expected if is_held(pairs)]
    assert read_again(spoken, "sharegpt", options) == [
        tuple((without_ids(message), is_learned) for message, is_learned in pairs) for pairs in held
    ]
    assert options.left_out[NOT_HELD] == len(expected) - len(held)


@settings(max_examples=40, deadline=None)
@given(spoken=spoken_trees())
def test_shortened_segments_change_nothing_else(spoken: Spoken) -> None:
    shortened = read_shortened(json.dumps(tree_to_json(spoken.tree)))
    for node, before in zip(shortened.nodes, spoken.tree.nodes, strict=True):
        assert (node.outcome, node.ending, node.edge.context) == (before.outcome, before.ending, before.edge.context)
        assert any(segment.trains for segment in node.edge.segments) == any(
            segment.trains for segment in before.edge.segments
        )
        assert node.edge.num_tokens <= 2


SEGMENT = {"origin": "POLICY", "token_ids": [1, 2], "behavior_logprobs": [0.5, 0.5], "policy_version": 3}


@pytest.mark.parametrize(
    "arguments",
    [
        {"segments": [SEGMENT], "cost": {}},
        {"segments": [SEGMENT]},
        {"parts": [{"segments": [], "cost": {"seconds": 1.0}}, {"segments": []}], "cost": {}},
        {'"segments': [SEGMENT]},
        {"text": json.dumps({"segments": [SEGMENT], "cost": {}})},
    ],
)
def test_arguments_in_the_form_of_an_edge_stay_as_they_are(arguments: JsonObject) -> None:
    tree = tree_with_calls("add", arguments=arguments)
    data = tree_to_json(tree)
    shortened = read_shortened(json.dumps(data))
    assert [node.outcome for node in shortened.nodes] == [node.outcome for node in tree.nodes]
