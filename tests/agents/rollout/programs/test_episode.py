"""Episodes of programs: rewards and endings, line by line, and the law that rows are those of the native loop."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from envgym import Ending, Invalid, Observation, Reply, Scored, tool
from envgym.agents.loop.program_settings import ProgramSettings
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.endings import ProgramFacts, conclude
from envgym.agents.rollout.programs.episode import run_program_episode
from envgym.agents.rollout.programs.runner import ProgramEnd, ProgramRun
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput, PolicyFailure
from envgym.records import StepResult
from tests.agents.rollout.programs import sample_programs
from tests.agents.rollout.programs.playing import play, program_agent, sample
from tests.support.parrots import CALL, Parrot, char_agent, parrot_job


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    sample_programs.HELD.clear()
    sample_programs.ASKED.clear()
    yield
    sample_programs.HELD.set()


# ---- the law --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_program_that_is_the_native_loop_gives_its_rows_rewards_and_ending(seed: int) -> None:
    job = parrot_job(lambda: Parrot(system_prompt="S"), seed=seed)
    policy = partial(sample, words=[CALL, "bye", f"<think>hm</think>{CALL}"])
    tree = asyncio.run(run_episode(job, char_agent(), ScriptedPolicy(policy), sampling=Sampling()))
    (native,) = trajectories(tree)
    program = play("play", policy, job=job)
    assert program.rows == native.rows
    assert [turn.outcome and turn.outcome.reward for turn in program.turns] == [
        turn.outcome and turn.outcome.reward for turn in native.turns
    ]
    assert (program.ending, program.reward) == (native.ending, native.reward)
    assert program.tree.messages == native.tree.messages


def test_helpers_are_conversations_of_the_same_episode() -> None:
    trajectory = play("help_out")
    assert [row.rewrite for row in trajectory.rows] == [None, Rewrite.CONVERSATION, Rewrite.CONVERSATION]
    assert (len(trajectory.turns), trajectory.reward) == (3, Scored(value=0.25))
    last = trajectory.turns[-1].outcome
    assert last is not None
    assert last.reward == Scored(value=0.25)


def test_the_wire_formats_of_the_settings_are_answered() -> None:
    trajectory = play("ask_in_every_format", dialects=["chat", "responses", "messages"])
    assert [text.startswith("200") for text in sample_programs.LAST_TEXTS] == [True] * 4, sample_programs.LAST_TEXTS
    assert "'input_tokens': 4" in sample_programs.LAST_TEXTS[-1]
    assert len(trajectory.turns) == 3
    assert len({row.token_ids for row in trajectory.rows}) == 1  # one call, whatever its format
    play("ask_in_every_format", dialects=["messages"])
    assert [text[:3] for text in sample_programs.LAST_TEXTS] == ["404", "404", "200", "200"]


COMMAND = """
import json, os, urllib.request
task = json.loads(os.environ["ENVGYM_TASK"])
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps({"model": task["model"], "messages": task["messages"]}).encode(),
    headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
    answer = json.load(reply)["choices"][0]["message"]["content"]
with open(os.environ["ENVGYM_RESULT"], "w") as file:
    json.dump({"answer": answer, "reward": 0.5}, file)
"""


def test_a_command_plays_an_episode() -> None:
    for source, reward in (("result", 0.5), ("env", 0.25)):
        trajectory = play("", run=[sys.executable, "-c", COMMAND], reward=source)
        assert (trajectory.ending, trajectory.reward) == (Ending.TERMINATED, Scored(value=reward))
        assert [str(turn.outcome.action) for turn in trajectory.turns if turn.outcome] == ["one"]


def test_a_program_that_changes_replies_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    assert len(play("rewrite").rows) == len(play("rewrite").rows) == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "message 1 was 'one', and came back as 'Calling tools: one'" in warning


# ---- rewards and endings --------------------------------------------------------------------------------------------


def test_a_program_that_returned_is_paid_by_the_source_of_the_reward() -> None:
    assert (play("play").ending, play("play").reward) == (Ending.TERMINATED, Scored(value=0.25))
    result = play("score", reward="result")
    assert (result.ending, result.reward) == (Ending.TERMINATED, Scored(value=3.0, components={"length": 3.0}))
    posted = play("post", reward="posted")
    assert (posted.ending, posted.reward) == (Ending.TERMINATED, Scored(value=0.5))


@pytest.mark.parametrize(
    "function,reward,reason",
    [
        ("ask_once", "env", "program must return its answer as text, or end the episode by task.call, got no answer"),
        (
            "score_without_answer",
            "env",
            "got the reward 0.75 and no answer (agent.program.reward: env); return text",
        ),
        ("ask_once", "posted", "program must post its reward, got no reward (agent.program.reward: posted)"),
        ("play", "result", "program must return its reward, got no reward (agent.program.reward: result)"),
        ("score_without_number", "result", "reward must be a finite number, got nan"),
    ],
)
def test_an_episode_without_a_reward_is_invalid(function: str, reward: str, reason: str) -> None:
    trajectory = play(function, reward=reward)
    assert trajectory.ending is Ending.ERROR_ENV
    assert isinstance(trajectory.reward, Invalid)
    assert reason in trajectory.reward.reason
    assert len(trajectory.turns) == 1  # what was sampled is kept


def test_a_crash_is_invalid_or_paid_as_the_settings_say() -> None:
    crashed = play("crash")
    assert crashed.ending is Ending.ERROR_ENV
    assert isinstance(crashed.reward, Invalid)
    assert "ValueError: the program is wrong" in crashed.reward.reason
    paid = play("crash", on_crash=-1.0)
    assert (paid.ending, paid.reward) == (Ending.TERMINATED, Scored(value=-1.0))


def numbers_of(trajectory: Trajectory) -> dict[str, float | None]:
    return {item.name: item.value for item in trajectory.tree.annotations}


def test_a_tree_keeps_whether_its_program_crashed_and_which_options_had_no_effect() -> None:
    crashes = [play("crash"), play("crash", on_crash=0.5), play("crash_at_once")]
    others = [play("play"), play("ask_once"), play("fill", max_context_tokens=400)]  # the last one gave up
    failed = play("play", lambda request: PolicyFailure("the engine broke"))
    assert [numbers_of(item)["program/crashes"] for item in crashes] == [1.0, 1.0, 1.0]
    assert [numbers_of(item)["program/crashes"] for item in [*others, failed]] == [0.0, 0.0, 0.0, 0.0]
    assert numbers_of(play("play"))["program/ignored_options"] == 0.0
    assert numbers_of(play("ask_for_json"))["program/ignored_options"] == 2.0


def test_a_program_that_made_no_call_is_invalid_and_the_base_url_is_named() -> None:
    silent = play("say_nothing")
    assert silent.ending is Ending.ERROR_ENV
    assert isinstance(silent.reward, Invalid)
    assert "program must call the model at least once" in silent.reward.reason
    assert "base URL http://127.0.0.1:" in silent.reward.reason
    crashed = play("crash_at_once", on_crash=0.0)  # no turn could hold the reward
    assert isinstance(crashed.reward, Invalid)
    assert "ValueError" in crashed.reward.reason


def test_the_turn_limit_truncates_and_the_value_counts_where_the_program_still_gave_one() -> None:
    for function, reward, value in (("never_stop", "env", 0.25), ("score_at_the_limit", "result", 2.0)):
        trajectory = play(function, reward=reward, turns=4)
        assert (trajectory.ending, trajectory.reward) == (Ending.TRUNCATED_TURNS, Scored(value=value))
        assert len(trajectory.turns) == 4  # the polite reply is no turn
    without = play("never_stop_without_answer", turns=2)
    assert without.ending is Ending.TRUNCATED_TURNS
    assert isinstance(without.reward, Invalid)
    assert without.reward.cause is Ending.ERROR_ENV
    assert "got no answer" in without.reward.reason


def test_the_time_limit_truncates_and_the_value_counts_where_there_is_one() -> None:
    trajectory = play("hold", is_late=sample_programs.ASKED)
    assert (trajectory.ending, len(trajectory.turns)) == (Ending.TRUNCATED_TIME, 1)
    assert isinstance(trajectory.reward, Invalid)
    silent = play("hold_at_once", is_late=sample_programs.ASKED)
    assert silent.ending is Ending.ERROR_ENV
    assert isinstance(silent.reward, Invalid)
    assert "no call of the program reached the model within its time limit" in silent.reward.reason
    trajectory = play("post_and_hold", reward="posted", is_late=sample_programs.ASKED)
    assert (trajectory.ending, trajectory.reward) == (Ending.TRUNCATED_TIME, Scored(value=0.5))


@pytest.mark.parametrize("has_called, reason", [(True, "got no reply"), (False, "no call of the program reached")])
def test_a_time_limit_before_a_turn_is_invalid_and_says_whether_the_model_was_called(
    has_called: bool, reason: str
) -> None:
    facts = ProgramFacts(
        run=ProgramRun(end=ProgramEnd.TIME_LIMIT),
        failure=None,
        num_turns=0,
        no_call="",
        has_called=has_called,
        is_at_limit=False,
        is_full=False,
        env_ending=None,
        reward=None,
    )
    end = conclude(facts, ProgramSettings(run="agent.py:play"))
    assert (end.ending, end.reward) == (Ending.ERROR_ENV, None)
    assert reason in str(end.error)


def test_a_full_context_truncates_where_the_program_gave_up() -> None:
    full = play("fill", max_context_tokens=400)
    assert full.ending is Ending.TRUNCATED_TOKENS
    assert isinstance(full.reward, Invalid)
    scored = play("fill_and_score", reward="result", max_context_tokens=400)
    assert (scored.ending, scored.reward) == (Ending.TRUNCATED_TOKENS, Scored(value=0.75))
    at_once = play("fill_at_once")
    assert at_once.ending is Ending.ERROR_ENV
    assert isinstance(at_once.reward, Invalid)
    assert "leaves no room" in at_once.reward.reason


def test_a_policy_that_fails_ends_the_episode() -> None:
    trajectory = play("play", lambda request: PolicyFailure("the engine broke"))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert isinstance(trajectory.reward, Invalid)
    assert trajectory.reward.reason == "the engine broke"


def test_an_abort_ends_the_episode_and_keeps_what_was_sampled() -> None:
    abort = AbortHandle()

    async def run() -> Trajectory:
        generate = ScriptedPolicy(partial(sample, words=["one"])).generate
        work = run_program_episode(parrot_job(), program_agent("hold"), generate, sampling=Sampling(), abort=abort)
        task = asyncio.ensure_future(work)
        await asyncio.to_thread(sample_programs.ASKED.wait, 60)
        abort.abort("a straggler")
        (trajectory,) = trajectories(await task)
        return trajectory

    sample_programs.ASKED.clear()
    trajectory = asyncio.run(run())
    assert (trajectory.ending, len(trajectory.turns)) == (Ending.ERROR_ABORTED, 1)
    assert trajectory.reward == Invalid(cause=Ending.ERROR_ABORTED, reason="a straggler")


def test_an_episode_that_was_aborted_before_makes_no_env() -> None:
    abort = AbortHandle()
    abort.abort("no more")
    assert play("play", job=parrot_job(failing), abort=abort).ending is Ending.ERROR_ABORTED


# ---- the env --------------------------------------------------------------------------------------------------------


def failing() -> Parrot:
    raise RuntimeError("no perch")


class Door(Parrot):
    """Its only tool ends the episode, which pays 1 then."""

    @tool
    def leave(self) -> str:
        """Leave."""
        return "left"

    def after_tools(self, observation: Observation) -> Reply:
        return Reply(observation=observation, reward=1.0, terminated=True)


def test_an_env_that_a_tool_has_ended_pays_and_a_later_call_is_told_so() -> None:
    trajectory = play("outlive_the_env", job=parrot_job(Door))
    assert (trajectory.ending, trajectory.reward) == (Ending.TERMINATED, Scored(value=1.0))
    assert sample_programs.LAST_TEXTS[-1] == "The episode is over: TERMINATED, reward 1."
    unpaid = play("outlive_the_env", job=parrot_job(Door), reward="result")
    assert isinstance(unpaid.reward, Invalid)  # the env does not give the reward


def test_an_env_that_fails_makes_the_episode_invalid() -> None:
    reset = play("play", job=parrot_job(failing))
    assert isinstance(reset.reward, Invalid)
    assert reset.reward.reason == "make failed: RuntimeError: no perch"
    step = play("play", partial(sample, words=["unplug"]))
    assert step.ending is Ending.ERROR_TOOL_INFRA
    assert isinstance(step.reward, Invalid)


class Broken(Parrot):
    """Raises outside the turn, as a wrapper may."""

    def step(self, action: str) -> StepResult:
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("function", ["ignore_the_env", "play"])
def test_an_env_that_raises_makes_the_episode_invalid_whatever_the_program_does(function: str) -> None:
    trajectory = play(function, partial(sample, words=[CALL]), job=parrot_job(Broken), turns=2, on_crash=0.0)
    reason = "step failed: ZeroDivisionError: a bug"
    assert (trajectory.ending, trajectory.reward) == (
        Ending.ERROR_ENV,
        Invalid(cause=Ending.ERROR_ENV, reason=reason),
    )


@pytest.mark.parametrize("part", ["hint", "prompts", "start"])
def test_hints_prompts_and_start_states_are_refused(part: str) -> None:
    value = {"hint": "look", "prompts": {"other": "look"}, "start": object()}[part]
    with pytest.raises(InvalidInput, match="must be left out for a program"):
        play("play", job=replace(parrot_job(), **{part: value}))  # type: ignore[arg-type]  # a state of any kind
