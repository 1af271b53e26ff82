"""An error of a tool is answered; of each distinct error the log has the traceback once, then its number."""

import pytest

from envgym import Action, Ending, Env, Observation, Reply, ToolCall, tool
from envgym.errors import EnvFailure, ToolInfraFailure
from envgym.runtime.error_log import log_error
from tests.support.toys import CounterTasks

CALL = Action(tool_calls=[ToolCall(name="ask")])


class Shop(Env[int]):
    """Every turn costs 0.1; its tool breaks on a bad query, and its database may be away."""

    tasks = CounterTasks()
    propagated_errors = (ConnectionError,)

    def begin(self, task: object) -> str:
        self.state = 0
        return "Ask."

    @tool
    def ask(self, query: str) -> str:
        """Ask."""
        if query == "away":
            raise ConnectionError("the database is away")
        return {"good": "Yes."}[query]

    def after_tools(self, observation: Observation) -> Reply:
        return Reply(observation=observation, reward=-0.1)


def test_bad_query_neither_ends_an_episode_nor_escapes_its_penalty() -> None:
    env = Shop()
    env.reset(seed=0)
    result = env.step(Action(tool_calls=[ToolCall(name="ask", arguments={"query": "bad"})]))
    assert result.observation == "ask failed: KeyError: 'bad'"
    assert (result.reward, result.truncated, result.info["envgym"].tool_errors) == (-0.1, False, 1)
    away = env.step(Action(tool_calls=[ToolCall(name="ask", arguments={"query": "away"})])).info["envgym"]
    assert (away.ending, away.reward.cause) == (Ending.ERROR_ENV, Ending.ERROR_ENV)
    assert away.error == "step of Shop failed: ConnectionError: the database is away"


class Buggy(Env[None]):
    tasks = CounterTasks()

    def begin(self, task: object) -> str:
        self.state = None
        return "Say something."

    @tool
    def ask(self) -> str:
        """Ask."""
        raise KeyError("no such row \x1b[31m")  # the tool's bug

    def respond(self, action: Action) -> Reply:
        return Reply(reward=1.0 / len({}))  # the reward's bug


def line_of(text: str) -> int:
    with open(__file__, encoding="utf-8") as lines:
        return next(number for number, line in enumerate(lines, start=1) if line.rstrip().endswith(f"# {text}"))


def test_each_bug_is_told_once_with_its_file_and_line(caplog: pytest.LogCaptureFixture) -> None:
    for seed in range(9):
        env = Buggy()
        env.reset(seed=seed)
        assert env.step(CALL).observation == "ask failed: KeyError: 'no such row \\x1b[31m'"
        assert not env.step("an answer").terminated
    assert len(caplog.records) == 2
    for record, text, what in zip(
        caplog.records, ("the tool's bug", "the reward's bug"), ("tool ask failed", "step of Buggy failed"), strict=True
    ):
        assert record.getMessage().startswith(what)
        assert f'File "{__file__}", line {line_of(text)}' in record.getMessage()
        assert "\x1b" not in record.getMessage(), "a terminal obeys nothing that a policy wrote"
    caplog.clear()
    env = Buggy()
    env.reset(seed=0)
    env.step(CALL)
    assert [record.getMessage() for record in caplog.records] == [
        "tool ask failed, and the agent was answered with its error: KeyError, 10 times so far"
    ]


def test_infrastructure_errors_are_no_bugs_but_the_cause_of_an_env_failure_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_error(ToolInfraFailure("the sandbox died"), "step failed")
    log_error(EnvFailure("no world"), "step failed")
    assert caplog.records == []
    failure = EnvFailure("reset failed")
    failure.__cause__ = IndexError("out of range")
    log_error(failure, "reset failed")
    (record,) = caplog.records
    assert record.getMessage() == "reset failed\nIndexError: out of range"
