"""Environments of Gymnasium by id: text and named actions, seeds as tasks, and no reward where theirs is none."""

from contextlib import closing

import pytest

import envgym
from envgym.cli.main import main
from envgym.conformance.env_under_test import CheckStatus, EnvUnderTest
from envgym.conformance.suite import CHECKS, run_check
from envgym.connect.gymnasium_env import _named
from envgym.core.turns import Ending, Invalid, Scored
from envgym.env import Env
from envgym.errors import EnvFailure, ForkUnsupported, InvalidInput, UnknownName
from envgym.records import StepRecord

HOME = "gymnasium://tests.support.gym_worlds"
LAKE = {"render": True, "actions": ["left", "down", "right", "up"], "kwargs": {"is_slippery": False}}


def make(name: str, **settings: object) -> Env[None]:
    return envgym.make(f"{HOME}:Test{name}-v0", **settings)


def play(env: Env[None], action: str) -> StepRecord:
    record: StepRecord = env.step(action).info["envgym"]
    return record


def test_text_goes_in_and_out_and_their_info_is_not_shown() -> None:
    with closing(make("Echo")) as env:
        first, info = env.reset(seed=0, options={"split": "train", "index": 0})
        assert first.startswith("Say it ")
        assert "secret" not in str(info["envgym"])
        record = play(env, "half")
        assert (record.observation, record.reward, record.ending) == ("turn 1: half", Scored(value=0.5), None)
        assert "secret" not in str(record)
        assert play(env, "end").ending is Ending.TERMINATED


def test_a_task_is_a_seed_and_the_same_one_begins_the_same() -> None:
    with closing(make("Echo")) as env, closing(make("Echo")) as other:
        firsts = [env.reset(seed=seed, options={"split": "test", "index": 5}).observation for seed in (0, 1)]
        assert firsts[0] == firsts[1] == other.reset(options={"split": "test", "index": 5}).observation
        indices = range(20)
        starts = {env.reset(options={"split": "train", "index": index}).observation for index in indices}
        assert len(starts) > 10
        seeds = [{env.tasks.task(split, index).key for index in indices} for split in envgym.Split]
        assert not seeds[0] & seeds[1]


@pytest.mark.parametrize(
    "action, reason",
    [
        ("nan", "reward must be a finite number, got nan"),
        ("none", "reward must be a number, Scored or Invalid, got None"),
        ("text", "reward must be a number, Scored or Invalid, got '1'"),
        ("break", "ZeroDivisionError: broken"),
        ("number", "observation must be a text, got int"),
    ],
)
def test_a_reward_that_is_none_and_a_broken_step_are_invalid_and_never_zero(action: str, reason: str) -> None:
    with closing(make("Echo")) as env:
        env.reset(seed=0)
        record = play(env, action)
        assert isinstance(record.reward, Invalid)
        assert record.reward.cause is record.ending is Ending.ERROR_ENV
        assert reason in record.reward.reason


def test_their_truncation_and_their_limit_are_truncations() -> None:
    with closing(make("Echo")) as env:
        env.reset(seed=0)
        assert play(env, "cut").ending is Ending.TRUNCATED_TURNS
    with closing(make("ShortEcho")) as env:
        env.reset(seed=0)
        assert env.unwrapped.max_turns == 2
        assert play(env, "a").ending is None
        assert play(env, "b").ending is Ending.TRUNCATED_TURNS
    with closing(make("Echo", max_turns=1)) as env:
        env.reset(seed=0)
        assert play(env, "a").ending is Ending.TRUNCATED_TURNS


def test_actions_have_names_or_numbers() -> None:
    with closing(make("Doors", actions=["red", "green", "blue"])) as env:
        assert env.system_prompt == "Answer with one of these actions: red, green, blue."
        for text, observation, value in (
            ("green", "door 2", 1.0),
            ("I take the **Red** door.", "door 1", 0.0),
            (" Blue! ", "door 3", 0.0),
        ):
            env.reset(seed=0)
            record = play(env, text)
            assert (record.observation, record.reward) == (observation, Scored(value=value))
        for text in ("red or blue", "reddish", "", "2"):
            env.reset(seed=0)
            record = play(env, text)
            assert record.observation == "Answer with one of these actions: red, green, blue."
            assert (record.reward, record.ending) == (Scored(value=0.0), None)
    with closing(make("Doors")) as env:
        env.reset(seed=0)
        assert env.system_prompt == "Answer with one of these actions: 1, 2, 3."
        assert play(env, "2").reward == Scored(value=1.0)


@pytest.mark.parametrize(
    "names, text, choice",
    [
        (["1", "2", "3"], "I choose 2.", 1),
        (["1", "2", "3"], "1.5", None),
        (["1", "2", "3"], "1,5", None),
        (["1", "2", "3"], "0.2", None),
        (["1", "2", "3"], "-1", None),
        (["1", "2", "3"], "My move: 3, as 12 is none.", 2),
        (["-1", "0", "1"], "I choose -1", 0),
        (["-1", "0", "1"], "I choose 1 and not -1", None),
        (["left", "turn left", "turn right"], "I turn left.", 1),
        (["left", "turn left", "turn right"], "I turn\n left", 1),
        (["left", "turn left", "turn right"], "I go left.", 0),
        (["left", "turn left", "turn right"], "turn left, or left", None),
        (["wait  here", "go"], "I wait here", 0),
    ],
)
def test_an_answer_mentions_a_name_as_a_whole(names: list[str], text: str, choice: int | None) -> None:
    assert _named(text, names) == choice


def test_a_text_beyond_the_action_space_is_answered_and_not_played() -> None:
    with closing(make("Echo", instructions="Speak.")) as env:
        assert env.system_prompt == "Speak."
        env.reset(seed=0)
        assert play(env, "x" * 21).observation == "Answer with 1 to 20 characters."
        assert play(env, "a b").observation == "turn 1: a b"


def test_the_text_of_a_mapping_is_named() -> None:
    with closing(make("Parts", observation="view", kwargs={"greeting": "Hello"})) as env:
        assert env.reset(seed=0).observation.startswith("Hello ")
    with closing(make("Parts", render=True)) as env:
        assert env.reset(seed=0).observation == "[0] turns"


def test_gymnasiums_own_lake_is_crossed_by_names() -> None:
    with closing(envgym.make("gymnasium://FrozenLake-v1", **LAKE)) as env:
        assert env.name == "gymnasium:FrozenLake-v1"
        assert "[S]FFF\nFHFH\nFFFH\nHFFG" in env.reset(seed=0).observation
        for action in ("down", "down", "right", "right", "down"):
            assert play(env, action).reward == Scored(value=0.0)
        record = play(env, "right")
        assert (record.reward, record.ending) == (Scored(value=1.0), Ending.TERMINATED)
        assert "HFF[G]" in record.observation


def test_forks_only_where_it_is_said_that_a_copy_continues() -> None:
    with closing(make("Echo")) as env:
        env.reset(seed=0)
        with pytest.raises(ForkUnsupported):
            env.fork()
    with closing(make("Echo", forkable=True)) as env:
        env.reset(seed=0)
        play(env, "a")
        with closing(env.fork()) as fork:
            assert [play(item, "b").observation for item in (env, fork)] == ["turn 2: b"] * 2
            assert play(env, "c").observation == "turn 3: c"
            assert play(fork, "d").observation == "turn 3: d"
    with closing(make("Uncopied", forkable=True)) as env:
        env.reset(seed=0)
        with pytest.raises(EnvFailure, match="it holds a socket"):
            env.fork()


@pytest.mark.parametrize(
    "env_id, settings, sentence",
    [
        ("gymnasium://NoSuchEnv-v0", {}, "be made by gymnasium.make, got NameNotFound"),
        ("gymnasium://no_such_module:X-v0", {}, "be made by gymnasium.make, got ModuleNotFoundError"),
        ("gymnasium://", {}, "be made by gymnasium.make"),
        (f"{HOME}:TestEcho-v0", {"kwargs": {"size": 3}}, "be made by gymnasium.make, got TypeError"),
        (f"{HOME}:TestEcho-v0", {"actions": ["a"]}, "actions must be left out for a Text action space"),
        (f"{HOME}:TestEcho-v0", {"observation": "view"}, "observation must be left out for this space"),
        (f"{HOME}:TestEcho-v0", {"render": "no"}, "render must be true or false, got 'no'"),
        (f"{HOME}:TestParts-v0", {}, "observation must name the entry with the text: 'view', got None"),
        (f"{HOME}:TestParts-v0", {"observation": "lives"}, "observation must name the entry with the text: 'view'"),
        (f"{HOME}:TestDoors-v0", {"actions": ["a", "b"]}, "actions must be 3 different names"),
        (f"{HOME}:TestDoors-v0", {"actions": ["a", "b", "A"]}, "actions must be 3 different names"),
        (f"{HOME}:TestDoors-v0", {"actions": [True, False, "maybe"]}, "got [True, False, 'maybe']"),
        (f"{HOME}:TestDoors-v0", {"actions": [1, 2, 3]}, "actions must be 3 different names, got [1, 2, 3]"),
        (f"{HOME}:TestDoors-v0", {"actions": "abc"}, "actions must be 3 different names, got 'abc'"),
        (f"{HOME}:TestDoors-v0", {"actions": ["a", "b", " "]}, "actions must be 3 different names"),
        (f"{HOME}:TestDoors-v0", {"reward_range": [1]}, "reward_range must be two numbers, the lower one first"),
        (f"{HOME}:TestDoors-v0", {"reward_range": [2, 1]}, "reward_range must be two numbers, the lower one first"),
        (f"{HOME}:TestDoors-v0", {"reward_range": [float("nan"), 1]}, "reward_range must be two numbers"),
        (f"{HOME}:TestDoors-v0", {"reward_range": ["0", "1"]}, "reward_range must be two numbers"),
        (f"{HOME}:TestDoors-v0", {"max_turns": 0}, "max_turns must be at least 1, got 0"),
        ("gymnasium://CartPole-v1", {}, "observation space must be Text"),
        ("gymnasium://Pendulum-v1", {}, "action space must be Text or Discrete, got Box"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(
    env_id: str, settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=r"\A[^\n]*\Z") as caught:
        envgym.make(env_id, **settings)
    assert sentence in str(caught.value)


def test_an_unknown_scheme_and_an_unknown_setting_are_offered_near_names() -> None:
    with pytest.raises(UnknownName, match=r"connector must be a known name, got 'gymnasum'.*did you mean gymnasium"):
        envgym.make("gymnasum://FrozenLake-v1")
    with pytest.raises(UnknownName, match=r"keyword argument must be a known name, got 'action'.*actions"):
        make("Doors", action=["a"])


def test_the_conformance_check_holds() -> None:
    make_lake = lambda: envgym.make("gymnasium://FrozenLake-v1", **LAKE, forkable=True)  # noqa: E731
    subject = EnvUnderTest(make_lake, num_tasks=3, seed=0)
    failed = {name: check.detail for name in CHECKS if (check := run_check(name, subject)).status is CheckStatus.FAIL}
    assert not failed


def test_the_command_line_takes_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "actions=[red, green, blue]", "--set", "kwargs={greeting: Hi}"]
    assert main(["show", f"{HOME}:TestDoors-v0", *words]) == 0
    shown = capsys.readouterr().out
    assert "Answer with one of these actions: red, green, blue." in shown
    assert "env: Hi " in shown
    assert main(["tasks", f"{HOME}:TestDoors-v0", "-n", "2"]) == 0
    assert "TestDoors-v0, seed " in capsys.readouterr().out
    assert main(["play", "gymnasium://no_such_module:X-v0"]) == 2
    assert "be made by gymnasium.make" in capsys.readouterr().err
