"""The tools of any MCP server in an environment whose rows and verifier settings name: `tools/mcp_tasks-v0`."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.connect.mcp_client import close_shared
from envgym.core.turns import Ending, Invalid, Scored
from envgym.env import Env
from envgym.errors import ForkUnsupported, InvalidInput, ToolInfraFailure
from envgym.parsing import tool_call_action
from envgym.records import StepRecord
from tests.support.sources import ROOT

pytest.importorskip("mcp")
PROGRAM = str(ROOT / "tests/support/mcp_program.py")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "rows.jsonl"
    numbers = [{"prompt": f"What is {a} plus 5?", "answer": str(a + 5)} for a in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in numbers), encoding="utf-8")
    yield str(path)
    close_shared()


def make(rows: str, *words: str, **changes: Any) -> Env[None]:
    server = {"name": "calc", "command": [sys.executable, PROGRAM, *words], **changes}
    return envgym.make("tools/mcp_tasks-v0", mcp=[server], data=rows, verifier="numeric")


def play(env: Env[None], tool: str, **arguments: Any) -> StepRecord:
    record: StepRecord = env.step(tool_call_action(tool, **arguments)).info["envgym"]
    return record


def test_an_agent_calls_the_tools_and_its_answer_is_scored(rows: str) -> None:
    with closing(make(rows)) as env:
        for index, answer, value in ((0, None, 1.0), (1, "1000", 0.0)):
            record = env.reset(seed=0, options={"split": "train", "index": index}).info["envgym"]
            assert [spec.name for spec in record.tools][:2] == ["calc__add", "calc__fail"]
            number = int(str(record.observation).split()[2])
            turn = play(env, "calc__add", a=number, b=5)
            assert (turn.observation, turn.ending, turn.tool_errors) == (str(number + 5), None, 0)
            result = env.step(answer or str(turn.observation)).info["envgym"]
            assert isinstance(result.reward, Scored)
            assert (result.reward.value, result.ending) == (value, Ending.TERMINATED)
        env.reset(seed=0)
        assert env.step(env.oracle()).reward == 1.0


def test_each_episode_has_a_server_of_its_own_unless_it_is_shared(rows: str) -> None:
    for is_shared, expected in ((False, ["1", "1"]), (True, ["1", "2"])):
        with closing(make(rows, shared=is_shared)) as env:
            counts = []
            for seed in (0, 1):
                env.reset(seed=seed)
                counts.append(str(play(env, "calc__calls").observation))
            assert counts == expected
            if is_shared:
                with closing(env.fork()) as fork:
                    assert play(fork, "calc__calls").observation == "3"
                assert play(env, "calc__calls").observation == "4"
            else:
                with pytest.raises(ForkUnsupported):
                    env.fork()


def test_refusals_are_answered_and_results_are_cut(rows: str) -> None:
    with closing(make(rows)) as env:
        env.reset(seed=0)
        refused = play(env, "calc__fail")
        assert (refused.observation, refused.tool_errors) == ("no, thanks", 1)
        unknown = play(env, "calc__substract", a=1)
        assert "There is no tool 'calc__substract'" in unknown.observation
        big = play(env, "calc__big")
        assert big.observation.startswith("xxxx")
        assert big.observation.endswith("[cut: the first 20000 of 5000000 characters are shown]")
        assert play(env, "calc__picture").observation == "[image: it cannot be shown]"


def test_tools_that_come_are_announced_and_can_be_called(rows: str) -> None:
    with closing(make(rows)) as env:
        env.reset(seed=0)
        turn = play(env, "calc__grow")
        while "The tools of the server have changed." not in turn.observation:  # the notification is read in time
            turn = play(env, "calc__add", a=1, b=1)
            assert turn.turn < 19
        assert '"name": "calc__late"' in turn.observation
        assert play(env, "calc__late").observation == "late"


@pytest.mark.parametrize("tool, words", [("die", {}), ("hang", {"answer_s": 0.5})])
def test_a_server_that_dies_or_hangs_makes_the_reward_invalid_and_the_next_episode_plays(
    tool: str, words: dict[str, Any], rows: str
) -> None:
    with closing(make(rows, tools=["add", tool])) as env:
        env.reset(seed=0)
        for connection in env.unwrapped._connections.values():  # type: ignore[attr-defined]  # of this env
            connection.settings = connection.settings.model_copy(update=words)
        turn = play(env, f"calc__{tool}")
        assert isinstance(turn.reward, Invalid)
        assert turn.ending is Ending.ERROR_TOOL_INFRA
        env.reset(seed=1)
        assert play(env, "calc__add", a=1, b=2).observation == "3"


def test_what_cannot_be_used_is_refused(rows: str) -> None:
    with pytest.raises(InvalidInput, match=r"mcp must be a list of servers, got None"):
        envgym.make("tools/mcp_tasks-v0", data=rows, verifier="numeric")
    server = {"name": "calc", "command": [sys.executable, PROGRAM]}
    columns = {"prompt": "prompt", "answer": "answer", "tools": "functions"}
    with pytest.raises(InvalidInput, match=r"columns must name no tools"):
        envgym.make("tools/mcp_tasks-v0", mcp=[server], data=rows, verifier="numeric", columns=columns)
    with pytest.raises(InvalidInput, match=r"verifier must be given"):
        envgym.make("tools/mcp_tasks-v0", mcp=[server], data=rows)
    with closing(make(rows, "many")) as env, pytest.raises(InvalidInput, match="must offer at most 128 tools, got 209"):
        env.reset(seed=0)
    with closing(make(rows, "refuse-start")) as env, pytest.raises(ToolInfraFailure, match="no licence"):
        env.reset(seed=0)
