"""One search tree while it grows: branches begin where a strategy decides, and run to their ends.

A strategy decides; the tree runs. A branch begins as soon as it is decided on, and waits for no other. Its random
numbers derive from where it begins and how many branches began there before, so they do not depend on timing. A failure
in a branch, and an abort, is the ending of that branch; the tree goes on.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from envgym.agents.loop.agent import Agent
from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import AgentState, EpisodeSetup, FailureEvent, Generate, Request, advance
from envgym.agents.protocols import GenerateRequest, Generation, Policy, Sampling
from envgym.agents.rollout.driver import (
    aborted_event,
    begin_agent,
    close_env,
    closing_env,
    drive,
    drive_to_start,
    failure_event,
)
from envgym.agents.rollout.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.recorder import record_tree
from envgym.agents.search.branches import Branch, SearchState, SharedPrefix, TurnRecord, node_statistics
from envgym.agents.search.budget import BudgetTracker, SearchBudget, largest_turn_cost
from envgym.agents.search.snapshots import Branching, SnapshotStore
from envgym.core.tree import SearchStats, Tree
from envgym.core.turns import Cost, Ending
from envgym.errors import InfrastructureError
from envgym.runtime.processes.log import Ids, about
from envgym.seeds import derive_seed

T = TypeVar("T")

OUT_OF_BUDGET = "the search's budget was spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """The agent and policy of a step's rollouts, and how many branches may be under way."""

    agent: Agent
    policy: Policy
    sampling: Sampling
    slots: asyncio.Semaphore
    """One for each branch under way; shared by all trees."""
    clock: Clock = time.perf_counter

    @asynccontextmanager
    async def hold_slot(self, abort: AbortHandle) -> AsyncIterator[None]:
        """Hold a slot for a branch; an aborted one needs none."""
        is_held = False
        if abort.reason is None:
            try:
                with abort:
                    is_held = await self.slots.acquire()
            except asyncio.CancelledError:
                if not abort.caught():
                    raise
        try:
            yield
        finally:
            if is_held:
                self.slots.release()

    @asynccontextmanager
    async def lend_slot(self) -> AsyncIterator[None]:
        """Lend the slot that is held to another branch: it may be the one that is waited for."""
        self.slots.release()
        try:
            yield
        finally:
            await self.slots.acquire()

    async def run_turn(
        self,
        agent: AgentState,
        request: Request | None,
        env: EpisodeEnv,
        abort: AbortHandle,
        prefix: SharedPrefix | None = None,
    ) -> tuple[AgentState, Request, Generation | None]:
        """Drive an agent from its request, or from the reset, up to the next turn or to the end of its episode.

        Returns the agent, what it requests next, and what was sampled, with the tokens of `prefix` before it.
        """
        sampled: list[Generation] = []

        async def generate(request: GenerateRequest) -> Generation:
            if prefix is None:
                sampled.append(await self.policy.generate(request))
            else:
                sampled.append(prefix.join_generation(await self.policy.generate(prefix.continue_request(request))))
            return sampled[0]

        agent, following = await drive(
            agent, request, env, generate=generate, clock=self.clock, abort=abort, one_turn=True
        )
        return agent, following, sampled[0] if sampled else None


class SearchTree:
    """A tree that grows."""

    def __init__(
        self,
        job: EpisodeJob,
        context: RolloutContext,
        *,
        branching: Branching | None,
        budget: SearchBudget,
        ordered: bool = True,
        abort: AbortHandle | None = None,
        budget_ending: Ending = Ending.TRUNCATED_BUDGET,
    ) -> None:
        """Prepare a tree.

        Args:
            job: its task, seeds and id.
            context: agent, policy and slots.
            branching: how an env goes back to a state, if the env allows it; None: to the root alone, by a reset.
            budget: most that may be spent.
            ordered: admit turns in an order that does not depend on timing.
            abort: by which all branches under way can be aborted.
            budget_ending: how an episode ends that the budget does not let go on.
        """
        self.job, self.context = job, context
        self.tracker = BudgetTracker(budget, largest_turn=largest_turn_cost(context.agent.settings), ordered=ordered)
        self.root: SearchState | None = None
        self.branches: list[Branch] = []
        """Those that were begun, in order."""
        self.stats: dict[PathNode, SearchStats] = {}
        self.shortfall: str | None = None
        """Why there are fewer leaves than the group asked for."""
        self._abort, self._budget_ending = abort or AbortHandle(), budget_ending
        self._snapshots = SnapshotStore(branching, self._abort)
        self._first_node: PathNode | None = None  # the root, or the last node of a prefix that was replayed
        self._setup: EpisodeSetup | None = None
        self._root_env: EpisodeEnv | None = None
        self._num_branches: Counter[SearchState | None] = Counter()

    # ---- what a strategy calls -----------------------------------------------------------------------------------

    async def begin(self) -> SearchState | None:
        """Reset the env, render the prompt and replay the job's prefix; None: the episode ended with that."""
        context, env = self.context, EpisodeEnv(self.job)
        agent, start = begin_agent(context.agent, self.job, sampling=context.sampling), self.job.start
        async with context.hold_slot(self._abort), closing_env(env, self._abort):
            with self._abort, about(Ids(self.job.tree_id)):
                request: Request
                if start is None:
                    agent, request, _ = await context.run_turn(agent, None, env, self._abort)
                else:
                    agent, request = await drive_to_start(agent, env, start, clock=context.clock, abort=self._abort)
                self._first_node, self._setup = agent.path, agent.episode
                if isinstance(request, Generate):
                    self._snapshots.resolve(env)
                    self.root = await self._search_state(agent, request.request, env)
                    self._root_env = env.move()
        return self.root

    def add_branch(self, start: SearchState, *, prefix: SharedPrefix | None = None) -> Branch:
        """Decide on a branch: from `start`, or after the first tokens of a turn from there.

        The first branch of a state samples with the seeds of the episode that reached it, the others with their own.
        """
        child = self._num_branches[start]
        self._num_branches[start] += 1
        seed = start.agent.episode.seed
        if child:
            seed = derive_seed(seed, "branch", start.agent.num_turns, child)
        branch = Branch(number=len(self.branches), start=start, seed=seed, prefix=prefix)
        self.branches.append(branch)
        replay = start.snapshot.cost if start.snapshot is not None else Cost()
        self.tracker.add_branch(branch.number, replay=replay)
        return branch

    async def run(self, branch: Branch, *, num_turns: int | None = None) -> Branch:
        """Run a branch to the end of its episode, or for so many turns. Failures in it are its ending."""
        try:
            async with self.context.hold_slot(self._abort):
                env = await self._guard(branch, self._start(branch))
                if env is not None:
                    async with closing_env(env, self._abort):
                        await self._guard(branch, self._run_turns(branch, env, num_turns))
        finally:
            self.tracker.end_branch(branch.number)
        return branch

    @property
    def states(self) -> list[SearchState]:
        """Where a branch can begin, in the order of branches and turns."""
        ends = [turn.end for branch in self.branches for turn in branch.turns]
        return [state for state in (self.root, *ends) if state is not None and state.snapshot is not None]

    def num_branches(self, state: SearchState | None) -> int:
        """Return how many branches continue from a state, the episode that reached it included; from None no one."""
        return self._num_branches[state]

    @property
    def finished_branches(self) -> list[Branch]:
        """Branches whose episodes ended, in order."""
        return [branch for branch in self.branches if branch.is_finished]

    @property
    def kept_branches(self) -> list[Branch]:
        """Finished branches that were not pruned, in order."""
        return [branch for branch in self.finished_branches if branch.pruned is None]

    @property
    def is_stopped(self) -> bool:
        """True where no further turn can start: the budget is spent, or the tree was aborted."""
        return self.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Why no further turn can start; None where one can."""
        return OUT_OF_BUDGET if self._abort.reason is None and self.tracker.is_exhausted else self._abort.reason

    async def close(self) -> None:
        if self._root_env is not None:
            await close_env(self._root_env, self._abort)
        await self._snapshots.close()

    def record(self) -> Tree:
        assert self._first_node is not None, "begin comes first"
        leaves = [branch.last_node for branch in self.branches if branch.last_node is not None]
        stats = node_statistics(self.branches, self.stats, root=self._first_node.path()[0], shortfall=self.shortfall)
        forks = {branch.turns[0].node: branch.prefix.fork for branch in self.branches if branch.prefix and branch.turns}
        return record_tree(leaves or [self._first_node], self.job, forks=forks, stats=stats, setup=self._setup)

    # ---- running a branch ----------------------------------------------------------------------------------------

    async def _guard(self, branch: Branch, work: Awaitable[T]) -> T | None:
        """Await `work` on a branch; return None where a failure or an abort ended the branch."""
        try:
            with self._abort, about(Ids(self.job.tree_id, branch.number)):
                return await work
        except (InfrastructureError, asyncio.CancelledError) as error:
            self._end(branch, failure_event(error, self._abort))
            return None

    async def _start(self, branch: Branch) -> EpisodeEnv | None:
        """Return an env at the start of a branch; None where the branch ends before its first turn."""
        if self._abort.reason is not None:
            self._end(branch, aborted_event(self._abort))
            return None
        if not await self._is_admitted(branch):
            branch.pruned = OUT_OF_BUDGET
            return None
        if branch.start is self.root and self._root_env is not None:
            env, self._root_env = self._root_env, None  # the first branch of the root gets the env that was reset
            return env
        snapshot = branch.start.snapshot
        assert snapshot is not None, "branches begin at states with a snapshot"
        branch.replay_cost = snapshot.cost
        return await snapshot.open()

    async def _run_turns(self, branch: Branch, env: EpisodeEnv, num_turns: int | None) -> None:
        while True:
            is_last = num_turns is not None and len(branch.turns) + 1 >= num_turns
            turn = await self._run_turn(branch, env, is_last=is_last)
            if turn.end is None or is_last:
                return
            self._num_branches[turn.end] = 1
            if not await self._is_admitted(branch):
                self._end(branch, FailureEvent(self._budget_ending, OUT_OF_BUDGET))
                return

    async def _is_admitted(self, branch: Branch) -> bool:
        return await self.tracker.admit(branch.number, waiting=self.context.lend_slot)

    async def _run_turn(self, branch: Branch, env: EpisodeEnv, *, is_last: bool) -> TurnRecord:
        prefix, (agent, request) = branch.next_prefix, branch.next_turn()
        agent, following, generation = await self.context.run_turn(agent, Generate(request), env, self._abort, prefix)
        if prefix is not None and generation is not None:
            agent = prefix.subtract_cost(agent)
        end = None
        if isinstance(following, Generate):
            end = await self._search_state(agent, following.request, env, moves_env=is_last)
        turn = branch.add_turn(generation, agent, end)
        self.tracker.add_turn(branch.number, turn.node.edge.cost)
        return turn

    async def _search_state(
        self, agent: AgentState, request: GenerateRequest, env: EpisodeEnv, *, moves_env: bool = False
    ) -> SearchState:
        """Return the state that `agent` and `env` are in; with `moves_env` the snapshot keeps the env itself."""
        assert agent.path is not None, "the prompt was rendered"
        return SearchState(agent, request, await self._snapshots.take(env, agent.path, moves_env=moves_env))

    def _end(self, branch: Branch, failure: FailureEvent) -> None:
        agent, _ = advance(branch.next_turn()[0], failure)
        turn = branch.add_turn(None, agent, None)
        self.tracker.add_turn(branch.number, turn.node.edge.cost)
