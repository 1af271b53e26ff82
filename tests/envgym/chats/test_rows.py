"""Rows of chat data: every shape in which public data sets hold them, and what a row is refused for."""

import json
from pathlib import Path
from typing import Any

import pytest

from envgym.chats.rows import ChatColumns, ChatForm, RowFilter, read_row
from envgym.core.messages import Role
from envgym.errors import InvalidInput

Json = dict[str, Any]
CASES: list[Json] = [
    json.loads(line) for line in (Path(__file__).parent / "rows.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Rows with the shapes of public data sets, and what each holds or is refused for."""
LETTERS = {"s": Role.SYSTEM, "u": Role.USER, "a": Role.ASSISTANT, "t": Role.TOOL}
WHERE = "row 7 of rows"
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def cases(key: str) -> list[Any]:
    return [pytest.param(case, id=case["shape"]) for case in CASES if key in case]


@pytest.mark.parametrize("case", cases("roles"))
def test_shapes_of_public_data_sets_are_read(case: Json) -> None:
    conversation = read_row(case["row"], where=WHERE)
    messages = conversation.messages
    assert [message.role for message in messages] == [LETTERS[letter] for letter in case["roles"]]
    assert [index for index, trains in enumerate(conversation.trained) if trains] == case["trained"]
    assert all(message.content or message.tool_calls for message in messages)
    calls = [[call.name, call.arguments] for message in messages for call in message.tool_calls]
    assert calls == case.get("calls", [])
    assert next((message.thinking for message in messages if message.thinking), None) == case.get("thinking")
    if "user" in case:
        assert messages[0].content == case["user"]
    assert conversation.reward is None


@pytest.mark.parametrize("case", cases("refused"))
def test_a_row_that_breaks_a_rule_is_refused_in_one_sentence(case: Json) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_row(case["row"], where=WHERE)
    assert str(refusal.value).startswith(case["refused"])
    assert WHERE in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_only_the_last_assistant_message_trains_if_asked() -> None:
    row = {"messages": [*TURNS, *TURNS]}
    assert read_row(row, where=WHERE, train_on="last").trained == (False, False, False, True)
    excluded = {"messages": [*TURNS, TURNS[0], {**TURNS[1], "weight": 0}]}
    with pytest.raises(InvalidInput, match="must hold an assistant message to learn"):
        read_row(excluded, where=WHERE, train_on="last")


def test_columns_with_other_names_are_named() -> None:
    row = {"question": "Hi", "answer": "Ho", "score": "0.5", "key": 12}
    columns = ChatColumns(prompt="question", completion="answer", reward="score", id="key")
    conversation = read_row(row, where=WHERE, columns=columns)
    assert [message.content for message in conversation.messages] == ["Hi", "Ho"]
    assert (conversation.reward, conversation.id) == (0.5, "12")
    with pytest.raises(InvalidInput, match=r"column must be one of .*, got 'scores' \(row 7 of rows\); did you"):
        read_row(row, where=WHERE, columns=columns.model_copy(update={"reward": "scores"}))
    with pytest.raises(InvalidInput, match="got 'answers'"):
        read_row(row, where=WHERE, columns=ChatColumns(prompt="question", completion="answers"))


def test_a_reward_that_is_missing_is_none_and_not_zero() -> None:
    columns = ChatColumns(reward="score")
    assert read_row({"messages": TURNS, "score": None}, where=WHERE, columns=columns).reward is None
    assert read_row({"messages": TURNS, "score": 0}, where=WHERE, columns=columns).reward == 0.0
    for value in ("good", float("nan"), [1]):
        with pytest.raises(InvalidInput, match="column score must be a finite number"):
            read_row({"messages": TURNS, "score": value}, where=WHERE, columns=columns)


def test_a_form_that_is_named_reads_no_other() -> None:
    row = {"messages": TURNS, "prompt": "Hi", "completion": "Hello"}
    named = read_row(row, where=WHERE, form=ChatForm.PROMPT_COMPLETION)
    assert named.messages[-1].content == "Hello"
    for form, column in ((ChatForm.ALPACA, "instruction"), (ChatForm.SHAREGPT, "messages or")):
        with pytest.raises(InvalidInput, match=f"column {column}.* must hold"):
            read_row({"prompt": "Hi"}, where=WHERE, form=form)


def test_messages_may_be_json_text_as_in_csv() -> None:
    row = {"messages": json.dumps(TURNS), "tools": "", "system": ""}
    assert read_row(row, where=WHERE) == read_row({"messages": TURNS}, where=WHERE)


@pytest.mark.parametrize(
    "expression, passes", [("score >= 0.5", True), ("score>0.5", False), ("score != 1e0", True), ("score < -1", False)]
)
def test_a_filter_compares_a_column_with_a_number(expression: str, passes: bool) -> None:
    row_filter = RowFilter(expression)
    assert row_filter.passes({"score": 0.5}, where=WHERE) is passes
    assert not row_filter.passes({"score": None}, where=WHERE)
    with pytest.raises(InvalidInput, match="column must be one of scores, got 'score'"):
        row_filter.passes({"scores": 1}, where=WHERE)


@pytest.mark.parametrize("expression", ["score", "score >= high", "0.5 <= score <= 1", "__import__('os')"])
def test_a_filter_that_is_no_comparison_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput, match="keep must compare a column with a number"):
        RowFilter(expression)


USER, CHOSEN, REJECTED = TURNS[0], TURNS[1], {"role": "assistant", "content": "Hm"}


@pytest.mark.parametrize(
    "row, columns",
    [
        ({"prompt": "Hi", "chosen": "Ho", "rejected": "Hm"}, {"completion": "chosen"}),
        ({"prompt": [USER], "chosen": [CHOSEN], "rejected": [REJECTED]}, {"completion": "chosen"}),
        ({"prompt": "Hi", "chosen": [USER, CHOSEN], "rejected": [USER, REJECTED]}, {"messages": "chosen"}),
        ({"chosen": [USER, CHOSEN], "rejected": [USER, REJECTED]}, {"messages": "chosen"}),
        ({"question": "Hi", "chosen": "Ho", "rejected": "Hm"}, {"prompt": "question", "completion": "chosen"}),
    ],
)
def test_chosen_answers_of_preference_rows_are_read_with_the_columns_that_the_refusal_names(
    row: Json, columns: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_row(row, where=WHERE)
    shown = ", ".join(f"{name}: {column}" for name, column in columns.items())
    assert str(refusal.value).endswith(f"with columns: {{{shown.replace('question', 'QUESTION')}}}.")
    messages = read_row(row, where=WHERE, columns=ChatColumns(**columns)).messages
    assert [message.content for message in messages] == ["Hi", "Ho"]


def test_completion_that_repeats_the_prompt_is_refused() -> None:
    row = {"prompt": "Hi", "chosen": [USER, CHOSEN]}
    message = r"column chosen must begin with an assistant message, got role user .*columns: {messages: chosen}\.$"
    with pytest.raises(InvalidInput, match=message):
        read_row(row, where=WHERE, columns=ChatColumns(completion="chosen"))


def test_sharegpt_form_reads_its_own_entries_and_column() -> None:
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]
    other = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    both = read_row({"messages": other, "conversations": sharegpt}, where=WHERE, form=ChatForm.SHAREGPT)
    assert [message.content for message in both.messages] == ["Hi", "Ho"]
    renamed = read_row({"messages": sharegpt}, where=WHERE, form=ChatForm.SHAREGPT)
    assert renamed.messages == both.messages
    with pytest.raises(InvalidInput, match=r"messages must have entries of from and value, got .*; set form: openai"):
        read_row({"messages": other}, where=WHERE, form=ChatForm.SHAREGPT)
    with pytest.raises(InvalidInput, match=r"have entries of role and content, got .*; set form: sharegpt"):
        read_row({"messages": sharegpt}, where=WHERE, form=ChatForm.OPENAI)
    with_both = [{**entry, "from": "user"} for entry in other]
    assert read_row({"messages": with_both}, where=WHERE, form=ChatForm.OPENAI).messages[0].content == "?"
