"""Environments of SkyRL-gym by id, without the package: rows as tasks, and no reward where theirs is none.

The package's own environments are played in tests/other_projects/test_skyrl_gym.py.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import envgym
from envgym.core.messages import Message, Role
from envgym.core.turns import Ending, Invalid, Scored
from envgym.errors import EnvFailure, InvalidInput
from envgym.records import StepRecord

Row = dict[str, Any]


class Repeat:
    """Repeat a word; some words break the environment. The interface is SkyRL-gym's."""

    opened: list["Repeat"] = []  # noqa: RUF012  # emptied by the fixture

    def __init__(self, env_config: Any = None, extras: Row | None = None) -> None:
        assert extras is not None
        assert "reward_spec" in extras, "reward_spec field is required"
        self.word, self.limit = extras["reward_spec"]["ground_truth"], extras.get("max_turns", 3)
        self.turns, self.is_closed = 0, False
        Repeat.opened.append(self)

    def init(self, prompt: list[Row]) -> tuple[list[Row], Row]:
        if self.word == "unready":
            raise OSError("no database")
        return prompt, {"secret": self.word}

    def step(self, action: str) -> Any:
        self.turns += 1
        replies: dict[str, Any] = {
            "none": {"reward": None},
            "nan": {"reward": float("nan")},
            "text": {"reward": "1"},
            "talk": {"observations": "again"},
            "roles": {"observations": [{"role": "wizard", "content": "again"}]},
        }
        if action == "break":
            raise ZeroDivisionError("broken")
        if action == "bare":
            return (0.0, True)
        is_done = self.word in action or self.turns >= self.limit
        usual = {"observations": [] if is_done else [{"role": "user", "content": f"again: {action}"}], "done": is_done}
        return {
            **usual,
            "reward": float(self.word in action),
            "metadata": {"secret": self.word},
            **replies.get(action, {}),
        }

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def skyrl_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {"repeat": Repeat, "other": Repeat}
    module = SimpleNamespace(registry=registry, make=lambda name, **settings: registry[name](**settings))
    monkeypatch.setitem(sys.modules, "skyrl_gym", module)
    Repeat.opened.clear()


def row(number: int, **columns: Any) -> Row:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Say w{number}."}]
    return {
        "data_source": "words",
        "prompt": prompt,
        "env_class": "repeat",
        "reward_spec": {"method": "rule", "ground_truth": f"w{number}"},
        "extra_info": {"index": number},
        **columns,
    }


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(*rows: Row, env_id: str = "skyrl://repeat", **settings: Any) -> Any:
        path = tmp_path / f"rows-{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(f"{json.dumps(item)}\n" for item in rows), encoding="utf-8")
        return envgym.make(env_id, data=str(path), **{"test_share": 0.0, **settings})

    return made


def begin(env: Any, index: int = 0) -> Any:
    return env.reset(seed=0, options={"split": "train", "index": index})


def play(env: Any, action: str) -> StepRecord:
    record: StepRecord = env.step(action).info["envgym"]
    return record


def test_a_row_is_a_task_and_its_answer_is_not_shown(make: Make) -> None:
    env = make(*map(row, range(20)), instructions="Play.")
    assert env.tasks.size(envgym.Split.TRAIN) == 20
    observation, info = begin(env, 7)
    record = info["envgym"]
    assert (observation, record.system_prompt) == ("Say w7.", "Play.\n\nBe brief.")
    assert record.task.payload["extras"] == {k: v for k, v in row(7).items() if k not in ("prompt", "env_class")}
    first = play(env, "a")
    assert first.observation.messages == (Message(role=Role.USER, content="again: a"),)
    assert (first.reward, first.ending) == (Scored(value=0.0), None)
    last = play(env, "w7")
    assert (last.observation, last.reward, last.ending) == ("", Scored(value=1.0), Ending.TERMINATED)


@pytest.mark.parametrize(
    "action, reason",
    [
        ("none", "reward must be a number, Scored or Invalid, got None"),
        ("nan", "reward must be a finite number, got nan"),
        ("text", "reward must be a number, Scored or Invalid, got '1'"),
        ("break", "ZeroDivisionError: broken"),
        ("bare", "step must return observations, reward and done"),
        ("talk", "list of messages with role and text, got 'again'"),
        ("roles", "got wizard"),
    ],
)
def test_a_reward_that_is_none_and_a_broken_step_are_invalid_and_never_zero(
    action: str, reason: str, make: Make
) -> None:
    env = make(row(0))
    begin(env)
    record = play(env, action)
    assert isinstance(record.reward, Invalid)
    assert record.reward.cause is record.ending is Ending.ERROR_ENV
    assert reason in record.reward.reason


def test_an_environment_that_cannot_begin_is_a_failure(make: Make) -> None:
    env = make(row(0, reward_spec={"ground_truth": "unready"}))
    with pytest.raises(EnvFailure, match="no database"):
        begin(env)


def test_a_limit_reaches_the_environment_and_without_one_it_has_its_own(make: Make) -> None:
    env = make(row(0), max_turns=2)
    begin(env)
    assert [play(env, "a").ending for _ in range(2)] == [None, Ending.TERMINATED]
    env = make(row(0))
    begin(env)
    assert [play(env, "a").ending for _ in range(3)] == [None, None, Ending.TERMINATED]


def test_calls_and_thinking_in_the_text_reach_the_environment(make: Make) -> None:
    env = make(row(0))
    begin(env)
    call = '<think>hm</think><tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    record = play(env, call)
    assert (record.observation, record.tool_calls, record.tool_errors) == (f"again: {call}", 0, 0)
    assert record.action.tool_calls[0].name == "search"


def test_an_environment_that_cannot_be_closed_hinders_no_later_episode(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(state: Repeat) -> None:
        raise OSError("no socket")

    env = make(row(0))
    monkeypatch.setattr(Repeat, "close", fail)
    begin(env)
    assert begin(env)[0] == "Say w0."
    env.close()
    assert "could not be closed: OSError: no socket" in caplog.text


def test_environments_are_closed(make: Make) -> None:
    env = make(row(0))
    assert [item.is_closed for item in Repeat.opened] == [True]
    begin(env)
    begin(env)
    env.close()
    env.close()
    assert [item.is_closed for item in Repeat.opened] == [True] * 3


def test_rows_of_other_environments_are_left_out(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    mixed = [row(0), row(1, env_class="other"), row(2, env_class=None)]
    env = make(*mixed)
    assert env.tasks.size(envgym.Split.TRAIN) == 2
    assert "1 of 3 rows" in caplog.text
    assert "env_class other (1)" in caplog.text


@pytest.mark.parametrize(
    "rows, settings, sentence",
    [
        ([row(0)], {"env_id": "skyrl://repaet"}, "environment of SkyRL-gym must be a known name, got 'repaet'"),
        ([row(0)], {"env_id": "skyrl://no_such_module:repeat"}, "module no_such_module must be importable"),
        ([row(0)], {"env_id": "skyrl://other"}, "rows must be of the environment, got env_class repeat (1)"),
        ([{**row(0), "prompt": [{"role": "assistant", "content": "a"}]}], {}, "must end with a message of the user"),
        ([{"question": "a"}], {}, "column must be one of question, got 'prompt'"),
        ([{"prompt": "Say a."}], {}, "must take the columns of train/0, got AssertionError: reward_spec field"),
        ([row(0)], {"env_config": {"a": {1}}}, "env_config must be JSON"),
        ([row(0)], {"env_config": "fast"}, "env_config must be"),
        ([row(0)], {"max_turns": 0}, "max_turns must be at least 1"),
        ([row(0)], {"reward_range": [1]}, "reward_range must be two numbers"),
        ([row(0)], {"on_bad_row": "drop"}, "on_bad_row"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(
    rows: list[Row], settings: Row, sentence: str, make: Make
) -> None:
    with pytest.raises(InvalidInput, match=r"\A[^\n]*\Z") as caught:
        make(*rows, **settings)
    assert sentence in str(caught.value)


def test_rows_and_the_package_are_needed(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    with pytest.raises(InvalidInput, match="data must be given"):
        envgym.make("skyrl://repeat")
    monkeypatch.setitem(sys.modules, "skyrl_gym", None)
    with pytest.raises(InvalidInput, match="pip install skyrl-gym"):
        make(row(0))
