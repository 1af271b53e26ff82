"""Rows for SkyRL and verl: they name their tasks, show the prompt, and hold no answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.chats.openai import messages_to_wire
from envgym.connect.task_rows import PROJECTS, task_rows, write_rows
from envgym.core.tasks import Split
from envgym.errors import EnvFailure, InvalidInput, UnknownName
from envgym.played import PlayedEpisode
from tests.support.toys import Counter

COUNTER = "tests.support.toys:Counter"


class Answered(Counter):
    """Its task holds the answer, and its opening does not."""

    def begin(self, task: Any) -> str:
        super().begin(task)
        return "Count."


class Unready(Counter):
    """It cannot be set up."""

    def begin(self, task: Any) -> str:
        raise EnvFailure("the disk is full")


@pytest.mark.parametrize("project", PROJECTS)
def test_a_row_opens_the_episode_that_it_shows(project: str) -> None:
    rows = task_rows(project, COUNTER, {"max_turns": 3}, 4, split=Split.TEST, seed=5)
    episode = PlayedEpisode(envgym.make(COUNTER))
    for index, row in enumerate(rows):
        task = row["extra_info"]
        assert task == {
            "env_id": COUNTER,
            "settings": '{"max_turns":3}',
            "split": "test",
            "index": index,
            "seed": 5 + index,
        }
        opening = episode.open(split=task["split"], index=task["index"], seed=task["seed"])
        assert row["prompt"][-1] == messages_to_wire(opening.messages)[-1]
        assert row["prompt"][0]["content"].startswith("Use the tool to count, then say DONE.")
    episode.close()


def test_rows_for_skyrl_have_the_tools_in_the_system_message_and_rows_for_verl_have_not() -> None:
    (skyrl,), (verl,) = (task_rows(project, COUNTER, {}, 1) for project in PROJECTS)
    assert '"name": "add"' in skyrl["prompt"][0]["content"]
    assert [message["role"] for message in skyrl["prompt"]] == ["system", "user"]
    assert verl["prompt"][0] == {"role": "system", "content": "Use the tool to count, then say DONE."}
    assert (skyrl["env_class"], verl["agent_name"]) == ("envgym", "envgym")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
    else:
        yield str(value)


@pytest.mark.parametrize("project", PROJECTS)
def test_no_answer_is_in_a_row(project: str) -> None:
    for row in task_rows(project, f"{__name__}:Answered", {}, 20):
        target = Answered.tasks.task(Split.TRAIN, row["extra_info"].pop("index")).payload["target"]
        row["extra_info"].pop("seed")
        assert all(str(target) not in text.split() for text in _strings(row))
        assert (row.get("reward_spec") or row["reward_model"])["ground_truth"] == ""


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_file_holds_the_rows(suffix: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = task_rows("verl", COUNTER, {}, 3)
    path = tmp_path / f"train{suffix}"
    write_rows(path, rows)
    is_table = suffix == ".parquet"
    read = pq.read_table(path).to_pylist() if is_table else list(map(json.loads, path.read_text().splitlines()))
    assert read == rows
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("slime", COUNTER, {}, 1), "project must be a known name, got 'slime'"),
        (("verl", COUNTER, {}, 0), "rows must lie in 1 to"),
        (("verl", COUNTER, {}, 1000), "rows must lie in 1 to"),
        (("verl", "math/arithmetic-v0", {}, 0), "rows must be at least 1, got 0"),
        (("verl", COUNTER, {"max_turns": {1}}, 1), "settings must be JSON"),
        (("verl", "math/arithmetc-v0", {}, 1), "did you mean math/arithmetic-v0"),
    ],
)
def test_bad_input_is_one_sentence(arguments: Any, sentence: str) -> None:
    with pytest.raises((InvalidInput, UnknownName), match=r"\A[^\n]*\Z") as caught:
        task_rows(*arguments)
    assert sentence in str(caught.value)


def test_an_environment_that_cannot_begin_gives_no_rows(tmp_path: Path) -> None:
    with pytest.raises(EnvFailure, match="the disk is full"):
        task_rows("skyrl", f"{__name__}:Unready", {}, 1)
    with pytest.raises(InvalidInput, match=r"must end in \.parquet or \.jsonl, got .*train\.csv"):
        write_rows(tmp_path / "train.csv", [])
