"""One line per episode, whole, readable, and one for each fork."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envgym.core.serialize import task_from_json
from envgym.errors import InvalidInput
from envgym.wrappers import Record
from envgym.wrappers.record import read_episodes
from tests.support.toys import Counter

CALL = '<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>'


def test_episode_is_read_back_as_it_was_played(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = Record(Counter(), path)
    first = env.reset(seed=4).info["envgym"]
    env.step(CALL)
    assert not path.exists(), "nothing is written before the end"
    env.step("DONE")
    (episode,) = read_episodes(path)
    assert (episode["env_id"], episode["seed"], episode["ending"]) == ("Counter", 4, "TERMINATED")
    assert task_from_json(episode["task"]) == first.task
    assert episode["messages"] == [{"role": "user", "content": [{"type": "text", "text": str(first.observation)}]}]
    assert [turn["action"] for turn in episode["turns"]] == [CALL, "DONE"]
    assert episode["turns"][0]["action_message"]["tool_calls"][0]["arguments"] == {"amount": 5}
    assert episode["turns"][0]["messages"][0]["role"] == "tool"
    assert [turn["reward"]["value"] for turn in episode["turns"]] == [0.0, 0.0]


def test_episode_that_is_left_is_written_without_an_ending(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = Record(Counter(), path)
    env.reset(seed=1)
    env.step("x")
    env.reset(seed=2)
    env.close()
    env.close()
    assert [(item["seed"], item["ending"], len(item["turns"])) for item in read_episodes(path)] == [
        (1, None, 1),
        (2, None, 0),
    ]


def test_fork_writes_its_own_line_with_the_turns_it_shares(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = Record(Counter(), path)
    env.reset(seed=1)
    env.step("shared")
    twin = env.fork()
    twin.step("DONE")
    env.step("other")
    env.step("DONE")
    actions = [[turn["action"] for turn in episode["turns"]] for episode in read_episodes(path)]
    assert actions == [["shared", "DONE"], ["shared", "other", "DONE"]]


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"

    def play(seed: int) -> None:
        env = Record(Counter(), path)
        for _ in range(20):
            env.reset(seed=seed)
            env.step("long " * 5_000)
            env.step("DONE")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, range(4)))
    assert sorted(episode["seed"] for episode in read_episodes(path)) == sorted([*range(4)] * 20)


def test_any_text_is_written(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = Record(Counter(), path)
    env.reset(seed=1)
    said = "\ud800 \u2028 \x00 \U0001f600"
    env.step(said)
    env.close()
    assert next(read_episodes(path))["turns"][0]["action"] == said


def test_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="path must lie in a folder that exists"):
        Record(Counter(), tmp_path / "missing" / "episodes.jsonl")


@pytest.mark.parametrize("line", ['{"schema": 3}', '{"schema": "1"}', "{", "[]", "{}"])
def test_line_that_is_no_episode_is_one_sentence(tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps({"schema": 1}) + "\n" + line + "\n")
    with pytest.raises(InvalidInput, match=r"schema must be 1\.\.2, got .*episodes.jsonl:2"):
        list(read_episodes(path))
