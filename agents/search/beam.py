"""`beam`: go on from the best states of each turn, as a `ValueFn` judges them. Source: 2408.03314.

At every turn `width` continuations are sampled, as equal a share from each state of the beam as can be; the `keep` best
of them are the next beam. An episode that ends among the best keeps its place: there is so much less to sample and to
keep from then on. A beam is over when all that it keeps have ended. For test time alone: a group of leaves that were
kept by their values would be biased. The first continuation is run alone and to the end of its episode, so that there
is an answer whatever the budget; its later turns are no part of the beam. The answer is one of all ended episodes.
"""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search.branches import Branch, SearchState, prune_unfinished
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.protocol import TreeStrategy, run_concurrently
from envgym.agents.search.scorers import VALUE_NAME, has_failed, observe_branch, observe_state
from envgym.config.plugins import Choice
from envgym.core.tree import SearchStats
from envgym.env import Env
from envgym.errors import SettingsError

NOT_AMONG_THE_BEST = "not among the best of its turn"
REPEATS = "repeats an earlier sibling"


class Beam(TreeStrategy):
    """Keep the `keep` best of `width` continuations at every turn."""

    name: ClassVar[str] = "beam"
    bound: ClassVar[str] = "beams"
    width: int = Field(default=8, ge=2)
    """Continuations that are sampled at every turn."""
    keep: int = Field(default=2, ge=1)
    """States and ended episodes that stay in the beam; at most `width`."""
    beams: int | None = Field(default=1, ge=1)
    """Beams, each from the start; null: until the budget is spent, or a beam spends nothing of it."""
    select: Choice = Choice(name=VALUE_NAME)
    """By what `answer` chooses; `value` is the `ValueFn`."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        if group_size is not None:
            do = "use it with envgym eval; for training random_expand or planned"
            raise SettingsError.of("beam", "choose an answer", "a group of episodes to train on", where="search", do=do)
        if self.value is None:
            do = "set value.name, such as critic with value.run"
            raise SettingsError.of("beam", "have a value", "none", where="search", do=do)
        if self.keep > self.width:
            do = "lower keep, or raise width"
            raise SettingsError.of("keep", f"be at most width={self.width}", self.keep, where="beam", do=do)
        super().check(env, agent, group_size=group_size)

    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        assert tree.root is not None, "the tree has begun"
        first = [await tree.run(tree.add_branch(tree.root))]
        for _ in itertools.count() if self.beams is None else range(self.beams):
            used = tree.tracker.used
            await self._run_beam(tree, tree.root, begun=first)
            first = []
            if tree.is_stopped or (self.beams is None and used == tree.tracker.used):
                break
        prune_unfinished(tree.branches)

    async def _run_beam(self, tree: SearchTree, root: SearchState, *, begun: Sequence[Branch]) -> None:
        """Run one beam, of whose first turn `begun` were sampled before."""
        states, num_ended = [root], 0
        while states and not tree.is_stopped:
            room = self.width - num_ended - len(begun)
            shares = [len(share) for share in np.array_split(range(room), len(states))]
            new = [tree.add_branch(state) for state, share in zip(states, shares, strict=True) for _ in range(share)]
            await run_concurrently([tree.run(branch, num_turns=1) for branch in new])
            branches, begun = [*begun, *new], ()
            best = (await self._ranked(tree, branches))[: self.keep - num_ended]
            states = [end for branch in best if (end := branch.turns[0].end) is not None]
            num_ended += len(best) - len(states)
            for branch in branches:
                if branch not in best and branch.turns and not branch.is_finished and branch.pruned is None:
                    branch.pruned = NOT_AMONG_THE_BEST

    async def _ranked(self, tree: SearchTree, branches: Sequence[Branch]) -> list[Branch]:
        """Return the branches that have a value, the best first; of equal continuations of one state only the first."""
        new = dict[tuple[SearchState, tuple[int, ...]], Branch]()
        for branch in branches:
            turn = branch.turns[0] if branch.turns else None
            if turn is None or turn.generation is None or (turn.end is None and has_failed(branch)):
                continue
            if new.setdefault((branch.start, turn.generation.token_ids), branch) is not branch:
                branch.pruned = REPEATS
        valued = list(new.values())
        ends = [branch.turns[0].end for branch in valued]
        seen = [observe_branch(b) if end is None else observe_state(end) for b, end in zip(valued, ends, strict=True)]
        assert self.value_fn is not None, "checked before"
        values = await self.value_fn(seen) if seen else []
        for branch, value in zip(valued, values, strict=True):
            tree.stats[branch.turns[0].node] = SearchStats(value=value)
        order = sorted(range(len(valued)), key=lambda place: -values[place])
        return [valued[place] for place in order]
