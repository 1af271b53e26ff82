"""`tools/mcp-v0`: real servers in sandboxes, tools that come and go, lost servers, forks, and what a server can see."""

import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.messages import Role
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid
from envgym.envs.tools import mcp
from envgym.envs.tools._mcp import pool, processes
from envgym.envs.tools._mcp.plans import SERVERS
from envgym.envs.tools._mcp.pool import McpServerPool
from envgym.envs.tools._mcp.processes import McpServerState
from envgym.envs.tools.mcp import McpTools
from envgym.errors import InvalidInput, ToolInfraFailure, UnknownName
from envgym.parsing import tool_call_action
from tests.envs.episodes import conformance
from tests.support.mcp import NEEDS_MCP

pytestmark = NEEDS_MCP


TestMcp = pytest.mark.slow(conformance("tools/mcp-v0", num_tasks=6))


def begun(server: str = "files", level: int = 1, index: int = 0) -> McpTools:
    """Return an env at the start of a task of a server."""
    env = envgym.make("tools/mcp-v0", servers=server, levels=level, held_out=()).unwrapped
    assert isinstance(env, McpTools)
    env.reset(seed=0, options={"split": "train", "index": index})
    return env


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[McpServerPool]:
    """Let envs use a server that no other test does, and that has two seconds for an answer."""
    limits = dataclasses.replace(processes._LIMITS, wall_s=2.0)
    monkeypatch.setattr(processes, "_LIMITS", limits)
    own = McpServerPool("files", 1)
    monkeypatch.setattr(mcp, "shared_servers", lambda name: own)
    yield own
    own.close()


def tamper(own: McpServerPool, code: str) -> str:
    """Run code in the sandbox of the only server, beside it."""
    (connection,) = own._idle
    return connection._process._session.run(code).output


# ---- episodes -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_oracle_reaches_the_goal_through_real_servers(server: str) -> None:
    env = envgym.make("tools/mcp-v0", servers=server, held_out=()).unwrapped
    for index in range(3):
        episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(Split.TEST, index))
        assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED)


def test_agent_is_told_which_tools_have_come_and_gone() -> None:
    env = begun()
    assert "start_editing" in env.toolset()
    observation = env.step(tool_call_action("start_editing"))[0]
    told, change = env._last.messages
    assert (told.role, told.content) == (Role.TOOL, "Files can be changed now.")
    assert change.role is Role.USER
    assert change.content.splitlines()[:2] == [
        "The tools of the server have changed.",
        "Offered no more: start_editing.",
    ]
    described = [json.loads(line) for line in change.content.splitlines()[3:]]
    assert {tool["name"] for tool in described} == set(env.toolset()) - {"list_folder", "read_file", "search_files"}
    assert described[0]["parameters"]["required"] == ["path", "text"]
    assert "write_file" in observation
    assert "changed" not in env.step(tool_call_action("list_folder", folder="/"))[0]


def test_wrong_calls_are_answered_with_the_servers_words() -> None:
    env = begun()
    for action, words in (
        (tool_call_action("read_file"), "read_file was not run: the argument 'path' is missing"),
        (tool_call_action("read_file", path=3), "the argument 'path' must be of type string, got 3"),
        (tool_call_action("read_file", path="\ud800"), "There is no file '\ufffd'."),
        (tool_call_action("write_file", path="/a/b", text="x"), "There is no tool 'write_file'"),
    ):
        result = env.step(action)
        record = result.info["envgym"]
        assert words in result.observation
        assert (result.reward, result.terminated, record.tool_errors) == (0.0, False, 1)


def test_tool_that_went_in_the_same_message_is_refused_by_the_server() -> None:
    env = begun()
    both = "\n".join([tool_call_action("start_editing")] * 2)
    assert "There is no tool 'start_editing' now." in env.step(both).observation


def test_grade_counts_records_missing_and_unwanted() -> None:
    env = begun()
    env.step(tool_call_action("start_editing"))
    env.step(tool_call_action("write_file", path="/notes/other.txt", text="x"))
    result = env.step("Done.")
    assert result.observation == "Records missing: 1; not asked for: 2."
    assert result.info["envgym"].reward.components == {"solved": 0.0, "missing": 1.0, "unwanted": 2.0}


def test_unknown_servers_and_levels_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean files"):
        envgym.make("tools/mcp-v0", servers="file")
    with pytest.raises(InvalidInput, match="leave some to train on"):
        envgym.make("tools/mcp-v0", servers="shop")
    with pytest.raises(InvalidInput, match="levels must be 1, 2 or 3"):
        envgym.make("tools/mcp-v0", levels=4)


# ---- forks and sharing --------------------------------------------------------------------------------------------


def test_forks_go_on_from_the_same_state_apart() -> None:
    env = begun()
    env.step(tool_call_action("start_editing"))
    forks = [env.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        fork.step(tool_call_action("write_file", path="/notes/own.txt", text=str(number)))
    for number, fork in enumerate(forks):
        assert fork.step(tool_call_action("read_file", path="/notes/own.txt")).observation == str(number)
    assert "There is no file" in env.step(tool_call_action("read_file", path="/notes/own.txt")).observation


def test_many_episodes_share_few_servers() -> None:
    envs = [begun(index=index) for index in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda env: env.step(tool_call_action("start_editing")), envs))
        texts = [f"text of {number}" for number in range(8)]
        write = [tool_call_action("write_file", path="/notes/own.txt", text=text) for text in texts]
        list(threads.map(McpTools.step, envs, write))
        read = threads.map(lambda env: env.step(tool_call_action("read_file", path="/notes/own.txt")), envs)
        assert [result.observation for result in read] == texts
    shared = pool.shared_servers("files")
    assert 1 <= len(shared._idle) <= pool.MAX_RUNNING


# ---- lost servers -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, words",
    [
        ("relay._process.kill()", "the server ended with -9"),
        ("import signal; relay._process.send_signal(signal.SIGSTOP)", "stopped by its limit"),
    ],
)
def test_server_that_dies_or_hangs_makes_the_reward_invalid(own_pool: McpServerPool, code: str, words: str) -> None:
    env = begun()
    tamper(own_pool, code)
    result = env.step(tool_call_action("start_editing"))
    reward = result.info["envgym"].reward
    assert isinstance(reward, Invalid)
    assert (result.truncated, reward.cause) == (True, Ending.ERROR_TOOL_INFRA)
    assert words in reward.reason
    env.reset(seed=0, options={"split": "train", "index": 0})  # with another server
    assert env.step(tool_call_action("start_editing")).reward == 0.0


@pytest.mark.slow
def test_server_that_died_between_episodes_is_replaced(own_pool: McpServerPool) -> None:
    env = begun()
    tamper(own_pool, "relay._process.kill()")
    env.reset(seed=0, options={"split": "train", "index": 1})
    assert "changed" in env.step(tool_call_action("start_editing")).observation


@pytest.mark.slow
def test_server_that_does_not_start_is_a_failure_of_infrastructure() -> None:
    with (
        pytest.raises(ToolInfraFailure, match="MCP server nothing must be able to start"),
        McpServerPool("nothing").at(McpServerState("{}")),
    ):
        pass


# ---- what a server can see ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sandbox_of_a_server_holds_its_code_and_no_network(own_pool: McpServerPool) -> None:
    begun()
    found = "import os; print(*sorted(os.path.join(d, f) for d, _, fs in os.walk('.') for f in fs), sep='\\n')"
    names = {line.rsplit("/", 1)[1] for line in tamper(own_pool, found).split()}
    code = {"protocol.py", "files.py", "calendar.py", "shop.py", "knowledge.py", "__init__.py"}
    assert names == code | {"files.toml", "calendar.toml", "shop.toml", "knowledge.toml"}
    reach = "import socket; socket.create_connection(('1.1.1.1', 53), 2)"
    assert "OSError: " in tamper(own_pool, reach)


@pytest.mark.slow
def test_server_is_given_the_records_and_neither_goal_nor_plan(own_pool: McpServerPool) -> None:
    env = begun()
    state = env.state.server.read()
    assert set(state) == {"tables", "session"}
    assert state["tables"] == env.task.payload["tables"]
    (connection,) = own_pool._idle
    assert connection.state == env.state.server
