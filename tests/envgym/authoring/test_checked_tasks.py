"""Keys are checked when tasks are loaded: rows of files are left out and counted, lists and generators are refused."""

import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envgym
from envgym.authoring import FileTasks, GeneratedTasks, ListTasks, RubricEnv, TaskDraft, from_rubric
from envgym.authoring.checked_tasks import CheckedTasks, checked_tasks
from envgym.cli.tasks import split_report
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.rubric import Rubric
from envgym.verifiers import (
    F1,
    Exact,
    JsonSchema,
    Math,
    MultipleChoice,
    Noisy,
    Numeric,
    Pattern,
    ToolCallMatch,
    Verdict,
    right,
)
from envgym.verifiers import math as math_module

UNREADABLE = [
    (Math(), "n \\equiv 1 \\pmod 4", "an expression that math-verify reads"),
    (Math(), "A \\cup B", "an expression that math-verify reads"),
    (Numeric(), "about five", "hold one finite number"),
    (Exact(), {"a": 1}, "be a text, a number, or a list of them"),
    (F1(), [], "be a text, a number, or a list of them"),
    (MultipleChoice(), "Z", "name one of the options A to B"),
    (JsonSchema(key="answer"), {"properties": {"a": {"$ref": "#/nope"}}}, "the reference '/nope' leads nowhere"),
    (JsonSchema(key="answer"), {"$ref": "#"}, "refers to itself without end"),
    (ToolCallMatch(), [{"arguments": {}}], 'be a list of {"name": ..., "arguments": {...}}'),
    (Noisy(verifier=Numeric()), "about five", "hold one finite number"),
]
READABLE: dict[type, Any] = {
    Math: "\\frac12", Numeric: "5", Exact: "5", F1: "five", MultipleChoice: "A", JsonSchema: {"type": "string"},
    ToolCallMatch: [{"name": "look_up"}], Noisy: "5",
}  # fmt: skip


def drafts(key: object, usual: object) -> list[TaskDraft]:
    keys = [usual] * 3 + [key] + [usual] * 3
    return [
        TaskDraft(prompt=f"{n}?", payload={"n": n, "answer": item, "options": ["x", "y"]})  # type: ignore[dict-item]
        for n, item in enumerate(keys)
    ]


def in_file(path: Path, items: list[TaskDraft]) -> FileTasks:
    rows = [{"prompt": item.prompt, **item.payload} for item in items]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = path.with_name("test.jsonl")
    test.write_text(json.dumps({**rows[0], "n": -1}) + "\n")
    return FileTasks({"train": path, "test": test}, {"answer": "answer", "n": "n", "options": "options"})


@pytest.mark.parametrize("verifier, key, told", UNREADABLE)
def test_row_with_an_unreadable_key_is_left_out_and_counted_with_the_reason(
    verifier: Any, key: object, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = in_file(tmp_path / "rows.jsonl", drafts(key, READABLE[type(verifier)]))
    env = from_rubric(source, verifier)
    with caplog.at_level(logging.WARNING):
        assert (source.size(Split.TRAIN), env.tasks.size(Split.TRAIN)) == (7, 6)
        again = from_rubric(source, verifier)
        assert again.tasks.size(Split.TRAIN) == 6
    assert isinstance(env.tasks, CheckedTasks)
    assert env.tasks.num_left_out(Split.TRAIN) == 1
    assert [env.tasks.task(Split.TRAIN, index).id for index in range(6)] == [f"train/{n}" for n in (0, 1, 2, 4, 5, 6)]
    (record,) = caplog.records
    assert f"1 of 7 train tasks of {source.name} are left out, because their key cannot be read" in record.getMessage()
    assert told in record.getMessage()
    assert "(task train/3)" in record.getMessage()


@pytest.mark.parametrize("verifier, key, told", UNREADABLE)
def test_list_that_holds_an_unreadable_key_is_refused(verifier: Any, key: object, told: str) -> None:
    env = from_rubric(drafts(key, READABLE[type(verifier)]), verifier)
    with pytest.raises(InvalidInput, match=re.escape(told)):
        [env.tasks.size(split) for split in Split]


def test_generator_that_draws_an_unreadable_key_is_refused_when_it_does() -> None:
    def draw(generator: np.random.Generator) -> TaskDraft:
        n = int(generator.integers(1000))
        return TaskDraft(prompt="?", payload={"n": n, "answer": str(n) if n % 2 else "many"})

    env = from_rubric(GeneratedTasks(draw, name="numbers"), Numeric())
    assert env.tasks.size(Split.TRAIN) is None
    results = []
    for index in range(20):
        try:
            results.append(env.tasks.task(Split.TRAIN, index).payload["answer"] != "many")
        except InvalidInput:
            results.append(False)
    assert {True, False} == set(results)


def test_file_without_a_readable_key_is_refused(tmp_path: Path) -> None:
    source = in_file(
        tmp_path / "rows.jsonl",
        [TaskDraft(prompt=f"{n}", payload={"n": n, "answer": "?", "options": 0}) for n in (1, 2)],
    )
    sentence = (
        rf"^{re.escape(source.name)} must hold a train task whose key can be read, got none: all 2 are left out \("
    )
    with pytest.raises(InvalidInput, match=rf"{sentence}the first: .* hold one finite number, .*train/0.*\); correct "):
        from_rubric(source, Numeric()).tasks.size(Split.TRAIN)


def test_tasks_of_functions_and_of_verifiers_without_keys_are_not_touched() -> None:
    source = ListTasks(drafts("5", "6"))
    for rubric in (lambda answer: 1.0, Pattern(pattern="a")):
        assert from_rubric(source, rubric).tasks is source


def test_every_verifier_of_a_rubric_is_heard_and_one_of_your_own_can_check() -> None:
    class Mine:
        def __call__(self, answer: str, task: Task) -> Verdict:
            return right()

        def check_key(self, task: Task) -> None:
            raise InvalidInput.of("key", "please me", task.id, where="Mine", do="ask")

    env = from_rubric(drafts("5", "5"), Rubric([(Exact(), 1.0, "exact"), (Mine(), 0.0, "mine")]))
    with pytest.raises(InvalidInput, match="key must please me"):
        env.tasks.size(Split.TRAIN)


def test_tasks_set_after_the_constructor_are_checked_at_the_first_reset() -> None:
    class Late(RubricEnv):
        rubric = Numeric()

        def __init__(self) -> None:
            super().__init__()
            self.tasks = ListTasks([Task(id="a", prompt="?", payload={"answer": "many"}, split=Split.TRAIN)])

    with pytest.raises(InvalidInput, match="hold one finite number"):
        Late().reset()


def test_what_was_found_out_is_shared_and_survives_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = in_file(tmp_path / "rows.jsonl", drafts("A \\cup B", "\\sqrt[3]{x}"))
    first = checked_tasks(source, [Math()])
    assert first.size(Split.TRAIN) == 6
    monkeypatch.delattr(math_module, "_read_key")
    assert checked_tasks(source, [Math()]).size(Split.TRAIN) == 6
    twin = pickle.loads(pickle.dumps(first))
    assert [twin.task(Split.TRAIN, index) for index in range(6)] == [first.task(Split.TRAIN, i) for i in range(6)]
    with pytest.raises(InvalidInput, match=r"lie in \[0, 6\)"):
        twin.task(Split.TRAIN, 6)


def test_problem_sets_leave_out_what_cannot_be_judged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ["42", "n \\equiv 1 \\pmod 4", "\\text{Evelyn}", "62.5\\%", "A \\cup B", "52_8"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{key}?", "answer": key}) + "\n" for key in keys))
    test = path.with_name("test.jsonl")
    test.write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}))
    env = envgym.make("math/problems-v0", data={"train": str(path), "test": str(test)})
    assert env.unwrapped.tasks.size(Split.TRAIN) == 4
    assert "2 of 6 train tasks" in caplog.text
    assert split_report(env.unwrapped.tasks, 10)["splits"]["train"] == {
        "size": 4, "read": 4, "distinct": 4, "left_out": 2,
    }  # fmt: skip
    for index in range(4):
        env.reset(options={"split": "train", "index": index})
        assert env.step(env.oracle()).reward == 1.0
