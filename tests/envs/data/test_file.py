"""`data/file-v0`: rows in the shapes of public data sets become an env by settings alone, and nothing else pays."""

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import envgym
from envgym import Split, Task
from envgym.agents.rollout.driver import run_oracle_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.conformance import check_env_conformance
from envgym.conformance.env_under_test import CheckStatus
from envgym.core.messages import Role
from envgym.core.trajectory import trajectories
from envgym.core.turns import Ending, Invalid, Scored
from envgym.env import Env
from envgym.errors import InvalidInput
from tests.support.env_server import make, running_server
from tests.support.parrots import char_agent
from tests.support.public_rows import ROWS, PublicRow, user, verl

ID = "data/file-v0"
VERL = {"answer": "reward_model.ground_truth"}


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def numbers(count: int) -> list[dict[str, Any]]:
    system = {"role": "system", "content": "Answer in a box."}
    return [verl([system, user(f"{n} + 17?")], str(n + 17), split="train", index=n) for n in range(count)]


def env_of(data: object, **settings: Any) -> Env[Any]:
    return envgym.make(ID, data=data, **{"verifier": "exact", **settings}).unwrapped


def reward(env: Env[Any], answer: str, split: str = "train", index: int = 0) -> float:
    env.reset(options={"split": split, "index": index})
    result = env.step(answer)
    assert not isinstance(result.info["envgym"].reward, Invalid)
    return result.reward


# ---- public shapes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("public", [pytest.param(public, id=name) for name, public in ROWS.items()])
def test_row_of_a_public_data_set_is_an_env_by_settings_alone(public: PublicRow, ending: str, tmp_path: Path) -> None:
    data = {"train": write(tmp_path / f"a.{ending}", [public.row])}
    columns = {name: column for name, column in public.columns.items() if name != "split"}
    if "prompt" not in columns:
        columns["prompt"] = "prompt"
    forms = {"verifier": public.verifier, "answer_form": public.answer_form}
    env = env_of(data, columns=columns, splits={"train": "train"}, **forms)
    record = env.reset(options={"split": "train", "index": 0}).info["envgym"]
    assert (record.task.prompt, record.task.payload["answer"]) == (public.shown or public.prompt, public.answer)
    assert record.system_prompt == public.system
    assert record.observation.messages[-1].role is Role.USER
    assert env.step(env.oracle()).reward == 1.0
    assert reward(env, public.right or str(public.answer)) == 1.0
    assert reward(env, "I do not know.") == 0.0


def test_options_follow_the_last_message_unless_the_prompt_has_them(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Which"}, {"type": "text", "text": " one?"}]
    rows = [
        {"prompt": [user("Hi"), {"role": "assistant", "content": "Ho"}, user("x") | {"content": content}]}
        for content in ("Which one?", parts)
    ]
    data = {"train": write(tmp_path / "a.jsonl", [{**row, "answer": "4", "o": ["3", "4"]} for row in rows])}
    settings = {"columns": {"prompt": "prompt", "answer": "answer", "options": "o"}, "verifier": "multiple_choice"}
    for shows, end in ((True, "Which one?\n\nA. 3\nB. 4"), (False, "Which one?")):
        env = env_of(data, splits={"train": "train"}, show_options=shows, **settings)
        for index in range(2):
            record = env.reset(options={"split": "train", "index": index}).info["envgym"]
            assert record.observation.messages[-1].content == end
            assert record.task.prompt.endswith(f"user: {end}")
            assert env.step("B" if shows else "4").reward == 1.0


def held_out_tasks(env: Env[Any]) -> list[Task]:
    return [env.tasks.task(Split.TEST, index) for index in range(env.tasks.size(Split.TEST) or 0)]


def test_options_in_the_prompt_leave_the_split_as_it_is(tmp_path: Path) -> None:
    rows = [{"prompt": f"Question {n}?", "answer": "4", "options": ["3", "4"]} for n in range(40)]
    settings = {"columns": {name: name for name in rows[0]}, "verifier": "multiple_choice"}
    envs = [env_of(write(tmp_path / "a.jsonl", rows), show_options=shows, **settings) for shows in (True, False)]
    shown, plain = ([task.prompt.split("?")[0] for task in held_out_tasks(env)] for env in envs)
    assert shown == plain
    assert 0 < len(plain) < 40


# ---- conformance -----------------------------------------------------------------------------------------------------


def failed_checks(**settings: Any) -> list[str]:
    checks = check_env_conformance(lambda: envgym.make(ID, **settings), num_tasks=8)
    return [f"{check.name}: {check.detail}" for check in checks if check.status is CheckStatus.FAIL]


def test_conformance_of_verl_rows(tmp_path: Path) -> None:
    data = write(tmp_path / "verl.parquet", numbers(120))
    assert not failed_checks(data=data, columns=VERL, verifier="numeric", test_share=0.3)


def test_conformance_of_choices(tmp_path: Path) -> None:
    options = ["iron", "wood", "glass", "wool"]
    rows = [{"prompt": f"Which one does case {n} name?", "answer": options[n % 4], "o": options} for n in range(80)]
    columns = {"prompt": "prompt", "answer": "answer", "options": "o"}
    data = write(tmp_path / "choices.jsonl", rows)
    assert not failed_checks(data=data, columns=columns, verifier="multiple_choice", test_share=0.5)
    assert 0.25 <= env_of(data, columns=columns, verifier="multiple_choice", test_share=0.5).chance_score < 0.5


WEATHER = {
    "name": "weather",
    "description": "Weather of a town.",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}},
}
CLOCK = {"name": "clock", "description": "Time.", "parameters": {"type": "object", "properties": {}}}


def call_rows(count: int, *, as_text: bool) -> list[dict[str, Any]]:
    rows = []
    for n in range(count):
        weather = {"name": "weather", "arguments": {"town": f"t{n}", "days": n}}
        answers = [weather if n % 2 else {"name": "clock", "arguments": {}}]
        tools: object = [WEATHER, CLOCK]
        rows.append(
            {
                "query": f"Look up case {chr(97 + n % 26)}{chr(97 + n // 26)}.",
                "answers": json.dumps(answers) if as_text else answers,
                "tools": json.dumps(tools) if as_text else tools,
            }
        )
    return rows


CALLS = {"prompt": "query", "answer": "answers", "tools": "tools"}


def test_conformance_of_function_calls(tmp_path: Path) -> None:
    data = write(tmp_path / "calls.jsonl", call_rows(60, as_text=True))
    assert not failed_checks(data=data, columns=CALLS, verifier="tool_call", test_share=0.5)


# ---- splits ----------------------------------------------------------------------------------------------------------


def sides(data: str, **settings: Any) -> dict[str, str]:
    tasks = env_of(data, columns=VERL, **settings).tasks
    return {tasks.task(split, i).prompt: split.value for split in Split for i in range(tasks.size(split) or 0)}


def test_rows_stay_on_their_side_when_rows_are_added_and_changed_files_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    few = sides(write(path, numbers(40)), test_share=0.3, split_seed=2)
    os.utime(path, ns=(1, 1))
    many = sides(write(path, numbers(80)), test_share=0.3, split_seed=2)
    assert (len(few), len(many)) == (40, 80)
    assert {prompt: many[prompt] for prompt in few} == few
    assert set(few.values()) == {"train", "test"}


def test_envs_share_the_rows_that_were_read(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", numbers(10))
    assert env_of(data, columns=VERL).tasks is env_of(data, columns=VERL).tasks
    assert env_of(data, columns=VERL).tasks is not env_of(data, columns=VERL, verifier="numeric").tasks


# ---- rewards ---------------------------------------------------------------------------------------------------------


def test_system_message_earlier_turns_and_no_answer_are_shown(tmp_path: Path) -> None:
    turns = [user("1?"), {"role": "assistant", "content": "one"}, user("2?")]
    rows = [verl([{"role": "system", "content": "Words."}, *turns], "two")]
    env = env_of(
        {"train": write(tmp_path / "a.jsonl", rows)}, columns=VERL, splits={"train": "train"}, system_prompt="Be short."
    )
    record = env.reset(options={"split": "train", "index": 0}).info["envgym"]
    assert record.system_prompt == "Be short.\n\nWords."
    assert [message.role for message in record.observation.messages] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert "two" not in f"{record.system_prompt} {record.observation}"
    assert record.tools == ()


@pytest.mark.parametrize("as_text", [True, False])
def test_calls_are_noted_and_scored_and_never_run(as_text: bool, tmp_path: Path) -> None:
    data = write(tmp_path / "a.parquet", call_rows(2, as_text=as_text))  # null arguments of other rows are left out
    env = env_of({"train": data}, columns=CALLS, verifier="tool_call", splits={"train": "train"})
    first = env.reset(options={"split": "train", "index": 1}).info["envgym"]
    assert [spec.name for spec in first.tools] == ["weather", "clock"]
    assert env.task.payload["answer"] == [{"name": "weather", "arguments": {"town": "t1", "days": 1}}]
    result = env.step('<tool_call>{"name": "weather", "arguments": {"town": "t1", "days": 1}}</tool_call>')
    assert (result.reward, result.info["envgym"].ending) == (1.0, Ending.TERMINATED)
    calls = {
        '<tool_call>{"name": "weather", "arguments": {"town": "t1", "days": 9}}</tool_call>': (0.5, 1.0),
        '<tool_call>{"name": "clock", "arguments": {}}</tool_call>': (0.0, 0.6),
        '<tool_call>{"name": "storm", "arguments": {}}</tool_call>': (0.0, 0.6),
        "<tool_call>{nope}</tool_call>": (0.0, 0.2),
        "It is warm.": (0.0, 0.2),
    }
    for text, (low, high) in calls.items():
        assert low <= reward(env, text, index=1) < high, text
    env.reset(options={"split": "train", "index": 0})
    assert env.task.payload["answer"] == [{"name": "clock", "arguments": {}}]
    assert env.step(env.oracle()).reward == 1.0


def test_reward_function_in_a_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "from envgym import Task\nfrom envgym.verifiers import Verdict\n"
        "def score(answer: str, task: Task) -> Verdict:\n"
        "    return Verdict(score=float(answer.count(str(task.payload['answer'])) == 1), reason='')\n"
    )
    data = {"train": write(tmp_path / "a.jsonl", numbers(3))}
    env = env_of(data, columns=VERL, verifier=f"{tmp_path / 'rewards.py'}:score", splits={"train": "train"})
    assert [reward(env, answer) for answer in ("it is 17", "17 or 17", "no")] == [1.0, 0.0, 0.0]


def test_rows_without_a_key_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [*numbers(3), verl([user("?")], None), verl([user("no words")], "  ")]
    with caplog.at_level(logging.WARNING):
        env = env_of({"train": write(tmp_path / "a.jsonl", rows)}, columns=VERL, splits={"train": "train"})
        assert env.tasks.size(Split.TRAIN) == 3
    assert "2 of 5 train tasks of" in caplog.text
    assert "are left out, because their key cannot be read" in caplog.text


def test_rows_without_the_form_of_answer_and_bad_rows_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = ["#### 1", "so\n#### 2", "three", None]
    rows: list[dict[str, Any]] = [{"prompt": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
    data = {"train": write(tmp_path / "a.jsonl", [*rows, {"answer": "#### 3"}])}
    with caplog.at_level(logging.WARNING):
        env = env_of(data, verifier="numeric", answer_form="hashes", on_bad_row="skip", splits={"train": "train"})
    assert [env.tasks.task(Split.TRAIN, index).payload["answer"] for index in range(2)] == ["1", "2"]
    assert "3 of 5 rows of" in caplog.text
    assert "no answer after #### (2), column must be one of answer (1)" in caplog.text


def test_chance_is_the_share_of_the_most_frequent_answer_unless_it_is_stated(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": "a" if n < 4 else f"b{n}"} for n in range(10)]
    data = {"train": write(tmp_path / "a.jsonl", rows)}
    assert env_of(data, splits={"train": "train"}).chance_score == 0.4
    assert env_of(data, splits={"train": "train"}, verifier="f1").chance_score == 0.5
    assert env_of(data, splits={"train": "train"}, chance_score=0.1).chance_score == 0.1


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (
            {"data": None},
            r"data must be given, got None \(data/file-v0\); pass e.g. data=questions.jsonl",
        ),
        ({"data": ""}, "data must be given"),
        ({"verifier": None}, "verifier must be given, got None"),
        ({"data": "nowhere.jsonl"}, "source must be an existing file, got nowhere.jsonl"),
        ({"data": 3}, "data must be a text or a mapping or None, got 3"),
        ({"verifier": "exct"}, r"verifier must be a known name, got 'exct' \(data/file-v0\); did you mean exact\?"),
        ({"verifier": {"name": "exact", "ignore_cse": True}}, "setting must be a known name, got 'ignore_cse'"),
        (
            {"columns": None},
            r"column must be one of data_source, prompt, .*reward_model\.ground_truth, .*, got 'answer'",
        ),
        ({"columns": {"answer": "reward_model.truth"}}, r"\(row 0 of .*; did you mean reward_model\.ground_truth"),
        ({"columns": {"answer": 3}}, r"columns\['answer'\] must be the name of a column, got 3 \(data/file-v0\)"),
        ({"columns": {"prompt": "prompt"}}, r"payload field must be a known name, got 'answer'"),
        (
            {"columns": {"prompt": "ability", "text": "prompt"}, "answer_form": "boxed"},
            "columns must name answer",
        ),
        ({"answer_form": "box"}, "answer_form must be a known name, got 'box'"),
        ({"answer_form": "boxed"}, r"rows must have an answer, got no answer in \\boxed"),
        ({"test_share": 2.0}, r"test_share must lie in \[0, 1\], got 2.0"),
        ({"on_bad_row": "skp"}, "on_bad_row must be a known name, got 'skp'"),
        ({"splits": {"tran": "train"}}, "split of the data set must be a known name, got 'tran'"),
        ({"shuffle": True}, "keyword argument must be a known name, got 'shuffle'"),
        ({"verifier": {"name": "exact", "key": object()}}, "settings must be JSON, got Object of type object"),
    ],
)
def test_bad_settings_are_one_clear_sentence(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", numbers(4))
    with pytest.raises(InvalidInput, match=sentence):
        env_of(**{"data": data, "columns": VERL, **settings}).reset(seed=0)


def test_tools_that_cannot_be_read_name_the_row(tmp_path: Path) -> None:
    rows = [*call_rows(1, as_text=True), {"query": "?", "answers": "[]", "tools": "{nope"}]
    data = {"train": write(tmp_path / "a.jsonl", rows)}
    with pytest.raises(InvalidInput, match=r"tools must be JSON, got .*\(row 1 of train\); correct the row"):
        env_of(data, columns=CALLS, verifier="tool_call")


def test_env_on_a_server_shows_the_same_and_hides_the_rows(tmp_path: Path) -> None:
    settings = {
        "data": write(tmp_path / "a.jsonl", numbers(6)),
        "columns": VERL,
        "verifier": "exact",
        "test_share": 0.5,
    }
    with running_server(ID, settings=settings) as server, closing(envgym.make(ID, **settings)) as local:
        remote = make(server, ID)
        for split in Split:
            start = {"split": split, "index": 0}
            here, there = (env.reset(options=start).info["envgym"] for env in (local, remote))
            assert (here.system_prompt, here.observation) == (there.system_prompt, there.observation)
            assert there.system_prompt == "Answer in a box."
            assert dict(there.task.payload) == {}
            answer = str(here.task.payload["answer"])
            assert remote.step(answer).reward == local.step(answer).reward == 1.0
        remote.close()


def test_rows_with_their_system_messages_are_shown_to_an_agent(tmp_path: Path) -> None:
    turns = [user("1?"), {"role": "assistant", "content": "one"}, user("2?")]
    rows = [verl([{"role": "system", "content": "Words."}, *turns], "two")]
    data = {"train": write(tmp_path / "a.jsonl", rows)}
    settings = {"data": data, "columns": VERL, "verifier": "exact", "splits": {"train": "train"}}
    env = envgym.make(ID, **settings)
    job = EpisodeJob(
        make_env=lambda: envgym.make(ID, **settings),
        task=env.unwrapped.tasks.task(Split.TRAIN, 0),
        seed=0,
        tree_id="t",
        env_id=ID,
    )
    tree = asyncio.run(run_oracle_episode(job, char_agent()))
    (episode,) = trajectories(tree)
    prompt = "".join("".join(part.token_strings) for part in tree.nodes[0].edge.segments)
    for text in ("Words.", "1?", "one", "2?"):
        assert prompt.count(text) == 1
    assert "two" not in prompt
    assert episode.reward == Scored(value=1.0, components={"answer": 1.0})
