"""OpenEnv's own client plays our environments, and our client plays servers of its package."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from openenv.core.generic_client import GenericEnvClient

import envgym
from envgym import Env, Split
from envgym.cli.main import main
from envgym.core.turns import Ending, Invalid, Scored
from envgym.parsing import tool_call_action
from envgym.records import StepRecord
from envgym.serving.sessions import SessionLimits
from tests.support.env_server import COUNTER
from tests.support.openenv import openenv_server, oracle_episode, step_data
from tests.support.pages import program_of_the_page

pytestmark = [pytest.mark.connect, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SERVER = Path(__file__).parent / "openenv_real_server.py"
SIX = (
    "puzzles/guess_number-v0",
    "math/arithmetic-v0",
    "puzzles/frozen_lake-v0",
    "tools/office-v0",
    "puzzles/mastermind-v0",
    "puzzles/sudoku-v0",
)


# ---- its client, our server ------------------------------------------------------------------------------------------


def test_its_client_plays_six_envs_as_local_play() -> None:
    with openenv_server(*SIX) as server:
        for number, env_id in enumerate(SIX):
            path = "" if number == 0 else f"/{env_id}"
            with GenericEnvClient(base_url=f"{server.url}{path}").sync() as client:
                for seed in (0, 1):
                    (_, first, _, _), *turns = oracle_episode(env_id, seed)
                    assert client.reset(seed=seed).observation["text"] == first
                    assert client.state()["step_count"] == 0
                    for action, text, reward, done in turns:
                        result = client.step(step_data(action))
                        assert (result.observation["text"], result.reward, result.done) == (text, reward, done)


def test_fifty_of_its_clients_play_at_once() -> None:
    guess = SIX[0]
    expected = [oracle_episode(guess, seed)[1:] for seed in range(50)]

    async def play(url: str, seed: int) -> list[tuple[str, float, bool]]:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(seed=seed)
            await all_opened.wait()
            assert server.num_sessions == 50
            turns = []
            for action, _, _, _ in expected[seed]:
                result = await client.step(step_data(action))
                turns.append((result.observation["text"], result.reward, result.done))
            await all_opened.wait()
            return turns

    async def play_all(url: str) -> Any:
        return await asyncio.gather(*(play(url, seed) for seed in range(50)))

    all_opened = asyncio.Barrier(50)
    with openenv_server(guess) as server:
        played = asyncio.run(play_all(server.url))
    assert played == [[turn[1:] for turn in turns] for turns in expected]


def test_its_client_is_told_what_is_wrong() -> None:
    with (
        openenv_server(COUNTER, limits=SessionLimits(sessions=1)) as server,
        GenericEnvClient(base_url=server.url).sync() as client,
    ):
        with pytest.raises(RuntimeError, match="EXECUTION_ERROR"):
            client.step({"text": "early"})
        client.reset(seed=0)
        with pytest.raises(RuntimeError, match=r"got message.*VALIDATION_ERROR"):
            client.step({"message": "hello"})
        other = GenericEnvClient(base_url=server.url).sync()
        with other, pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            other.reset()
        assert client.step({"text": "go"}).reward == 0.5
        with pytest.raises(RuntimeError, match=r"the disk is full.*EXECUTION_ERROR"):
            client.step({"text": "fail"})


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text, address = program_of_the_page("openenv"), "http://127.0.0.1:8000"
    assert address in text
    with openenv_server(*SIX[:2]) as server:
        exec(text.replace(address, server.url), {})
    assert "Find the whole number from" in capsys.readouterr().out


def test_the_program_that_the_command_prints_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "openenv", SIX[0]]) == 0
    text = capsys.readouterr().out
    with openenv_server(SIX[0]) as server:
        exec(text.replace("http://127.0.0.1:8000", server.url), {})
    assert "Find the whole number from" in capsys.readouterr().out


# ---- our client, its server ------------------------------------------------------------------------------------------


@contextmanager
def real_server(kind: str) -> Iterator[str]:
    """Run a server of OpenEnv's package; yield the id of its env."""
    with subprocess.Popen([sys.executable, str(SERVER), kind], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"openenv://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()
            process.wait(60)


def play(env: Env[Any], action: str) -> StepRecord:
    record: StepRecord = env.step(action).info["envgym"]
    return record


def test_we_play_an_env_of_texts_by_seed() -> None:
    with real_server("text") as env_id, closing(envgym.make(env_id)) as env:
        first = env.reset(options={"split": "train", "index": 2}).info["envgym"]
        assert str(first.observation) == f"Say something. Seed {first.task.payload['seed']}."
        assert (first.tools, env.unwrapped.tasks.size(Split.TRAIN)) == ((), None)
        records = [play(env, word) for word in ("one", "two", "three")]
        assert [str(record.observation) for record in records] == ["one", "two", "three"]
        assert [record.reward for record in records] == [Scored(value=value) for value in (0.0, 0.0, 1.0)]
        assert records[-1].ending is Ending.TERMINATED
        env.reset(seed=1)
        unpaid = [play(env, "unpaid") for _ in range(3)][-1]
        assert isinstance(unpaid.reward, Invalid)
        env.reset(seed=1)
        crashed = play(env, "crash")
        assert (crashed.ending, "the env crashed" in str(crashed.error)) == (Ending.ERROR_ENV, True)


def test_we_play_its_tasks_by_number() -> None:
    with real_server("tasks") as env_id, closing(envgym.make(env_id)) as env:
        tasks = env.unwrapped.tasks
        assert (tasks.size(Split.TRAIN), tasks.size(Split.TEST)) == (5, 2)
        for split, name in (("train", "train"), ("test", "validation")):
            assert str(env.reset(options={"split": split, "index": 1}).observation) == f"Task {name} 1."


def test_we_play_an_env_of_fields_with_one_tool() -> None:
    with real_server("typed") as env_id, closing(envgym.make(env_id)) as env:
        first = env.reset(seed=0).info["envgym"]
        assert str(first.observation) == '{"board": [[0, 0], [0, 0]], "note": "start"}'
        assert [(tool.name, tool.parameters["required"]) for tool in first.tools] == [("act", ["x", "y"])]
        record = play(env, tool_call_action("act", x=0, y="up"))
        assert (record.tool_errors, record.ending) == (1, None)
        assert "y: Input should be a valid integer" in str(record.observation)
        assert "call one of the tools act" in str(play(env, "up").observation)
        assert play(env, tool_call_action("act", x=0, y=1)).reward == Scored(value=0.5)
        assert play(env, tool_call_action("act", x=1, y=1)).ending is Ending.TERMINATED


def test_we_play_an_env_of_mcp_tools() -> None:
    with real_server("tools") as env_id, closing(envgym.make(env_id)) as env:
        first = env.reset(seed=0).info["envgym"]
        assert [tool.name for tool in first.tools] == ["add"]
        record = play(env, tool_call_action("add", a="x", b=1))
        assert (record.tool_errors, record.ending, record.reward) == (1, None, Scored(value=0.0))
        record = play(env, tool_call_action("add", a=1, b=2))
        assert (str(record.observation), record.reward) == ("3", Scored(value=1.0))
        assert record.ending is Ending.TERMINATED
