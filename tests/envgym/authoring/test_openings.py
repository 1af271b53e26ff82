"""Prompts that are lists of messages: what an agent is shown first, and which lists are refused."""

from typing import Any

import pytest

from envgym import Message, Role, Split
from envgym.authoring import FileTasks, ListTasks, RubricEnv, TaskDraft, from_rubric
from envgym.errors import InvalidInput
from envgym.verifiers import Exact

SYSTEM = {"role": "system", "content": "Be short."}
ASK = {"role": "user", "content": "1+1?"}
SAY = {"role": "assistant", "content": "2"}
AGAIN = {"role": "user", "content": "And 2+2?"}


def env_of(prompt: object, **kwargs: Any) -> RubricEnv:
    tasks = FileTasks({"train": [{"prompt": prompt, "answer": "4"}], "test": []})
    return from_rubric(tasks, Exact(), **kwargs)


def test_system_message_joins_the_standing_instructions_and_earlier_turns_are_context() -> None:
    env = env_of([SYSTEM, ASK, SAY, AGAIN], system_prompt="Answer.")
    observation, info = env.reset(seed=0)
    record = info["envgym"]
    assert record.system_prompt == "Answer.\n\nBe short."
    assert record.observation.messages == (
        Message(role=Role.USER, content="1+1?"),
        Message(role=Role.ASSISTANT, content="2"),
        Message(role=Role.USER, content="And 2+2?"),
    )
    assert observation == "1+1?\n2\nAnd 2+2?"
    assert env.transcript == record.observation.messages
    assert env.step("4").reward == 1.0
    assert env.transcript[-1] == Message(role=Role.ASSISTANT, content="4")


def test_system_message_of_one_task_is_not_that_of_the_next() -> None:
    prompts: list[object] = [[SYSTEM, ASK], [ASK], "3?"]
    rows = [{"prompt": prompt, "answer": "2"} for prompt in prompts]
    env = from_rubric(FileTasks({"train": rows, "test": []}), Exact(), system_prompt="Answer.")
    system = [env.reset(options={"split": "train", "index": i}).info["envgym"].system_prompt for i in range(3)]
    assert system == ["Answer.\n\nBe short.", "Answer.", "Answer."]


def test_fork_and_another_env_open_alike() -> None:
    env = env_of([SYSTEM, ASK])
    first = env.reset(seed=3)
    assert env.fork().step("4") == env.step("4")
    again = env_of([SYSTEM, ASK]).reset(seed=3)
    assert (again.observation, again.info["envgym"]) == (first.observation, first.info["envgym"])


def test_text_of_a_task_is_the_only_message_or_all_of_them_with_their_roles() -> None:
    rows = [{"prompt": [SYSTEM, ASK], "answer": "2"}, {"prompt": [ASK, SAY, AGAIN], "answer": "4"}]
    source = FileTasks({"train": rows, "test": []})
    assert source.task(Split.TRAIN, 0).prompt == "1+1?"
    assert source.task(Split.TRAIN, 1).prompt == "user: 1+1?\n\nassistant: 2\n\nuser: And 2+2?"
    assert source.task(Split.TRAIN, 0).payload["prompt"] == [SYSTEM, ASK]


def test_fields_that_a_data_set_fills_with_null_do_not_change_the_task() -> None:
    filled = [{**SYSTEM, "tool_calls": None, "name": None}, {**ASK, "tool_calls": []}]
    tasks = [
        FileTasks({"train": [{"prompt": p, "answer": 1}], "test": []}).task(Split.TRAIN, 0)
        for p in (filled, [SYSTEM, ASK])
    ]
    assert tasks[0] == tasks[1]


def test_payload_of_a_draft_may_hold_the_messages() -> None:
    draft = TaskDraft(prompt="1+1?", payload={"prompt": [SYSTEM, ASK], "answer": "2"})
    record = from_rubric(ListTasks([draft]), Exact()).reset(options={"split": draft_split(draft)}).info["envgym"]
    assert record.system_prompt == "Be short."


def draft_split(draft: TaskDraft) -> str:
    source = ListTasks([draft])
    return next(split.value for split in Split if source.size(split))


def test_payload_with_a_field_prompt_of_another_kind_is_no_conversation() -> None:
    draft = TaskDraft(prompt="Sort.", payload={"prompt": ["b", "a"], "answer": "ab"})
    env = from_rubric(ListTasks([draft]), Exact())
    assert env.reset(options={"split": draft_split(draft)}).observation == "Sort."


@pytest.mark.parametrize(
    "prompt, sentence",
    [
        (
            3,
            r"column 'prompt' must hold text or a list of messages, got 3 \(row 0 of train\); correct the row, or set",
        ),
        (None, "must hold text or a list of messages, got None"),
        ([], r"must hold text or a list of messages, got \[\]"),
        (["1+1?"], "must hold text or a list of messages"),
        ([3], r"message must be an object, got 3 \(message 0 of row 0 of train\); correct the row, or set"),
        ([{"role": "usr", "content": "?"}], "role must be one of .*, got usr"),
        ([{"role": "user", "content": 3}], "content must be text, got 3"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content must hold parts of type text, got image_url"),
        ([ASK, SAY], "column 'prompt' must end with a message of the user, got the roles user, assistant"),
        ([SYSTEM], "must end with a message of the user, got the roles system"),
        ([ASK, SYSTEM, AGAIN], "must have its system message first, got the roles user, system, user"),
        ([SAY, AGAIN], "must begin with the system or the user, got the roles assistant, user"),
        ([ASK, SAY, SAY, AGAIN], "must have a message of the user between two of the assistant"),
        (
            [ASK, {"role": "tool", "content": "2"}, AGAIN],
            "must hold texts of the system, the user and .*, got a tool message",
        ),
        (
            [ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}, AGAIN],
            "must hold texts of the system, the user and the assistant, got a tool call",
        ),
    ],
)
def test_bad_prompt_is_one_clear_sentence(prompt: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        env_of(prompt).reset(seed=0)
