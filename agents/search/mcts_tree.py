"""The nodes of one Monte Carlo tree, and the simulations on it; `mcts` is the strategy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from envgym.agents.loop.path import PathNode
from envgym.agents.search.branches import Branch, SearchState, prune_unfinished
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.mcts_scores import (
    FrontierWeights,
    decayed_backup,
    frontier_score,
    num_children,
    puct,
    roll_forward_value,
    uct,
)
from envgym.agents.search.protocol import run_concurrently
from envgym.agents.search.scorers import ValueFn, observe_branch, observe_state, reward_of
from envgym.config.settings import Settings
from envgym.core.messages import Message, Role
from envgym.core.tree import SearchStats
from envgym.core.turns import reaches

MAX_REPEATS = 16
"""Whole episodes in a row that may repeat earlier ones before a group is left with too few."""
MERGED = "repeats an earlier sibling to its end"


class SimulationSettings(Settings):
    """How nodes are chosen and valued."""

    simulations: int | None = Field(default=16, ge=1)
    """null: until the budget is spent, or simulations spend nothing of it."""
    width: int = Field(default=8, ge=1)
    """Most children of a node."""
    widening: float = Field(default=0.5, ge=0, le=1)
    """At a node with N visits N^widening turns may be sampled, equal ones included: a policy that says the same again
    and again goes on below instead."""
    rule: Literal["uct", "puct"] = "puct"
    """How a branch is chosen on the way down; `puct` reads priors."""
    c: float = Field(default=1.0, ge=0)
    """Weight of exploration."""
    frontier: bool = False
    """Begin at the best of all nodes, instead of descending from the root."""
    roll_forward: int = Field(default=0, ge=0)
    """With `value`: turns run after the new one, whose best value is mixed in with one half."""
    backup: Literal["mean", "decayed"] = "mean"
    """`decayed`: +1 for a reward of 1 and -1 for less, as `decayed_backup` says; for training only."""
    novelty: float = Field(default=0.0, ge=0)
    """Added to the value of a simulation in which the env showed what it had not shown in the tree before: RMaxTS,
    whose nodes are states of the env. Source: 2408.08152."""
    parallel: int = Field(default=4, ge=1)
    """Simulations that are chosen at a time; the later ones see the earlier ones as visits without a value."""


@dataclass(slots=True, eq=False)
class MctsNode:
    """A state of the search, or the end of an episode, with its statistics."""

    node: PathNode
    state: SearchState | None
    """None where the episode ended."""
    parent: "MctsNode | None" = None
    depth: int = 0
    surprisal: float = 0.0
    """Mean surprisal of the turn that leads here, nats a token."""
    visits: int = 0
    total: float = 0.0
    value: float = 0.0
    """Q."""
    pending: int = 0
    """Simulations under way below."""
    repeats: int = 0
    """Turns that were sampled here and equal that of a child."""
    children: dict[tuple[int, ...], "MctsNode"] = field(default_factory=dict)
    """Sampled tokens -> child."""

    def path(self) -> list["MctsNode"]:
        above = self.parent.path() if self.parent is not None else []
        return [*above, self]

    def walk(self) -> Iterator["MctsNode"]:
        yield self
        for child in self.children.values():
            yield from child.walk()

    def prior(self, child: "MctsNode") -> float:
        """Return the child's share of the probability of all sampled children, by mean probability of a token."""
        odds = sum(math.exp(-other.surprisal) for other in self.children.values())
        return math.exp(-child.surprisal) / odds


class Simulations:
    """The nodes of one tree, and the simulations on it."""

    def __init__(self, settings: SimulationSettings, tree: SearchTree, *, value_fn: ValueFn | None) -> None:
        assert tree.root is not None, "the tree has begun"
        self._settings, self._tree, self._value_fn = settings, tree, value_fn
        self.root = MctsNode(node=tree.root.node, state=tree.root)
        self._num_left = None if settings.simulations is None else settings.simulations - 1
        self._weights = FrontierWeights()
        self._shown = {_text_of(tree.root.agent.history[-1:])}
        """Text of the observations in the tree."""

    # ---- the order of simulations ---------------------------------------------------------------------------------

    async def run_in_waves(self, size: int) -> None:
        """Choose `size` simulations at a time, and back all of them up when the last has ended."""
        while starts := [node for _ in range(size) if (node := self._choose()) is not None]:
            used = self._tree.tracker.used
            branches = [self._begin(node) for node in starts]
            values = await run_concurrently([self._simulate(branch) for branch in branches])
            for node, branch, value in zip(starts, branches, values, strict=True):
                self._back_up(node, branch, value)
            if self._num_left is None and used == self._tree.tracker.used:
                return

    async def run_to_end(self, node: MctsNode) -> None:
        """Run one simulation from `node` to the end of the episode."""
        branch = self._begin(_count_pending(node))
        self._back_up(node, branch, await self._simulate(branch, whole=True))

    async def add_leaves(self, num_leaves: int) -> None:
        """Run whole episodes until there are so many leaves, or `MAX_REPEATS` in a row repeat earlier ones.

        They begin at the most visited nodes, unfinished ones first; then at nodes of which several children were equal
        and so are one, the least branched first.
        """
        num_repeats = 0
        while num_repeats < MAX_REPEATS and not self._tree.is_stopped:
            count = len(self._tree.kept_branches)
            if count >= num_leaves:
                return
            room = [node for node in self.root.walk() if self._has_room(node)]
            ends = [node for node in room if not node.children] or room
            if ends:
                node = max(ends, key=lambda node: (node.visits, node.value))
            else:
                repeated = [node for node in self.root.walk() if self._may_branch(node)]
                if not repeated:
                    return
                node = min(repeated, key=lambda node: (self._tree.num_branches(node.state), -node.visits))
            await self.run_to_end(node)
            num_repeats = 0 if len(self._tree.kept_branches) > count else num_repeats + 1

    # ---- one simulation ------------------------------------------------------------------------------------------

    def _choose(self) -> MctsNode | None:
        """Return where the next simulation begins, counted as pending on its path; None: nowhere."""
        if self._num_left == 0 or self._tree.is_stopped:
            return None
        node = self._best_of_all() if self._settings.frontier else self._descend()
        if node is not None:
            _count_pending(node)
            self._num_left = None if self._num_left is None else self._num_left - 1
        return node

    def _descend(self) -> MctsNode | None:
        node = self.root
        if not self._is_open(node):
            return None
        while not self._may_grow(node):
            node = max((child for child in node.children.values() if self._is_open(child)), key=self._score)
        return node

    def _best_of_all(self) -> MctsNode | None:
        nodes = list(self.root.walk())
        max_depth = max(node.depth for node in nodes)
        open_nodes = [node for node in nodes if self._has_room(node)]
        return max(open_nodes, key=lambda node: self._frontier_score(node, max_depth), default=None)

    def _score(self, node: MctsNode) -> float:
        settings, parent = self._settings, node.parent
        assert parent is not None, "children are scored"
        visits, above = node.visits + node.pending, parent.visits + parent.pending
        if settings.rule == "uct":
            return uct(node.value, visits, above, c=settings.c)
        return puct(node.value, visits, above, prior=parent.prior(node), c=settings.c)

    def _frontier_score(self, node: MctsNode, max_depth: int) -> float:
        # Several simulations that are chosen at a time spread: each one under way counts as a failure.
        value = node.value - node.pending
        return frontier_score(
            value=value,
            parent_value=node.parent.value if node.parent is not None else value,
            surprisal=node.surprisal,
            depth=node.depth,
            max_depth=max_depth,
            weights=self._weights,
        )

    def _may_grow(self, node: MctsNode) -> bool:
        """Return whether the node's visits allow another child; its open children come first else."""
        settings = self._settings
        allowed = num_children(node.visits + node.pending, width=settings.width, widening=settings.widening)
        has_open_child = any(self._is_open(child) for child in node.children.values())
        return self._has_room(node) and (
            len(node.children) + node.repeats + node.pending < allowed or not has_open_child
        )

    def _has_room(self, node: MctsNode) -> bool:
        return self._may_branch(node) and self._tree.num_branches(node.state) < self._settings.width

    def _may_branch(self, node: MctsNode) -> bool:
        is_open = node.state is not None and node.state.snapshot is not None
        return is_open and len(node.children) < self._settings.width

    def _is_open(self, node: MctsNode) -> bool:
        return self._has_room(node) or any(self._is_open(child) for child in node.children.values())

    def _begin(self, node: MctsNode) -> Branch:
        assert node.state is not None, "an open node has a state"
        return self._tree.add_branch(node.state)

    async def _simulate(self, branch: Branch, *, whole: bool = False) -> float | None:
        num_turns = None if whole or self._value_fn is None else 1 + self._settings.roll_forward
        return await self._value_of(await self._tree.run(branch, num_turns=num_turns))

    def _back_up(self, start: MctsNode, branch: Branch, value: float | None) -> None:
        for above in start.path():
            above.pending -= 1
        node, new = start, list[MctsNode]()
        for turn in branch.turns:
            key = turn.generation.token_ids if turn.generation is not None else (-1 - branch.number,)
            if key in node.children:
                node.repeats += 1
            else:
                logprobs = turn.generation.behavior_logprobs if turn.generation is not None else ()
                surprisal = -math.fsum(logprobs) / len(logprobs) if logprobs else 0.0
                child = MctsNode(turn.node, turn.end, parent=node, depth=node.depth + 1, surprisal=surprisal)
                node.children[key] = child
                new.append(child)
            node = node.children[key]
        if not new and branch.is_finished:
            branch.pruned = MERGED
        if value is None:
            return
        value += self._settings.novelty * self._has_new_observation(branch)
        path = node.path()
        for item in path:
            item.visits += 1
            item.total += value
        if self._settings.backup == "mean":
            values = [item.total / item.visits for item in path]
        else:
            values = decayed_backup([item.value for item in path], 1.0 if reaches(value, 1.0) else -1.0)
        for item, backed_up in zip(path, values, strict=True):
            item.value = backed_up

    def _has_new_observation(self, branch: Branch) -> bool:
        """Return whether the env showed something new in a branch, and note all that it showed."""
        outcomes = [turn.node.outcome for turn in branch.turns]
        texts = {_text_of(outcome.observation.messages) for outcome in outcomes if outcome is not None} - self._shown
        self._shown |= texts
        return bool(texts)

    async def _value_of(self, branch: Branch) -> float | None:
        """Return the value of a simulation; None where a failure ended it, or the budget before its first turn."""
        if not branch.turns or (branch.ending is not None and branch.ending.is_error):
            return None
        if self._value_fn is None:
            return reward_of(branch)
        observations = [observe_state(turn.end) for turn in branch.turns if turn.end is not None]
        if branch.is_finished:
            observations.append(observe_branch(branch))
        first, *later = await self._value_fn(observations)
        return roll_forward_value(first, later, mix=0.5)

    def write_stats(self) -> None:
        """Give the tree the statistics of every node."""
        for node in self.root.walk():
            prior = node.parent.prior(node) if node.parent is not None else None
            self._tree.stats[node.node] = SearchStats(visits=node.visits, value=node.value, prior=prior)
        prune_unfinished(self._tree.branches)


def _count_pending(node: MctsNode) -> MctsNode:
    for above in node.path():
        above.pending += 1
    return node


def _text_of(messages: Sequence[Message]) -> tuple[tuple[Role, str], ...]:
    """Return roles and contents of messages, without the ids of tool calls, which are sampled."""
    return tuple((message.role, message.content) for message in messages)
