"""Rows of every kind, by worked examples: preferences at forks, labels of steps, tokens with their advantages."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from envgym import Action, Ending, Message, Observation, Role, Scored
from envgym.cli.export import KINDS, data_kind
from envgym.core.builder import TreeBuilder
from envgym.core.tree import Edge, Rewrite, Tree
from envgym.core.turns import Invalid, TurnOutcome
from envgym.errors import InvalidInput
from envgym.export.data_files import RowWriter, complete
from envgym.export.episodes import EpisodeChoice, RecordedGroup, RecordedTree
from envgym.export.rows import DataRow, RowOptions
from tests.support.example_trees import TASK, glue, policy, prompt, tool
from tests.support.recorded_runs import acted, assistant, user

DATA_KINDS = ("chat", "sharegpt", "preferences", "steps", "tokens")


def turn(tree: TreeBuilder, parent: int, text: str, reward: float | Invalid | None, **edge: Any) -> int:
    """Add a turn; with a reward it ends the episode."""
    paid = Scored(value=reward or 0.0) if not isinstance(reward, Invalid) else reward
    replies = () if reward is not None else (user(f"after {text}"),)
    ending = None if reward is None else Ending.TERMINATED if isinstance(paid, Scored) else paid.cause
    return tree.add(
        parent,
        Edge(**{"segments": (policy(10, 11), tool(12)), "ends_turn": True, **edge}),
        outcome=TurnOutcome(action=acted(assistant(text)), observation=Observation.of(replies), reward=paid),
        ending=ending,
        error=paid.reason if isinstance(paid, Invalid) else None,
    )


def start(tree_id: str = "step-000001/000/00") -> TreeBuilder:
    return TreeBuilder(id=tree_id, env_id="math/arithmetic-v0", task=TASK, seed=11, prompt=[prompt(1, 2), glue(4)])


def forked() -> Tree:
    """Return a tree whose turn `a` is worth 0.5 and leads to `win` (1) and `lose` (0), and whose turn `b` pays 0.25."""
    tree = start()
    first = turn(tree, tree.root, "a", None)
    turn(tree, first, "win", 1.0)
    turn(tree, first, "lose", 0.0)
    turn(tree, tree.root, "b", 0.25)
    return tree.freeze(messages=(user("Q"),))


def rows(
    kind: str, *trees: Tree, advantages: dict[int, Any] | None = None, only: Any = "valid", **options: Any
) -> tuple[list[dict[str, Any]], Counter[str]]:
    choices = RowOptions(choice=EpisodeChoice(only=only), **options)
    recorded = (RecordedTree(tree=tree, label="train", step=1, advantages=advantages or {}) for tree in trees)
    return [row.cells for row in data_kind(kind).rows(RecordedGroup(tuple(recorded)), choices)], choices.left_out


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


# ---- preferences -----------------------------------------------------------------------------------------------------


def test_preferences_are_siblings_at_every_fork() -> None:
    pairs, left_out = rows("preferences", forked())
    seen = {(tuple(texts(row["prompt"])), tuple(texts(row["chosen"])), tuple(texts(row["rejected"]))) for row in pairs}
    assert seen == {
        (("Q",), ("a", "after a", "win"), ("b",)),
        (("Q", "a", "after a"), ("win",), ("lose",)),
    }
    assert {row["turn"]: row["margin"] for row in pairs} == {0: 0.5 - 0.25, 1: 1.0}
    assert not left_out


def test_preferences_of_one_turn_hold_one_message() -> None:
    pairs, _ = rows("preferences", forked(), span="turn")
    assert [(texts(row["chosen"]), texts(row["rejected"])) for row in pairs] == [(["a"], ["b"]), (["win"], ["lose"])]


@pytest.mark.parametrize("margin, number", [(0.0, 2), (0.25, 1), (0.3, 1), (1.0, 0)])
def test_a_margin_must_be_exceeded(margin: float, number: int) -> None:
    assert len(rows("preferences", forked(), min_margin=margin)[0]) == number


def chain(number: int, text: str, reward: float | Invalid, question: str = "Q") -> Tree:
    tree = start(f"step-000001/000/{number:02d}")
    turn(tree, tree.root, text, reward)
    return tree.freeze(messages=(user(question),))


def test_episodes_of_a_group_are_siblings() -> None:
    trees = [chain(number, f"answer {number}", reward) for number, reward in enumerate([0.0, 1.0, 0.5])]
    (extreme,), _ = rows("preferences", *trees)
    assert (texts(extreme["chosen"]), texts(extreme["rejected"])) == (["answer 1"], ["answer 0"])
    assert (extreme["id"], extreme["rejected_id"]) == ("train/1/step-000001/000/01/1", "train/1/step-000001/000/00/1")
    assert len(rows("preferences", *trees, pairs="all")[0]) == 3


def test_equal_answers_are_one_sibling_with_their_mean_reward() -> None:
    answers = [
        chain(number, text, reward) for number, (text, reward) in enumerate(zip("ABABC", (1, 0, 0, 1, 0), strict=True))
    ]
    assert rows("preferences", *answers[:4], pairs="all") == ([], Counter())
    found, _ = rows("preferences", *answers, pairs="all")
    assert [(texts(row["chosen"]), texts(row["rejected"]), row["margin"]) for row in found] == [
        (["A"], ["C"], 0.5),
        (["B"], ["C"], 0.5),
    ]


def test_equal_first_turns_are_one_sibling_of_one_message_and_their_forks_stay_apart() -> None:
    same = replace(forked(), id="step-000001/000/01")
    pairs, left_out = rows("preferences", forked(), same, span="turn")
    seen = [(texts(row["prompt"]), texts(row["chosen"]), texts(row["rejected"]), row["margin"]) for row in pairs]
    fork = (["Q", "a", "after a"], ["win"], ["lose"], 1.0)
    assert sorted(seen) == sorted([(["Q"], ["a"], ["b"], 0.25), fork, fork])
    assert not left_out


def test_what_cannot_be_compared_is_no_pair_and_is_counted() -> None:
    broken = Invalid(cause=Ending.ERROR_ENV, reason="the service is down")
    assert rows("preferences", chain(0, "a", 1.0), chain(1, "b", broken)) == (
        [],
        Counter({"without a valid reward": 1}),
    )
    assert rows("preferences", chain(0, "a", 1.0), chain(1, "a", 0.0)) == ([], Counter())
    assert rows("preferences", chain(0, "a", 1.0), chain(1, "b", 0.0, "hinted Q")) == ([], Counter())


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_is_labelled_by_the_episodes_through_it() -> None:
    won, lost, other = rows("steps", forked(), advantages={2: [0.0, 0.5, 2.0], 3: [0.0, 0.5, [-1.0, -3.0]]})[0]
    assert (won["prompt"], won["completions"]) == ("Q", ["a", "after a\n\nwin"])
    assert (won["labels"], won["values"], won["rewards"]) == ([True, True], [0.5, 1.0], [0.0, 1.0])
    assert (lost["labels"], lost["values"], lost["rewards"]) == ([True, False], [0.5, 0.0], [0.0, 0.0])
    assert (won["advantages"], lost["advantages"]) == ([0.5, 2.0], [0.5, -2.0])
    assert (other["labels"], other["values"], other["advantages"]) == ([False], [0.25], [None])


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_rows_of_training() -> None:
    won = rows("tokens", forked(), advantages={2: [0.0, 0.5, [1.0, 2.0]]})[0][0]
    assert won["input_ids"] == (1, 2, 4, 10, 11, 12, 10, 11, 12)
    assert won["loss_mask"] == (False, False, False, True, True, False, True, True, False)
    assert won["labels"] == [-100, -100, -100, 10, 11, -100, 10, 11, -100]
    assert won["logprobs"] == (0.0, 0.0, 0.0, -0.1, -0.11, 0.0, -0.1, -0.11, 0.0)
    assert won["advantages"] == [None, None, None, 0.5, 0.5, None, 1.0, 2.0, None]
    assert won["turns"] == (-1, -1, -1, 0, 0, 0, 1, 1, 1)
    assert won["policy_versions"] == [None, None, None, 3, 3, None, 3, 3, None]


@pytest.mark.parametrize("advantages", [[1.0], []])
@pytest.mark.parametrize("node", [1, 2])
def test_a_turn_with_fewer_advantages_than_sampled_tokens_is_refused(advantages: list[float], node: int) -> None:
    rule, recorded = r"must have a number for each of 2 sampled tokens", {1: 0.5, 2: 0.5, node: advantages}
    with pytest.raises(InvalidInput, match=rf"recorded advantages {rule}, got {len(advantages)} \(node {node}\)"):
        rows("tokens", forked(), advantages={2: [0.0, recorded[1], recorded[2]]})


def test_a_rewritten_context_is_another_row_of_tokens() -> None:
    tree = start()
    first = turn(tree, tree.root, "a", None)
    turn(tree, first, "b", 1.0, segments=(prompt(1, 5), policy(20)), rewrite=Rewrite.TEMPLATE)
    exported, _ = rows("tokens", tree.freeze(messages=(user("Q"),)), advantages={2: [0.0, 0.5, 0.25]})
    assert [(row["context"], row["rewrite"], row["input_ids"]) for row in exported] == [
        (0, None, (1, 2, 4, 10, 11, 12)),
        (1, "TEMPLATE", (1, 5, 20)),
    ]
    assert exported[1]["advantages"] == [None, None, 0.25]
    chats, _ = rows("chat", tree.freeze(messages=(user("Q"),)))
    assert [texts(row["messages"]) for row in chats] == [["Q", "a", "after a", "b"]]


# ---- conversations ---------------------------------------------------------------------------------------------------


def test_an_action_that_could_not_be_read_is_its_text_and_its_replies_are_of_the_user() -> None:
    tree = start()
    action = Action("<tool_call>{", content="", malformed=["The call is no JSON."])
    refused = Message(role=Role.TOOL, content="The call is no JSON.", is_error=True)
    outcome = TurnOutcome(action=action, observation=Observation.of([refused]))
    edge = Edge(segments=(policy(10),), ends_turn=True)
    node = tree.add(tree.root, edge, outcome=outcome)
    turn(tree, node, "42", 1.0)
    (row,), _ = rows("chat", tree.freeze(messages=(user("Q"),)))
    assert row["messages"] == [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "<tool_call>{"},
        {"role": "user", "content": "The call is no JSON."},
        {"role": "assistant", "content": "42"},
    ]


def test_turns_that_the_policy_did_not_sample_are_not_learned() -> None:
    tree = start()
    first = turn(tree, tree.root, "shown", None, segments=(prompt(5),))
    turn(tree, first, "own", 1.0)
    (row,), _ = rows("chat", tree.freeze(messages=(user("Q"),)))
    weights = [(message["content"], message.get("weight")) for message in row["messages"]]
    assert weights == [("Q", None), ("shown", 0), ("after shown", None), ("own", None)]


def test_a_context_whose_messages_were_not_recorded_is_left_out() -> None:
    tree = start()
    first = turn(tree, tree.root, "a", None)
    turn(tree, first, "b", 1.0, segments=(prompt(1, 5), policy(20)), rewrite=Rewrite.TURNS_DROPPED)
    (row,), left_out = rows("chat", tree.freeze(messages=(user("Q"),)))
    assert texts(row["messages"]) == ["Q", "a"]
    assert left_out == Counter({"recorded before messages were kept": 1})


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_an_invalid_reward_is_null_and_never_0(kind: str) -> None:
    broken = chain(0, "a", Invalid(cause=Ending.ERROR_ENV, reason="the service is down"))
    exported, left_out = rows(kind, broken, only="all")
    assert all(row["reward"] is None for row in exported)
    assert len(exported) + left_out["without a valid reward"] == 1


def test_no_folder_of_the_machine_is_named() -> None:
    (row,), _ = rows("chat", replace(chain(0, "a", 1.0), env_id="/home/me/games/dice.py:Dice"))
    assert row["env_id"] == "dice.py:Dice"


def test_lone_surrogates_are_replaced() -> None:
    (row,), _ = rows("chat", replace(chain(0, "a\ud800", 1.0), messages=(user("\udfffQ"),)))
    assert texts(row["messages"]) == ["\ufffdQ", "a\ufffd"]


def test_trees_without_tokens_are_counted_as_such() -> None:
    tree = TreeBuilder(id="a/0/0", env_id="math/arithmetic-v0", task=TASK, seed=11, prompt=())
    turn(tree, tree.root, "a", 1.0, segments=())
    assert rows("tokens", tree.freeze(messages=(user("Q"),))) == ([], Counter({"recorded without tokens": 1}))


# ---- files -----------------------------------------------------------------------------------------------------------


def test_every_kind_has_the_columns_that_it_declares(tmp_path: Path) -> None:
    assert set(DATA_KINDS) <= set(KINDS)
    for name in DATA_KINDS:
        kind = data_kind(name)
        for row in rows(name, forked())[0]:
            assert row.keys() == kind.columns.keys(), name
            assert json.dumps(row)


def test_fields_of_messages_that_no_row_has_are_left_out_of_a_file(tmp_path: Path) -> None:
    entries = pa.list_(pa.struct({"a": pa.string(), "b": pa.int64()}))
    columns = {"messages": entries, "other": entries, "number": pa.int64()}
    writer = RowWriter(tmp_path / "data" / "train.parquet", columns, "parquet")
    cells: list[dict[str, Any]] = [
        {"messages": [{"a": "x"}, {"a": None}], "other": [{"b": 1}], "number": 1},
        {"messages": [], "other": None, "number": None},
        {"messages": [], "other": [{"a": "y"}], "number": 3},
        {"messages": [{"a": "z"}], "other": [], "number": 4},
    ]
    for row in cells:
        writer.add(DataRow(TASK.split, TASK.key, 2, row))
    complete([writer])
    table = pa.parquet.read_table(writer.path)
    assert table.schema.field("messages").type == pa.list_(pa.field("element", pa.struct({"a": pa.string()})))
    assert table.to_pylist() == [
        {"messages": [{"a": "x"}, {"a": None}], "other": [{"a": None, "b": 1}], "number": 1},
        {"messages": [], "other": None, "number": None},
        {"messages": [], "other": [{"a": "y", "b": None}], "number": 3},
        {"messages": [{"a": "z"}], "other": [], "number": 4},
    ]
    assert (writer.num_rows, writer.num_turns) == (4, 8)
    assert [path.name for path in writer.path.parent.iterdir()] == ["train.parquet"]
