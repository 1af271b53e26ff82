"""Drive episodes: many at a time over one policy, or one of the env's own oracle. An episode never raises.

A failed reset, step or generation is an episode with its `ERROR_*` ending; a group never loses a member. Only a
cancellation, and an error of the caller's own `on_finished`, leave through here; the envs are closed even then.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext

from envgym.agents.agent import Agent
from envgym.agents.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.events import Event, Failed, Finished, Generate, Generated, Started, StepEnv, Stepped
from envgym.agents.loop import AgentState, advance, begin
from envgym.agents.path import tree_of
from envgym.agents.pool import Abort, run_pool
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy, Sampling
from envgym.core.endings import Ending
from envgym.core.tree import Tree
from envgym.errors import InfrastructureError, InvalidInput, PolicyFailure
from envgym.records import ending_of

__all__ = ["Clock", "EpisodeJob", "run_episode", "run_episodes", "run_oracle_episode"]

_Answer = Callable[[GenerateRequest, EpisodeEnv], Awaitable[Generation]]


async def run_episode(
    job: EpisodeJob,
    agent: Agent,
    policy: Policy,
    *,
    sampling: Sampling,
    clock: Clock = time.perf_counter,
    abort: Abort | None = None,
) -> Tree:
    """Run one episode and return it as a tree with one leaf.

    Args:
        job: what to run.
        agent: how the policy acts; its `max_turn_tokens` replaces `sampling.max_new_tokens`.
        policy: who acts.
        sampling: temperature, top-p, top-k and further stop tokens.
        clock: times the calls of env and policy.
        abort: by which the episode can be given up.
    """
    return await _run(job, agent, _asking(policy), sampling, clock, abort)


async def run_oracle_episode(job: EpisodeJob, agent: Agent, *, clock: Clock = time.perf_counter) -> Tree:
    """Run one episode in which the env's oracle speaks, in the tokens that the policy would have to sample.

    Its tokens are POLICY with log-prob 0.0 and version 0, so that a warm start can train on them.
    """

    async def answer(request: GenerateRequest, env: EpisodeEnv) -> Generation:
        del request
        action = await env.oracle()
        try:
            token_ids = agent.renderer.encode_action(action)
        except InvalidInput as error:
            raise PolicyFailure(f"the oracle's action cannot be written: {error}") from error
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=(0.0,) * len(token_ids),
            raw_logprobs=None,
            finish_reason=FinishReason.STOP,
            policy_version=0,
        )

    return await _run(job, agent, answer, Sampling(), clock)


async def run_episodes(
    jobs: Sequence[EpisodeJob],
    agent: Agent,
    policy: Policy,
    *,
    sampling: Sampling,
    concurrency: int,
    on_finished: Callable[[Tree], None] | None = None,
    lock_step: bool = False,
    clock: Clock = time.perf_counter,
) -> list[Tree]:
    """Run all jobs and return their trees in the order of the jobs.

    Args:
        jobs: what to run.
        agent: how the policy acts; its `max_turn_tokens` replaces `sampling.max_new_tokens`.
        policy: who acts.
        sampling: temperature, top-p, top-k and further stop tokens.
        concurrency: episodes under way at a time, at least 1.
        on_finished: called with every tree as its episode ends; what it raises ends the run.
        lock_step: let the policy be asked only when every episode under way has its next question. A policy that
            batches what waits then sees the same batches in every run, also where envs answer from threads.
        clock: times the calls of env and policy.
    """
    gate = _Gate(min(concurrency, len(jobs))) if lock_step else None
    answer = _asking(policy) if gate is None else gate.before(_asking(policy))
    return await run_pool(
        jobs,
        lambda job: _run(job, agent, answer, sampling, clock),
        concurrency=concurrency,
        on_finished=on_finished,
        on_idle=None if gate is None else gate.leave,
    )


async def _run(
    job: EpisodeJob, agent: Agent, answer: _Answer, sampling: Sampling, clock: Clock, abort: Abort | None = None
) -> Tree:
    env = EpisodeEnv(job)
    state = begin(agent, sampling=sampling, seed=job.sampling_seed)
    try:
        with nullcontext() if abort is None else abort.watched():
            state = await _play(state, env, answer, clock, abort)
    except BaseException:
        env.abandon()
        raise
    if abort is not None and abort.reason is not None:
        env.abandon()  # its thread may still be busy with what was given up
    else:
        await env.close()
    assert state.path is not None, "a finished episode has a leaf"
    return tree_of((state.path,), id=job.tree_id, env_id=job.env_id, task=job.task, seed=job.seed)


async def _play(
    state: AgentState, env: EpisodeEnv, answer: _Answer, clock: Clock, abort: Abort | None = None
) -> AgentState:
    """Feed events until the agent is finished."""
    request: Generate | StepEnv | Finished | None = None
    while not isinstance(request, Finished):
        started = clock()
        event: Event
        try:
            if abort is not None and abort.reason is not None:
                event = Failed(Ending.ERROR_ABORTED, abort.reason)
            elif request is None:
                event = Started(await env.reset(), clock() - started)
            elif isinstance(request, Generate):
                event = Generated(await answer(request.request, env), clock() - started)
            else:
                event = Stepped(await env.step(request.action), clock() - started)
        except InfrastructureError as error:
            event = Failed(ending_of(error), str(error), clock() - started)
        except asyncio.CancelledError:
            if abort is None or not abort.caught():
                raise
            event = Failed(Ending.ERROR_ABORTED, abort.reason or "", clock() - started)
        state, request = advance(state, event)
    return state


def _asking(policy: Policy) -> _Answer:
    """Return what asks `policy`; whatever it raises is a PolicyFailure."""

    async def answer(request: GenerateRequest, env: EpisodeEnv) -> Generation:
        del env
        try:
            return await policy.generate(request)
        except PolicyFailure:
            raise
        except Exception as error:
            raise PolicyFailure(f"generation failed: {type(error).__name__}: {error}") from error

    return answer


class _Gate:
    """Holds questions back until every episode under way has one."""

    def __init__(self, num_members: int) -> None:
        self._num_members = num_members
        self._waiting: list[asyncio.Future[None]] = []

    def before(self, answer: _Answer) -> _Answer:
        """Return `answer` behind the gate."""

        async def held(request: GenerateRequest, env: EpisodeEnv) -> Generation:
            loop = asyncio.get_running_loop()
            arrived: asyncio.Future[None] = loop.create_future()
            self._waiting.append(arrived)
            loop.call_soon(self._open)  # not at once: then the last to arrive would ask before the others
            await arrived
            return await answer(request, env)

        return held

    def leave(self) -> None:
        """Take a worker out that has no more episodes."""
        self._num_members -= 1
        asyncio.get_running_loop().call_soon(self._open)

    def _open(self) -> None:
        if len(self._waiting) >= self._num_members:
            # All are woken in one go, so nothing comes between their questions.
            for arrived in self._waiting:
                if not arrived.done():
                    arrived.set_result(None)
            self._waiting.clear()
