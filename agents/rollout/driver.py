"""Drive episodes: the one loop that feeds events to an agent, and the one place that turns failures into endings.

A failed reset, step or generation is an episode with its `ERROR_*` ending, and so is an aborted one; a group never
loses an episode. Only a cancellation from outside, and an error of the caller's own `on_finished`, are raised; the envs
are closed even then. Search drives single turns of its branches with the same loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from envgym.agents.loop.agent import Agent
from envgym.agents.loop.prefix import as_context, check_first_context, check_replayed, recorded_generation
from envgym.agents.loop.state import (
    AgentState,
    Event,
    FailureEvent,
    Finished,
    Generate,
    GenerationEvent,
    Request,
    ResetEvent,
    StepEnv,
    StepEvent,
    advance,
    begin,
)
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy, Sampling
from envgym.agents.rollout.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.recorder import record_tree
from envgym.core.trajectory import StartState, Turn
from envgym.core.tree import Source, Tree
from envgym.core.turns import Ending
from envgym.errors import EnvFailure, InfrastructureError, InvalidInput, PolicyFailure
from envgym.records import ending_of
from envgym.runtime.error_log import log_error
from envgym.runtime.processes.log import Ids, about, is_open, log_event

GenerateFn = Callable[[GenerateRequest], Awaitable[Generation]]
"""Sends one request to the policy and returns its reply."""


# ---- the loop -------------------------------------------------------------------------------------------------------


async def drive(
    state: AgentState,
    request: Request | None,
    env: EpisodeEnv,
    *,
    generate: GenerateFn,
    clock: Clock,
    abort: AbortHandle,
    one_turn: bool = False,
) -> tuple[AgentState, Request]:
    """Feed events to an agent until its episode is over, and return its last state and request.

    Args:
        state: of the agent.
        request: what the agent waits for; None: the reset of the env.
        env: of the episode.
        generate: sends a request to the policy.
        clock: times the calls of env and policy.
        abort: ends the episode early; the caller enters it.
        one_turn: return also when the agent requests the policy's next turn.
    """
    while True:
        started = clock()
        event: Event
        try:
            if abort.reason is not None:
                event = aborted_event(abort)
            elif isinstance(request, Generate):
                event = GenerationEvent(await generate(request.request), clock() - started)
            elif isinstance(request, StepEnv):
                event = StepEvent(await env.step(request.action), clock() - started)
            else:
                event = ResetEvent(await env.reset(), clock() - started)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised again where it is no failure
            event = failure_event(error, abort, clock() - started, generates=isinstance(request, Generate))
        if is_open():
            _log(request, event)
        state, request = advance(state, event)
        if isinstance(request, Finished) or (one_turn and isinstance(request, Generate)):
            return state, request


def _log(request: Request | None, event: Event) -> None:
    match event:
        case GenerationEvent(generation, seconds):
            tokens = {"tokens": len(generation.token_ids), "prefilled": generation.num_prefilled}
            log_event("generate", seconds=seconds, **tokens, version=generation.policy_version)
        case FailureEvent(ending, reason, seconds):
            log_event("failure", ending=ending.name, reason=reason, seconds=seconds)
        case _:
            log_event("step" if isinstance(request, StepEnv) else "reset", seconds=event.seconds)


def failure_event(
    error: BaseException, abort: AbortHandle, seconds: float = 0.0, *, generates: bool = False
) -> FailureEvent:
    """Return the event by which `error` ends an episode.

    Args:
        error: what was raised.
        abort: of the episode.
        seconds: time until then.
        generates: whether the policy raised it; then it is a failure of the policy whatever its type.

    Raises: `error` itself, where it is no failure of env, policy or infrastructure, and not the abort's cancellation.
    """
    if isinstance(error, InfrastructureError):
        log_error(error, f"{error}; the reward of the episode is invalid")
        return FailureEvent(ending_of(error), str(error), seconds)
    if isinstance(error, asyncio.CancelledError) and abort.caught():
        return aborted_event(abort, seconds)
    if generates and isinstance(error, Exception):
        reason = f"generation failed: {type(error).__name__}: {error}"
        log_error(error, f"{reason}; the reward of the episode is invalid")
        return FailureEvent(Ending.ERROR_POLICY, reason, seconds)
    raise error


def aborted_event(abort: AbortHandle, seconds: float = 0.0) -> FailureEvent:
    """Return the event by which an abort ends an episode."""
    assert abort.reason is not None, "the rollout was aborted"
    return FailureEvent(Ending.ERROR_ABORTED, abort.reason, seconds)


@asynccontextmanager
async def closing_env(env: EpisodeEnv, abort: AbortHandle) -> AsyncIterator[None]:
    """Close `env`, whose episode `abort` belongs to, at the end of a block; without waiting after an error."""
    try:
        yield
    except BaseException:
        env.abandon()
        raise
    await close_env(env, abort)


async def close_env(env: EpisodeEnv, abort: AbortHandle) -> None:
    """Close `env`; without waiting after an abort, when its thread may still be busy."""
    if abort.reason is not None:
        env.abandon()
    else:
        await env.close()


async def drive_episode(
    env: EpisodeEnv,
    agent: Agent,
    *,
    sampling: Sampling,
    generate: GenerateFn,
    clock: Clock,
    abort: AbortHandle | None,
) -> Tree:
    """Drive a whole episode from its reset, close its env, and return it as a tree with one leaf."""
    abort = abort or AbortHandle()
    state = begin_agent(agent, env.job, sampling=sampling)
    async with closing_env(env, abort):
        with abort, about(Ids(env.job.tree_id, 0)):
            request: Request | None = None
            if env.job.start is not None:
                state, request = await drive_to_start(state, env, env.job.start, clock=clock, abort=abort)
            if not isinstance(request, Finished):
                state, _ = await drive(state, request, env, generate=generate, clock=clock, abort=abort)
    assert state.path is not None, "a finished episode has a leaf"
    return record_tree((state.path,), env.job, setup=state.episode)


def begin_agent(agent: Agent, job: EpisodeJob, *, sampling: Sampling) -> AgentState:
    """Return the state of an agent before an episode."""
    return begin(agent, sampling=sampling, seed=job.sampling_seed, hint=job.hint, other_hints=job.prompts)


async def drive_to_start(
    state: AgentState, env: EpisodeEnv, start: StartState, *, clock: Clock, abort: AbortHandle
) -> tuple[AgentState, Request]:
    """Bring an agent and its env to a recorded state by the recorded turns, and return its state and request there.

    The turns' tokens are context. Where the env's replies, or the agent's contexts, are not those of the record, the
    episode is over, with the ending `ERROR_ENV`.
    """
    state, request = await drive(state, None, env, generate=_no_generation, clock=clock, abort=abort, one_turn=True)
    for turn in start.turns:
        if isinstance(request, Finished):
            break
        generate = partial(_repeat, turn=turn, agent=state.episode.agent)
        try:
            if turn.index == 0:
                check_first_context(start, state.episode.prompts, state.context)
            again, following = await drive(
                state, request, env, generate=generate, clock=clock, abort=abort, one_turn=True
            )
            assert again.path is not None, "a turn was driven"
            if not (isinstance(following, Finished) and following.ending.is_error):
                check_replayed(turn, again.path, where=f"start state in tree {start.tree.id}")
            state, request = again, following
        except EnvFailure as error:
            state, request = advance(state, failure_event(error, abort))
    assert state.path is not None, "the prompt was rendered"
    return state._replace(path=as_context(state.path, start.tree.source)), request


async def _repeat(request: GenerateRequest, *, turn: Turn, agent: Agent) -> Generation:
    return recorded_generation(turn, agent)


async def _no_generation(request: GenerateRequest) -> Generation:
    raise AssertionError("an episode begins with a reset")


# ---- episodes of tokens ---------------------------------------------------------------------------------------------


async def run_episode(
    job: EpisodeJob,
    agent: Agent,
    policy: Policy,
    *,
    sampling: Sampling,
    clock: Clock = time.perf_counter,
    abort: AbortHandle | None = None,
) -> Tree:
    """Run one episode and return it as a tree with one leaf.

    Args:
        job: the episode.
        agent: how the policy acts; its `max_turn_tokens` replaces `sampling.max_new_tokens`.
        policy: samples the turns.
        sampling: temperature, top-p, top-k and further stop tokens.
        clock: times the calls of env and policy.
        abort: by which the episode can be aborted.
    """
    env = EpisodeEnv(job)
    return await drive_episode(env, agent, sampling=sampling, generate=policy.generate, clock=clock, abort=abort)


async def run_oracle_episode(job: EpisodeJob, agent: Agent, *, clock: Clock = time.perf_counter) -> Tree:
    """Run one episode in which the env's oracle acts, in the tokens that the policy would have to sample.

    Its tokens are POLICY with log-prob 0.0 and version 0, so that a warm start can train on them.
    """
    env = EpisodeEnv(job)

    async def generate(request: GenerateRequest) -> Generation:
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

    tree = await drive_episode(env, agent, sampling=Sampling(), generate=generate, clock=clock, abort=None)
    return replace(tree, source=Source.DEMONSTRATION)
