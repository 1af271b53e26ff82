"""The env of a program's episode: the thread of its calls, its closing, and what counts after a limit."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from envgym import Action, Invalid, Observation, Reply, Scored, Task, tool
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.episode import run_program_episode
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.turns import Ending
from tests.agents.rollout.programs import sample_programs
from tests.agents.rollout.programs.playing import play, program_agent, sample
from tests.support.parrots import CALL, Parrot, char_agent, parrot_job


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    sample_programs.HELD.clear()
    sample_programs.ASKED.clear()
    yield
    sample_programs.HELD.set()


class Watched(Parrot):
    """Notes in which thread each call runs; its tool waits until it is released."""

    waits = False

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []
        self.closed = threading.Event()

    def begin(self, task: Task) -> str:
        self.threads.append(threading.current_thread())
        return super().begin(task)

    def respond(self, action: Action) -> Reply:
        self.threads.append(threading.current_thread())
        return super().respond(action)

    @tool
    def look(self, at: str) -> str:
        """Look at something.

        Args:
            at: What to look at.
        """
        self.threads.append(threading.current_thread())
        if self.waits:
            sample_programs.ASKED.set()
            assert sample_programs.HELD.wait(60)
        return f"a {at}"

    def close(self) -> None:
        self.threads.append(threading.current_thread())
        self.closed.set()


class Blocking(Watched):
    blocking = True


class Waiting(Blocking):
    waits = True


@pytest.mark.parametrize("make_env", [Watched, Blocking])
def test_all_calls_of_an_env_run_in_one_thread_which_is_its_own_only_where_it_may_wait(make_env: type[Watched]) -> None:
    env = make_env()
    trajectory = play("call_once", job=parrot_job(lambda: env))
    assert (trajectory.ending, trajectory.reward) == (Ending.TERMINATED, Scored(value=0.25))
    assert len(env.threads) == 4  # begin, the tool, the answer, close
    (thread,) = set(env.threads)
    assert (thread is threading.main_thread()) == (make_env is Watched)


def test_an_env_whose_tool_outlives_the_episode_is_closed_when_the_tool_has_ended() -> None:
    env, abort = Waiting(), AbortHandle()

    async def run() -> Ending | None:
        generate = ScriptedPolicy(partial(sample, words=["one"])).generate
        job = parrot_job(lambda: env)
        work = run_program_episode(job, program_agent("call_once"), generate, sampling=Sampling(), abort=abort)
        task = asyncio.ensure_future(work)
        await asyncio.to_thread(sample_programs.ASKED.wait, 60)
        abort.abort("a straggler")
        (trajectory,) = trajectories(await task)
        assert not env.closed.is_set()
        return trajectory.ending

    assert asyncio.run(run()) is Ending.ERROR_ABORTED
    sample_programs.HELD.set()
    assert env.closed.wait(60)
    assert len(set(env.threads)) == 1  # a thread of a pool, which the end of the process waits for


class Late(Waiting):
    """Ends with its first tool, which pays 1."""

    def after_tools(self, observation: Observation) -> Reply:
        return Reply(observation=observation, reward=1.0, terminated=True)


def test_a_turn_that_ends_after_the_time_limit_neither_pays_nor_ends_the_episode() -> None:
    env = Late()
    trajectory = play("call_once", job=parrot_job(lambda: env), is_late=sample_programs.ASKED)
    assert trajectory.ending is Ending.TRUNCATED_TIME
    assert isinstance(trajectory.reward, Invalid)
    sample_programs.HELD.set()
    assert env.closed.wait(60)


def test_a_tool_that_is_called_after_the_episode_raises_and_does_not_reach_the_env() -> None:
    env = Blocking()

    async def run() -> str:
        await run_program_episode(
            parrot_job(lambda: env),
            program_agent("call_late"),
            ScriptedPolicy(partial(sample, words=["one"])).generate,
            sampling=Sampling(),
        )
        sample_programs.HELD.set()
        await asyncio.to_thread(sample_programs.ASKED.wait, 60)
        return sample_programs.LAST_TEXTS[-1]

    assert asyncio.run(run()) == "The episode is over; the model answers no more calls."
    assert len(env.threads) == 3  # begin, the answer, close


def test_a_tool_that_its_program_does_not_wait_for_is_a_turn_before_the_answer() -> None:
    env = Waiting()
    trajectory = play("leave_a_call", job=parrot_job(lambda: env))
    assert (trajectory.ending, trajectory.reward) == (Ending.TERMINATED, Scored(value=0.25))
    assert len(set(env.threads)) == 1


# ---- the turn limit of the env --------------------------------------------------------------------------------------


def script(*words: str) -> Callable[[GenerateRequest], Generation]:
    """Return a policy that says one text after the other."""
    texts = iter(words)
    return lambda request: sample(request, [next(texts)])


BUDGET = parrot_job(lambda: Parrot(max_turns=2))
TWO = f"{CALL}\n{CALL}"


def natively(*words: str) -> Trajectory:
    tree = asyncio.run(run_episode(BUDGET, char_agent(), ScriptedPolicy(script(*words)), sampling=Sampling()))
    (trajectory,) = trajectories(tree)
    return trajectory


@pytest.mark.parametrize("function", ["play_all", "play_all_in_a_coroutine"])
@pytest.mark.parametrize("words", [(TWO, "bye"), (TWO, TWO), (CALL, TWO), ("bye",)])
def test_all_calls_of_a_reply_in_one_turn_are_the_episode_of_the_agent_loop(
    function: str, words: tuple[str, ...]
) -> None:
    native, program = natively(*words), play(function, script(*words, "bye"), job=BUDGET)
    assert program.rows[0].token_ids[: len(native.rows[0].token_ids)] == native.rows[0].token_ids
    assert (program.ending, program.reward) == (native.ending, native.reward)


def test_an_answer_after_the_turn_limit_has_the_reward_of_the_agent_loop() -> None:
    native, program = natively(CALL, CALL, "bye"), play("play", script(CALL, CALL, "bye"), job=BUDGET)
    assert (program.ending, program.reward) == (native.ending, native.reward)
    assert (program.ending, program.reward) == (Ending.TRUNCATED_TURNS, Scored(value=0.0))


def test_an_answer_that_the_agent_loop_would_have_played_is_no_reward_of_zero() -> None:
    assert natively(TWO, "bye").reward == Scored(value=0.25)
    program = play("play", script(TWO, "bye"), job=BUDGET)
    assert program.ending is Ending.ERROR_ENV
    assert isinstance(program.reward, Invalid)
    assert program.reward.reason == (
        "turn of the env must be all calls of a reply, got 2 turns for 1 replies when the turn limit of the env ended "
        "the episode (parrot); use task.call_all(calls), or raise max_turns of the env."
    )
