"""An episode that another program plays is the episode that the env would have given anyone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import Any

import pytest

import envgym
from envgym import Action, Env, Reply, Task
from envgym.core.messages import Role, ToolCall
from envgym.core.turns import ZERO, Ending, Invalid, Scored, total
from envgym.env import NoOracle
from envgym.errors import EnvFailure, InvalidInput, PartyFailure, ResetNeeded, ToolInfraFailure
from envgym.parsing import parse_action
from envgym.played import EpisodeOver, PlayedEpisode, PlayedTurn
from envgym.records import ResetResult, StepRecord, StepResult
from envgym.wrappers.base import AnyEnv, Wrapper
from tests.support.toys import Counter, CounterTasks

ENV_IDS = (
    "math/arithmetic-v0",
    "math/instructions-v0",
    "puzzles/guess_number-v0",
    "puzzles/sokoban-v0",
    "puzzles/knights_knaves-v0",
    "puzzles/household-v0",
    "tools/office-v0",
    "web/shop-v0",
    pytest.param("code/sql-v0", marks=pytest.mark.sandbox),
    pytest.param("tools/mcp-v0", marks=pytest.mark.sandbox),
    "tests.envgym.test_played:Haggling",
)
MAX_TURNS = 60


class Haggling(Env[int]):
    """A party names a price; whoever accepts one below 50 is paid."""

    tasks = CounterTasks()

    def begin(self, task: Task) -> str:
        self.state = 90
        return "Buy it."

    def respond(self, action: Action) -> Reply:
        if action.content == "accept":
            return Reply(reward=Scored(value=1.0, components={"price": float(self.state)}), terminated=True)
        self.state -= 10 + int(self.np_random.integers(5))
        return Reply(observation=f"{self.state}, says the dealer.", reward=-0.25)

    def oracle(self) -> str:
        return "accept" if self.state < 50 else "Less."


def local_turns(env_id: str, seed: int) -> Iterator[tuple[str, StepRecord]]:
    with closing(envgym.make(env_id)) as env:
        env.reset(seed=seed, options={"split": "train"})
        for _ in range(MAX_TURNS):
            action = env.oracle()
            record: StepRecord = env.step(action).info["envgym"]
            yield action, record
            if record.ending is not None:
                return


def play(episode: PlayedEpisode, action: str) -> PlayedTurn:
    """Play an action through the narrowest method that can: one call, plain text, else the action itself."""
    parsed = action if isinstance(action, Action) else parse_action(action)
    if len(parsed.tool_calls) == 1 and not parsed.content and not parsed.malformed:
        (call,) = parsed.tool_calls
        return episode.call(call.name, call.arguments, call.id)
    return episode.act(action) if parsed.tool_calls or parsed.malformed else episode.say(action)


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_the_oracle_gets_the_same_episode_as_in_local_play(env_id: str) -> None:
    with closing(PlayedEpisode(envgym.make(env_id))) as episode, closing(envgym.make(env_id)) as env:
        for seed in (0, 1):
            opening = episode.open(seed=seed, split="train")
            first = env.reset(seed=seed, options={"split": "train"}).info["envgym"]
            shown = [message for message in opening.messages if message.role is not Role.SYSTEM]
            assert shown == list(first.observation.messages)
            assert (opening.tools, opening.task_id) == (first.tools, first.task.id)
            rewards = []
            for action, record in local_turns(env_id, seed):
                assert str(episode.oracle()) == str(action)
                played = play(episode, action)
                rewards.append(record.reward)
                assert played.messages == record.observation.messages
                assert (played.reward, played.ending) == (record.reward, record.ending)
                assert (played.tool_calls, played.tool_errors) == (record.tool_calls, record.tool_errors)
                assert played.total == total(rewards)
            result = episode.result()
            assert result.reward == total(rewards)
            assert (result.ending, result.num_turns) == (record.ending, len(rewards))


def test_the_standing_instructions_come_first_and_the_answer_of_the_task_never() -> None:
    with closing(PlayedEpisode(Counter())) as episode:
        opening = episode.open(seed=3, split="test", index=4)
    assert [message.role for message in opening.messages] == [Role.SYSTEM, Role.USER]
    assert (opening.split, opening.index, opening.task_id) == ("test", 4, "test/4")
    assert not hasattr(opening, "task")


def test_a_task_may_be_given_itself() -> None:
    task = CounterTasks().task(envgym.Split.TEST, 2)
    with closing(PlayedEpisode(Counter())) as episode:
        opening = episode.open(seed=0, task=task)
        assert (opening.task_id, opening.index) == ("test/2", None)
        with pytest.raises(InvalidInput, match="be task alone"):
            episode.open(seed=0, task=task, index=1)


def test_said_text_is_not_read_for_calls_and_an_acted_text_is() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"amount": 1}}</tool_call>'
    with closing(PlayedEpisode(Counter())) as episode:
        episode.open(seed=0)
        assert episode.say(call).tool_calls == 0
        assert episode.act(call).tool_calls == 1
        assert episode.act(Action("x", tool_calls=[ToolCall(name="ad"), ToolCall(name="add")])).tool_errors == 2


def test_the_id_of_a_call_comes_back_with_its_result() -> None:
    with closing(PlayedEpisode(Counter())) as episode:
        episode.open(seed=0)
        (message,) = episode.call("add", {"amount": 1}, "call-7").messages
    assert (message.role, message.tool_call_id, message.name) == (Role.TOOL, "call-7", "add")


def test_a_call_that_cannot_be_run_is_answered_with_advice() -> None:
    with closing(PlayedEpisode(Counter())) as episode:
        episode.open(seed=0)
        played = episode.call("add", {"amuont": 1})
    assert (played.tool_calls, played.tool_errors, played.ending, played.reward) == (1, 1, None, ZERO)
    assert "did you mean 'amount'?" in played.observation


def test_arguments_without_a_form_in_json_are_refused_and_play_no_turn() -> None:
    nested: dict[str, Any] = {}  # as `json.loads` types it
    for _ in range(100_000):
        nested = {"x": nested}
    with closing(PlayedEpisode(Counter())) as episode:
        episode.open(seed=0)
        unwritten: list[dict[str, Any]] = [nested, {"x": {1, 2}}]
        for arguments in unwritten:
            with pytest.raises(InvalidInput, match="have a form in JSON"):
                episode.call("add", arguments)
        assert episode.result().num_turns == 0
    while nested:  # taken apart from outside: a deep one is freed by recursion
        nested = nested.pop("x")


def test_the_turn_budget_ends_the_episode() -> None:
    with closing(PlayedEpisode(Counter(max_turns=2))) as episode:
        episode.open(seed=0)
        assert episode.say("a").ending is None
        assert episode.say("b").ending is Ending.TRUNCATED_TURNS
        with pytest.raises(EpisodeOver, match=r"^The episode is over: TRUNCATED_TURNS, reward 0\.$"):
            episode.say("c")
        assert (episode.result().num_turns, episode.result().reward) == (2, ZERO)


def test_calls_after_the_end_are_refused_with_one_sentence_until_the_next_open() -> None:
    with closing(PlayedEpisode(Haggling())) as episode:
        episode.open(seed=0)
        while episode.act(episode.oracle()).ending is None:
            pass
        for late in (lambda: episode.say("x"), lambda: episode.call("x", {}), episode.oracle):
            with pytest.raises(EpisodeOver, match=r"^The episode is over: TERMINATED, reward [-.\d]+\.$"):
                late()
        assert isinstance(episode.result().reward, Scored)
        episode.open(seed=1)
        assert episode.result().ending is None
        assert episode.say("Less.").total == Scored(value=-0.25)


def test_nothing_is_played_before_open_or_after_close() -> None:
    episode = PlayedEpisode(Counter())
    for early in (lambda: episode.say("x"), episode.oracle, episode.result):
        with pytest.raises(ResetNeeded, match="must follow open"):
            early()
    episode.open(seed=0)
    episode.say("x")
    episode.close()
    episode.close()
    assert episode.result().num_turns == 1
    for late in (lambda: episode.say("x"), lambda: episode.open(seed=0), episode.oracle):
        with pytest.raises(ResetNeeded, match="before close"):
            late()


class Failing(Counter):
    """Fails where it is told to."""

    def respond(self, action: Action) -> Reply:
        if action.content == "bug":
            raise ZeroDivisionError("a bug")
        raise PartyFailure("the dealer is ill")


class FailingOutside(Wrapper):
    """A wrapper that raises."""

    def __init__(self, env: AnyEnv, error: Exception) -> None:
        super().__init__(env)
        self.error = error

    def on_step(self, action: str) -> StepResult:
        raise self.error


class WrongOutside(Wrapper):
    """A wrapper that cannot be reset."""

    def on_reset(self, result: ResetResult) -> ResetResult:
        raise ZeroDivisionError("a bug")


class NoReset(Counter):
    """Cannot be set up."""

    def begin(self, task: Task) -> str:
        raise EnvFailure("the disk is full")


@pytest.mark.parametrize(
    "env, action, cause, reason",
    [
        (Failing(), "x", Ending.ERROR_PARTY, "the dealer is ill"),
        (Failing(), "bug", Ending.ERROR_ENV, "a bug"),
        (FailingOutside(Counter(), ToolInfraFailure("it is full")), "x", Ending.ERROR_TOOL_INFRA, "it is full"),
        (FailingOutside(Counter(), KeyError("x")), "x", Ending.ERROR_ENV, "step failed: KeyError: 'x'"),
        (FailingOutside(Counter(), InvalidInput("a bug")), "x", Ending.ERROR_ENV, "step failed: InvalidInput: a bug"),
    ],
)
def test_a_failure_of_infrastructure_ends_the_episode_without_a_reward(
    env: Env[int], action: str, cause: Ending, reason: str
) -> None:
    with closing(PlayedEpisode(env)) as episode:
        episode.open(seed=0)
        played = episode.say(action)
        assert played.ending is cause
        assert isinstance(played.reward, Invalid)
        assert reason in str(played.error)
        result = episode.result()
        assert (result.reward, result.ending, result.error) == (played.total, cause, played.error)
        with pytest.raises(EpisodeOver, match=f"^The episode is over: {cause}, no valid reward "):
            episode.say("again")


def test_an_env_that_cannot_be_set_up_has_no_reward() -> None:
    for env, reason in (
        (NoReset(), "the disk is full"),
        (WrongOutside(Counter()), "reset failed: ZeroDivisionError: a bug"),
    ):
        with closing(PlayedEpisode(env)) as episode:
            with pytest.raises(EnvFailure, match=f"^{reason}$"):
                episode.open(seed=0)
            result = episode.result()
            assert result.reward == Invalid(cause=Ending.ERROR_ENV, reason=reason)
            with pytest.raises(EpisodeOver):
                episode.say("x")


def test_a_refused_open_leaves_no_episode() -> None:
    with closing(PlayedEpisode(Counter())) as episode:
        episode.open(seed=0)
        with pytest.raises(InvalidInput, match="be a whole number"):
            episode.open(seed=-1)
        with pytest.raises(InvalidInput, match="split"):
            episode.open(seed=0, split="dev")
        with pytest.raises(ResetNeeded):
            episode.say("x")


def test_an_env_without_oracle_says_so() -> None:
    class Silent(Counter):
        oracle = Env.oracle

    with closing(PlayedEpisode(Silent())) as episode:
        episode.open(seed=0)
        with pytest.raises(NoOracle):
            episode.oracle()


class Slow(Counter):
    """Answers when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.allowed = Event(), Event()

    def respond(self, action: Action) -> Reply:
        self.begun.set()
        assert self.allowed.wait(60)
        return super().respond(action)


def test_the_result_is_read_while_a_turn_runs() -> None:
    env = Slow()
    with closing(PlayedEpisode(env)) as episode, ThreadPoolExecutor(2) as pool:
        episode.open(seed=0)
        try:
            turn = pool.submit(episode.say, "x")
            assert env.begun.wait(60)
            assert pool.submit(episode.result).result(60).num_turns == 0
        finally:
            env.allowed.set()
        assert turn.result(60).ending is None
        assert episode.result().num_turns == 1


def test_threads_play_one_turn_after_another() -> None:
    with closing(PlayedEpisode(Counter(max_turns=None))) as episode, ThreadPoolExecutor(8) as pool:
        episode.open(seed=0)
        list(pool.map(lambda _: episode.call("add", {"amount": 1}), range(200)))
        assert episode.result().num_turns == 200
        assert "stands at 201;" in episode.call("add", {"amount": 1}).observation
