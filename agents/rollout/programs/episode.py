"""Episodes that an agent program plays: the env gives task, tools and reward, the program calls the policy."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from envgym.agents.loop.agent import Agent
from envgym.agents.loop.hints import token_ids
from envgym.agents.loop.program_settings import POLICY_MODEL, ProgramSettings, RewardSource
from envgym.agents.loop.state import FailureEvent
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.driver import GenerateFn, aborted_event, close_env, failure_event
from envgym.agents.rollout.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.calls import Call
from envgym.agents.rollout.programs.conversations import Conversations
from envgym.agents.rollout.programs.dialects.base import CallDialect
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.dialects.messages import MessagesDialect
from envgym.agents.rollout.programs.dialects.responses import ResponsesDialect
from envgym.agents.rollout.programs.endings import ProgramFacts, annotate_run, conclude
from envgym.agents.rollout.programs.env_tools import MCP_PATH, EnvTools, ToolReply
from envgym.agents.rollout.programs.host import shared_host
from envgym.agents.rollout.programs.layout import build_path
from envgym.agents.rollout.programs.runner import (
    AgentProgram,
    ProgramEnd,
    ProgramRun,
    load_program,
    no_call_error,
    run_program,
)
from envgym.agents.rollout.programs.sessions import CLOSED, CallFailed, ProgramSession
from envgym.agents.rollout.programs.task import ProgramTask, TaskLinks
from envgym.agents.rollout.recorder import record_tree
from envgym.core.json_types import visible
from envgym.core.messages import Action, Observation, Role, ToolCall
from envgym.core.tree import Tree
from envgym.core.turns import ZERO, Ending, Invalid, Reward
from envgym.errors import InvalidInput, PolicyFailure, sentence
from envgym.played import EpisodeOver, Opening, PlayedEpisode, PlayedTurn, call_action
from envgym.runtime.processes.log import Ids, about
from envgym.seeds import derive_seed

_log = logging.getLogger(__name__)
DIALECTS: Final[Mapping[str, Callable[[], CallDialect]]] = {
    "chat": ChatDialect,
    "responses": ResponsesDialect,
    "messages": MessagesDialect,
}
"""Name in `agent.program.dialects` -> makes the wire format."""


_programs: dict[str | tuple[str, ...], AgentProgram] = {}
"""Programs of the runs of this process, by `agent.program.run`."""


def reload_program(run: str | tuple[str, ...]) -> AgentProgram:
    """Load a program as it is now, for the episodes that follow. Raises: as `load_program`."""
    program = _programs[run] = load_program(run)
    return program


async def run_program_episode(
    job: EpisodeJob,
    agent: Agent,
    generate: GenerateFn,
    *,
    sampling: Sampling,
    clock: Clock = time.perf_counter,
    abort: AbortHandle | None = None,
) -> Tree:
    """Run one episode of the program that the agent's settings name, as a tree with one leaf.

    Args:
        job: the episode; a program takes no hint and no start state.
        agent: renders the messages of the program, and has the section `program`.
        generate: sends a request to the policy.
        sampling: of every call.
        clock: times the calls of the policy.
        abort: by which the episode can be aborted.

    Raises: InvalidInput: the job has a hint, another prompt, or a start state; or there is no such program.
    """
    settings = agent.settings.program
    assert settings is not None, "the agent has a program"
    _check(job)
    episode = _ProgramEpisode(job, agent, settings, sampling, abort or AbortHandle())
    with about(Ids(job.tree_id, 0)):
        program = _programs.get(settings.run) or reload_program(settings.run)
        return await episode.run(program, generate, clock)


def _check(job: EpisodeJob) -> None:
    """Refuse what changes the prompt. Raises: InvalidInput: as above."""
    parts = {"hint": job.hint, "prompts": job.prompts, "start state": job.start}
    for name, value in parts.items():
        do = "use a curriculum and an allocator without it, or leave agent.program out"
        must = "be left out for a program, which writes its own messages"
        InvalidInput.unless(not value, name, must, "one", where=job.tree_id, do=do)


@dataclass(slots=True)
class _ProgramEpisode:
    """One episode under way."""

    job: EpisodeJob
    agent: Agent
    settings: ProgramSettings
    sampling: Sampling
    abort: AbortHandle
    conversations: Conversations = field(init=False)
    env: EpisodeEnv = field(init=False)
    played: PlayedEpisode = field(init=False)
    """Made when the env is; it is called by `env` alone."""
    env_end: PlayedTurn | None = None
    """The turn of the env that ended its episode."""
    num_env_turns: int = 0
    replies_played: set[int] = field(default_factory=set)
    """Numbers of replies after which the program played a turn of the env."""
    failure: FailureEvent | None = None
    session: ProgramSession | None = None
    no_call: str = ""
    is_answered: bool = False

    def __post_init__(self) -> None:
        self.env = EpisodeEnv(self.job)
        self.conversations = Conversations(
            self.agent,
            sampling=self.sampling,
            seed=self.job.sampling_seed,
            task=self.job.task,
            max_turns=self.settings.turns,
            compares_thinking=self.settings.thinking_match == "compare",
        )

    async def run(self, program: AgentProgram, generate: GenerateFn, clock: Clock) -> Tree:
        run, is_env_idle = ProgramRun(end=ProgramEnd.CRASHED), False
        try:
            if self.abort.reason is None:
                with self.abort:
                    run = await self._play(program, generate, clock)
                is_env_idle = run.end in (ProgramEnd.RETURNED, ProgramEnd.CRASHED)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised again if it is no failure
            self.failure = failure_event(error, self.abort)
        finally:
            self.conversations.close()
            if not is_env_idle:  # a tool may still run
                self.env.abandon()
        if is_env_idle:
            await close_env(self.env, self.abort)
        if self.abort.reason is not None:
            self.failure = aborted_event(self.abort)
        return self._record(run)

    async def _play(self, program: AgentProgram, generate: GenerateFn, clock: Clock) -> ProgramRun:
        opening = await self._open_env()
        takes_reward = self.settings.reward is RewardSource.POSTED
        self.session = ProgramSession(
            self.conversations, generate, clock=clock, count_tokens=self._count_tokens, takes_reward=takes_reward
        )
        run = await self._run_program(program, opening, self.session)
        if self.settings.reward is RewardSource.ENV and run.result.answer is not None:
            self.is_answered = isinstance(await self._act(Action(run.result.answer)), PlayedTurn)
        return run

    async def _run_program(self, program: AgentProgram, opening: Opening, session: ProgramSession) -> ProgramRun:
        settings = self.settings
        dialects = [DIALECTS[name]() for name in settings.dialects]
        refuses = settings.unsupported == "refuse"
        async with shared_host(dialects, refuses=refuses, auxiliary=settings.auxiliary) as host:
            host.begin(session)
            try:
                task = self._task(opening, session, host.url_of(session))
                self.no_call = no_call_error(task)
                return await run_program(program, task, session, seconds=settings.seconds)
            finally:
                await host.end(session)

    def _task(self, opening: Opening, session: ProgramSession, url: str) -> ProgramTask:
        users = (message.content for message in opening.messages if message.role is Role.USER)
        ways = self.settings.env_tools if opening.tools else ()
        session.env_tools = EnvTools(opening.tools, self._call_tools) if "mcp" in ways else None
        links = TaskLinks(
            session=session,
            loop=asyncio.get_running_loop(),
            call_tools=self._call_tools if "call" in ways else None,
            mcp_url=url + MCP_PATH if "mcp" in ways else None,
        )
        return ProgramTask(
            id=self.job.task.id,
            prompt="\n".join(users),
            messages=opening.messages,
            tools=opening.tools if ways else (),
            root_url=url,
            api_key=session.secret,
            model=POLICY_MODEL,
            seed=derive_seed(self.job.sampling_seed, "program"),
            links=links,
        )

    def _count_tokens(self, call: Call) -> int | None:
        try:
            return len(token_ids(self.agent.start(call.messages, call.tools).segments)) or None
        except PolicyFailure:
            return None

    # ---- the env -----------------------------------------------------------------------------------------------------

    async def _open_env(self) -> Opening:
        """Make and reset the env. Raises: InfrastructureError: it failed."""
        self.played = PlayedEpisode(self.env.make())
        return await self.env.call("reset", self.played.open, seed=self.job.seed, task=self.job.task)

    async def _call_tools(self, calls: Sequence[ToolCall]) -> ToolReply:
        """Play calls of the program as one turn of the env.

        Raises: CallFailed: the episode is over. InvalidInput: the arguments of a call have no form in JSON.
        """
        turn = asyncio.ensure_future(self._act(call_action(calls)))
        played = await asyncio.shield(turn)  # a program that leaves does not undo the turn
        if isinstance(played, EpisodeOver):
            return ToolReply(Observation(str(played)), is_error=True)
        return ToolReply(played.observation, played.tool_errors > 0 or isinstance(played.reward, Invalid))

    async def _act(self, action: Action) -> PlayedTurn | EpisodeOver:
        """Play a turn of the env and pay what it gives, unless it ends after the episode.

        Raises: CallFailed: the episode is over.
        """
        if self.conversations.is_closed:
            raise CallFailed(CLOSED.reason, kind=CLOSED.kind)
        reply = len(self.conversations.turns)
        turn = await self.env.call("step", _turn_or_end, self.played, action)
        if isinstance(turn, PlayedTurn) and not self.conversations.is_closed:
            self.num_env_turns += 1
            self.replies_played.add(reply)
            if turn.ending is not None:
                self.env_end = turn
            if self.settings.reward is RewardSource.ENV:
                self.conversations.pay(turn.reward)
        return turn

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _record(self, run: ProgramRun) -> Tree:
        conversations = self.conversations
        if conversations.difference is not None:
            _warn_of_rows(str(self.settings.run), conversations.difference)
        end = conclude(self._facts(run), self.settings)
        if end.replaces:
            conversations.rewards.clear()
        if end.reward is not None:
            conversations.pay(end.reward)
        cost, ignored = conversations.spent.cost, 0
        if self.session is not None:
            cost, ignored = cost + self.session.auxiliary_cost, self.session.counts.ignored_options.total()
        path = build_path(conversations.turns, conversations.rewards, end.ending, end.error, cost)
        tree = record_tree((path.leaf,), self.job, setup=path.setup)
        return annotate_run(tree, is_crash=end.is_crash, num_ignored_options=ignored)

    def _facts(self, run: ProgramRun) -> ProgramFacts:
        conversations, session, source = self.conversations, self.session, self.settings.reward
        failure, env_ending = self.failure or conversations.failure, None
        reward: Reward | None = None
        if source is RewardSource.RESULT:
            reward = run.result.reward
        elif source is RewardSource.POSTED and session is not None:
            reward = session.reward
        if self.env_end is not None and self.env_end.ending is not None:
            env_ending = self.env_end.ending
            if failure is None and env_ending.is_error:
                failure = FailureEvent(env_ending, self.env_end.error or env_ending.value)
            elif failure is None and source is RewardSource.ENV and run.end is not ProgramEnd.CRASHED:
                failure = self._early_end(env_ending)
        if source is RewardSource.ENV and (self.is_answered or env_ending is not None):
            reward = ZERO
        return ProgramFacts(
            run=run,
            failure=failure,
            num_turns=len(conversations.turns),
            no_call=self.no_call,
            has_called=session is not None and session.counts.delivered + session.counts.dropped > 0,
            is_at_limit=session is not None and session.at_limit.is_set(),
            is_full=conversations.is_full,
            env_ending=env_ending if source is RewardSource.ENV else None,
            reward=reward,
        )

    def _early_end(self, env_ending: Ending) -> FailureEvent | None:
        """Return why an episode that the env's turn limit has ended has no reward; None: it has one.

        In the agent loop all calls of a reply are one turn. If some took several, the loop would have gone on.
        """
        num_turns, num_replies = self.num_env_turns, len(self.replies_played)
        if env_ending is not Ending.TRUNCATED_TURNS or num_turns == num_replies:
            return None
        got = f"{num_turns} turns for {num_replies} replies when the turn limit of the env ended the episode"
        must, do = "be all calls of a reply", "use task.call_all(calls), or raise max_turns of the env"
        return FailureEvent(Ending.ERROR_ENV, sentence("turn of the env", must, got, where=self.job.env_id, do=do))


_warned: set[str] = set()
"""Programs that were warned of."""


def _warn_of_rows(run: str, difference: str) -> None:
    """Log, once for each program, that it changes what the model wrote, which costs rows."""
    if run not in _warned:
        _warned.add(run)
        text = "program %s changes the replies of the model in its history, so that each begins a row of its own: %s"
        _log.warning(text, visible(run), visible(difference))


def _turn_or_end(played: PlayedEpisode, action: Action) -> PlayedTurn | EpisodeOver:
    try:
        return played.act(action)
    except EpisodeOver as over:
        return over
