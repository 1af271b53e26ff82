"""One tree while it grows: branches of an agent and its env, started where a strategy says, played to their ends.

A strategy decides; this runs. A branch is a task of its own that begins as soon as its place is chosen and waits for
nobody. Its random numbers derive from where it begins and which child of that place it is, so they do not depend on
timing. Whatever fails in a branch is the ending of that branch; the tree goes on.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from envgym.agents.agent import Agent
from envgym.agents.episode import Clock, EpisodeJob
from envgym.agents.events import Event, Failed, Generate, Started
from envgym.agents.loop import AgentState, advance, begin
from envgym.agents.path import Link
from envgym.agents.protocols import GenerateRequest, Policy, Sampling
from envgym.agents.search.branches import Branch, Place, Played, marked
from envgym.agents.search.budget import Budget, Purse, largest_turn
from envgym.agents.search.record import MidTurn, join
from envgym.agents.search.snapshots import Branching, Kept, Lost, Recorded, SearchEnv, Snapshot, branching_of
from envgym.agents.search.turn import link_of, play_turn
from envgym.core.endings import Ending
from envgym.core.messages import Observation
from envgym.core.tree import SearchStats, Tree
from envgym.core.turns import Cost
from envgym.errors import InfrastructureError
from envgym.records import ending_of
from envgym.seeds import derive_seed

OUT_OF_BUDGET = "the search's budget was spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who acts in the searches of one step, and how many branches may be under way."""

    agent: Agent
    policy: Policy
    sampling: Sampling
    slots: asyncio.Semaphore
    """One for each branch under way; shared by all searches."""
    clock: Clock = time.perf_counter


class Growth:
    """A tree that grows."""

    def __init__(
        self, job: EpisodeJob, crew: Crew, *, branching: Branching | None, budget: Budget, ordered: bool = True
    ) -> None:
        """Prepare a tree.

        Args:
            job: its task, seeds and id.
            crew: who acts.
            branching: how to go back to a place, of what the env allows; None: to the root
                alone, by another reset.
            budget: what may be spent.
            ordered: admit turns in an order that does not depend on timing.
        """
        settings = crew.agent.settings
        most = largest_turn(max_turn_tokens=settings.max_turn_tokens, max_context_tokens=settings.max_context_tokens)
        self.job, self.crew = job, crew
        self.purse = Purse(budget, turn=most, ordered=ordered)
        self.root: Place | None = None
        self.branches: list[Branch] = []
        """Those that began, in order."""
        self.stats: dict[Link, SearchStats] = {}
        self._branching = branching
        self._first = Observation()
        self._root_link: Link | None = None
        self._root_env: SearchEnv | None = None
        self._children: Counter[Place] = Counter()
        self._forks: dict[Link, MidTurn] = {}
        self._kept: list[Snapshot] = []

    # ---- what a strategy calls -----------------------------------------------------------------------------------

    async def begin(self) -> Place | None:
        """Reset the env and render the prompt; None where that was the end already."""
        env, crew = SearchEnv(self.job), self.crew
        async with crew.slots:
            try:
                event = await self._reset(env)
            except BaseException:
                env.abandon()
                raise
            state, request = advance(begin(crew.agent, sampling=crew.sampling, seed=self.job.sampling_seed), event)
            self._root_link = state.path
            if not isinstance(request, Generate):
                await env.close()
                return None
            self._root_env = env
            self.root = await self._place(state, request.request, env)
        return self.root

    def branch(self, start: Place, *, prefix: Played | None = None, at: int = 0) -> Branch:
        """Decide on a branch: from `start`, or behind the first `at` tokens of a turn played there.

        The first branch of a place samples with the seeds of the episode that came by, the others with their own.
        """
        child = self._children[start]
        self._children[start] += 1
        seed = start.state.seed
        if child:
            seed = derive_seed(seed, "branch", start.state.num_turns, child)
        found = Branch(number=len(self.branches), start=start, seed=seed, prefix=prefix, at=at)
        self.branches.append(found)
        self.purse.join(found.number, opening=start.snapshot.opening if start.snapshot is not None else Cost())
        return found

    async def play(self, branch: Branch, *, turns: int | None = None) -> Branch:
        """Play a branch to the end of its episode, or for so many turns. Never raises for what fails in it."""
        await self.crew.slots.acquire()
        try:
            await self._play(branch, turns)
        finally:
            self.purse.leave(branch.number)
            self.crew.slots.release()
        return branch

    def places(self) -> list[Place]:
        """Return where a branch could begin, in the order of branches and turns."""
        ends = [turn.end for branch in self.branches for turn in branch.turns]
        return [place for place in (self.root, *ends) if place is not None and place.snapshot is not None]

    def num_branches(self, place: Place) -> int:
        """Return how many branches went on from a place, the episode that came by included."""
        return self._children[place]

    @property
    def leaves(self) -> list[Branch]:
        """Branches whose episodes ended, in order."""
        return [branch for branch in self.branches if branch.is_over]

    async def close(self) -> None:
        """Let go of every env."""
        if self._root_env is not None:
            await self._root_env.close()
        for snapshot in self._kept:
            await snapshot.close()

    def tree(self) -> Tree:
        """Return the tree as it is."""
        assert self._root_link is not None, "begin comes first"
        lines = [branch.last for branch in self.branches if branch.last is not None]
        stats = marked(self.branches, self.stats, root=self._root_link)
        return join(lines or [self._root_link], self.job, forks=self._forks, stats=stats)

    # ---- playing -------------------------------------------------------------------------------------------------

    async def _play(self, branch: Branch, turns: int | None) -> None:
        if not await self._admitted(branch):
            branch.pruned = OUT_OF_BUDGET
            return
        env: SearchEnv | None = None
        place = branch.first
        try:
            try:
                env = await self._open(branch.start)
            except InfrastructureError as error:
                self._fail(branch, place, ending_of(error), str(error))
                return
            while True:
                is_last = turns is not None and len(branch.turns) + 1 >= turns
                played = await self._turn(branch, place, env, is_last=is_last)
                if played.end is None:
                    break
                if is_last:
                    env = None if isinstance(played.end.snapshot, Kept) else env  # the snapshot has it now
                    break
                place = played.end
                self._children[place] = 1
                if not await self._admitted(branch):
                    self._fail(branch, place, Ending.TRUNCATED_BUDGET, OUT_OF_BUDGET)
                    break
        except BaseException:
            if env is not None:
                env.abandon()
            raise
        if env is not None:
            await env.close()

    async def _reset(self, env: SearchEnv) -> Event:
        started = self.crew.clock()
        try:
            record = await env.reset()
        except InfrastructureError as error:
            return Failed(ending_of(error), str(error), self.crew.clock() - started)
        self._first = record.observation
        if self._branching is not None:
            self._branching = branching_of(env.made, self._branching, where=f"tree {self.job.tree_id}")
        return Started(record, self.crew.clock() - started)

    async def _admitted(self, branch: Branch) -> bool:
        return await self.purse.admit(branch.number, waiting=partial(_lent, self.crew.slots))

    async def _open(self, start: Place) -> SearchEnv:
        """Return an env at `start`; the first to come gets the one that was reset."""
        if start is self.root and self._root_env is not None:
            env, self._root_env = self._root_env, None
            return env
        assert start.snapshot is not None, "the strategy said that it comes back"
        return await start.snapshot.open()

    async def _place(
        self, state: AgentState, request: GenerateRequest, env: SearchEnv, *, moves: bool = False
    ) -> Place:
        """Return the place where `state` and `env` are; with `moves` the env itself may be kept there."""
        snapshot: Snapshot | None = None
        if self._branching is Branching.REPLAY or (self._branching is None and self.root is None):
            snapshot = Recorded.of(self.job, self._first, state.path)
        elif self._branching is not None:
            try:
                snapshot = Kept(env if moves else await env.fork())
            except InfrastructureError as error:
                snapshot = Lost(error)
            self._kept.append(snapshot)
        return Place(state, request, snapshot)

    async def _turn(self, branch: Branch, place: Place, env: SearchEnv, *, is_last: bool) -> Played:
        """Play one turn from `place`."""
        prefix, at = (branch.prefix, branch.at) if not branch.turns else (None, 0)
        turn = await play_turn(place, env, self.crew.policy, self.crew.clock, prefix, at)
        asks = turn.request
        end = None if asks is None else await self._place(turn.state, asks, env, moves=is_last)
        return self._done(branch, Played(place, turn.generation, turn.link, end, at))

    def _fail(self, branch: Branch, place: Place, ending: Ending, reason: str) -> None:
        """End a branch where it is."""
        state, _ = advance(place.state, Failed(ending, reason))
        self._done(branch, Played(place, None, link_of(state), None, branch.at if not branch.turns else 0))

    def _done(self, branch: Branch, played: Played) -> Played:
        if played.shared and branch.prefix is not None:
            elder = branch.prefix
            anew = elder.start.state.pending
            self._forks[played.link] = MidTurn(elder.link, sum(len(part) for part in anew) + branch.at)
        branch.turns.append(played)
        self.purse.settle(branch.number, played.link.edge.cost)
        return played


@asynccontextmanager
async def _lent(slots: asyncio.Semaphore) -> AsyncIterator[None]:
    """Lend a slot to another branch: it may be the one that is waited for."""
    slots.release()
    try:
        yield
    finally:
        await slots.acquire()
