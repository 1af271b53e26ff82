"""The env of a program's episode: the thread of its calls, its closing, and what counts after a limit."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from envgym import Action, Reply, Scored, Task, tool
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.episode import run_program_episode
from envgym.core.trajectory import trajectories
from envgym.core.turns import Ending
from tests.agents.rollout.programs import sample_programs
from tests.agents.rollout.programs.playing import play, program_agent, sample
from tests.support.parrots import Parrot, parrot_job


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
    trajectory = play("look", job=parrot_job(lambda: env))
    assert (trajectory.ending, trajectory.reward) == (Ending.TERMINATED, Scored(value=0.25))
    assert len(env.threads) == 4  # begin, the tool, the answer, close
    (thread,) = set(env.threads)
    assert (thread is threading.main_thread()) == (make_env is Watched)


def test_an_env_whose_tool_outlives_the_episode_is_closed_when_the_tool_has_ended() -> None:
    env, abort = Waiting(), AbortHandle()

    async def run() -> Ending | None:
        generate = ScriptedPolicy(partial(sample, words=["one"])).generate
        job = parrot_job(lambda: env)
        work = run_program_episode(job, program_agent("look"), generate, sampling=Sampling(), abort=abort)
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


def test_a_tool_that_its_program_does_not_wait_for_is_a_turn_before_the_answer() -> None:
    env = Waiting()
    trajectory = play("leave_a_call", job=parrot_job(lambda: env))
    assert (trajectory.ending, trajectory.reward) == (Ending.TERMINATED, Scored(value=0.25))
    assert len(set(env.threads)) == 1
