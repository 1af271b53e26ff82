"""SkyRL-gym's own environments are played here by rows of their shapes; it plays ours by the class of the example."""

import io
import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import skyrl_gym

import envgym
from envgym.cli.main import main
from envgym.conformance.env_under_test import CheckStatus, EnvUnderTest
from envgym.conformance.suite import CHECKS, run_check
from envgym.core.turns import Ending, Invalid, Scored
from envgym.errors import InvalidInput
from envgym.records import StepRecord
from tests.support.pages import ROOT, blocks_of

pytestmark = pytest.mark.connect
NUM_ROWS, PAGE = 20, "docs/connect.md"
Row = dict[str, Any]


def gsm8k_row(number: int, env_class: str = "gsm8k") -> Row:
    """Return a row as SkyRL's script for GSM8K writes it."""
    question = f"Ann has {number} pens and buys {3 * number}. How many has she?"
    answer = f"{4 * number:,}"
    ask = 'Let\'s think step by step and output the final answer after "####".'
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {ask}"}],
        "env_class": env_class,
        "reward_spec": {"method": "rule", "ground_truth": answer.replace(",", "")},
        "extra_info": {"split": "train", "index": number, "answer": f"So\n#### {answer}", "question": question},
    }


def aime_row(number: int) -> Row:
    """Return a row as SkyRL's script for DAPO and AIME writes it."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Find {number} squared. The last line must be Answer: $Answer"}],
        "ability": "MATH",
        "env_class": "aime",
        "reward_model": {"ground_truth": str(number**2), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"0a{number}"},
    }


def write(path: Path, rows: list[Row]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def play(env: Any, action: str) -> StepRecord:
    record: StepRecord = env.step(action).info["envgym"]
    return record


def begin(env: Any, index: int) -> Row:
    """Begin an episode; return the columns of its row."""
    result = env.reset(seed=0, options={"split": "train", "index": index})
    extras: Row = result.info["envgym"].task.payload["extras"]
    assert result.observation.startswith(("Ann has", "Find"))
    return extras


# ---- their environments here -------------------------------------------------------------------------------------


def test_gsm8k_scores_what_its_package_scores(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet", [gsm8k_row(number) for number in range(NUM_ROWS)])
    with closing(envgym.make("skyrl://gsm8k", data=data, test_share=0.0)) as env:
        assert (env.name, env.tasks.size(envgym.Split.TRAIN)) == ("skyrl:gsm8k", NUM_ROWS)
        for index in range(NUM_ROWS):
            answer = begin(env, index)["reward_spec"]["ground_truth"]
            right, wrong = f"So it is\n#### {answer}", f"{answer}"
            record = play(env, right)
            assert (record.reward, record.ending) == (Scored(value=1.0), Ending.TERMINATED)
            begin(env, index)
            assert play(env, wrong).reward == Scored(value=0.0)


def test_several_turns_end_at_the_limit_of_the_settings_or_of_the_row(tmp_path: Path) -> None:
    rows = [gsm8k_row(number, "gsm8k_multi_turn") for number in range(NUM_ROWS)]
    rows[0]["extra_info"]["max_turns"] = 3
    data = tmp_path / "train.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for settings, index, num_turns in (({"max_turns": 2}, 0, 2), ({}, 0, 3), ({}, 1, 5)):
        env = envgym.make("skyrl://gsm8k_multi_turn", data=str(data), test_share=0.0, **settings)
        with closing(env):
            begin(env, index)
            records = [play(env, "#### 7000") for _ in range(num_turns)]
            assert [record.ending for record in records] == [*[None] * (num_turns - 1), Ending.TERMINATED]
            assert [record.reward for record in records] == [Scored(value=0.2 / num_turns)] * num_turns
            assert "#### ANSWER" in records[0].observation


def test_aime_pays_less_than_zero_for_a_wrong_answer(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet", [aime_row(number) for number in range(NUM_ROWS)])
    with closing(envgym.make("skyrl://aime", data=data, reward_range=[-1, 1], test_share=0.0)) as env:
        for index in range(NUM_ROWS):
            answer = begin(env, index)["reward_model"]["ground_truth"]
            assert play(env, f"We get\nAnswer: {answer}").reward == Scored(value=1.0)
            begin(env, index)
            assert play(env, "Answer: 7").reward == Scored(value=-1.0)


def test_rows_of_another_environment_are_refused_before_an_episode(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet", [{**gsm8k_row(1), "env_class": "aime"}])
    with pytest.raises(InvalidInput, match="reward_model field is required"):
        envgym.make("skyrl://aime", data=data)


def test_the_rows_of_the_page_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (rows,) = [block.text for block in blocks_of(PAGE, "json") if block.title == "skyrl_rows.jsonl"]
    (line,) = [line for block in blocks_of(PAGE, "bash") for line in block.commands if "skyrl://" in line]
    (tmp_path / "skyrl_rows.jsonl").write_text(rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("#### 5\n"))
    assert main(shlex.split(line)[1:]) == 0
    assert "End with #### and the number." in capsys.readouterr().out


def test_settings_have_attributes_as_in_skyrl(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet", [gsm8k_row(1, "search")])
    config = {"search_url": "http://127.0.0.1:9/retrieve", "topk": 1, "timeout": 1, "log_requests": False}
    envgym.make("skyrl://search", data=data, env_config=config).close()
    with pytest.raises(InvalidInput, match=r"correct the columns, or env_config"):
        envgym.make("skyrl://search", data=data)


def test_the_conformance_check_holds(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet", [gsm8k_row(number) for number in range(NUM_ROWS)])
    subject = EnvUnderTest(lambda: envgym.make("skyrl://gsm8k", data=data, test_share=0.3), num_tasks=3, seed=0)
    failed = {name: check.detail for name in CHECKS if (check := run_check(name, subject)).status is CheckStatus.FAIL}
    assert not failed


# ---- our environments there --------------------------------------------------------------------------------------


@pytest.fixture
def text_env(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(ROOT / "examples")
    skyrl_gym.register(id="envgym", entry_point="connect_skyrl:EnvgymTextEnv")
    yield "envgym"
    del skyrl_gym.registry["envgym"]


def rows_of(env_id: str, path: Path, count: int) -> list[Row]:
    """Return the rows of our command as SkyRL's data set reads them."""
    datasets = pytest.importorskip("datasets")
    assert main(["connect", "skyrl", env_id, "--rows", str(count), "--out", str(path)]) == 0
    return list(datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(path.parent / "cache"))["train"])


def made(row: Row, **extras: Any) -> Any:
    """Make the environment of a row as SkyRL's generator does: all other columns are extras."""
    columns = {name: value for name, value in row.items() if name not in ("prompt", "env_class")}
    return skyrl_gym.make(row["env_class"], env_config={}, extras={**columns, **extras})


@pytest.mark.parametrize("env_id", ["tests.support.toys:Counter", "math/arithmetic-v0"])
@pytest.mark.usefixtures("text_env")
def test_the_class_pays_what_the_environment_pays(env_id: str, tmp_path: Path) -> None:
    for row in rows_of(env_id, tmp_path / "train.parquet", 3):
        task = row["extra_info"]
        with closing(envgym.make(env_id)) as native, closing(made(row, max_turns=20)) as theirs:
            native.reset(seed=task["seed"], options={"split": task["split"], "index": task["index"]})
            assert theirs.init(row["prompt"])[0] == row["prompt"]
            while True:
                action = native.oracle()
                record, output = play(native, action), theirs.step(action)
                assert (Scored(value=output["reward"]), output["done"]) == (
                    Scored(value=record.reward.value),  # type: ignore[union-attr]  # nothing is invalid here
                    record.ending is not None,
                )
                if output["done"]:
                    break
                assert [message["content"] for message in output["observations"]] == [str(record.observation)]
            assert output["reward"] == 1.0
            assert output["metadata"]["ending"] == "TERMINATED"


@pytest.mark.usefixtures("text_env")
def test_the_limit_of_the_generator_ends_the_episode(tmp_path: Path) -> None:
    (row,) = rows_of("tests.support.toys:Counter", tmp_path / "train.parquet", 1)
    with closing(made(row, max_turns=2)) as theirs:
        theirs.init(row["prompt"])
        outputs = [theirs.step("hello") for _ in range(2)]
    assert [output["done"] for output in outputs] == [False, True]
    assert outputs[1]["reward"] == 0.0


@pytest.mark.usefixtures("text_env")
def test_an_invalid_reward_is_raised_and_never_zero(tmp_path: Path) -> None:
    (row,) = rows_of("tests.support.toys:Down", tmp_path / "train.parquet", 1)
    call = '<tool_call>{"name": "add", "arguments": {"amount": 1}}</tool_call>'
    with closing(envgym.make("tests.support.toys:Down")) as native, closing(made(row)) as theirs:
        native.reset(seed=0)
        assert isinstance(play(native, call).reward, Invalid)
        theirs.init(row["prompt"])
        with pytest.raises(RuntimeError, match=r"no valid reward: .*the service is down"):
            theirs.step(call)
