"""The nodes of one Monte Carlo tree, and the simulations on it; `mcts` is the strategy made of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from envgym.agents.path import Link
from envgym.agents.search.base import together
from envgym.agents.search.branches import Branch, Place, Played
from envgym.agents.search.growth import Growth
from envgym.agents.search.scores import (
    FrontierWeights,
    decayed_backup,
    frontier_score,
    num_children,
    puct,
    rolled_value,
    uct,
)
from envgym.agents.search.signals import Seen, reward_of, seen_at, seen_at_end, value_fn
from envgym.core.tree import SearchStats
from envgym.settings import Settings

MERGED = "repeats an elder sibling to its end"
UNFINISHED = "not continued"


class SimulationSettings(Settings):
    """How nodes are chosen and valued."""

    simulations: int | None = Field(default=16, ge=1)
    """None: until the budget is spent, or simulations spend nothing of it."""
    width: int = Field(default=8, ge=1)
    """Most children of a node."""
    widening: float = Field(default=0.5, ge=0, le=1)
    """A node with N visits may have N^widening children."""
    rule: Literal["uct", "puct"] = "puct"
    c: float = Field(default=1.0, ge=0)
    """Weight of exploration."""
    frontier: bool = False
    """Begin at the best of all nodes, instead of descending from the root."""
    value: str | None = None
    """`package.module:name` of a `ValueFn` (`:text` behind it is given to it); None: the reward of whole episodes."""
    roll_forward: int = Field(default=0, ge=0)
    """With `value`: turns played behind the new one, whose best value is mixed in with one half."""
    backup: Literal["mean", "decayed"] = "mean"
    """`decayed`: +1 for a reward of 1 and -1 for less, as `decayed_backup` says; for training only."""
    novelty: float = Field(default=0.0, ge=0)
    """Added to the value of a simulation that found a new node. Source: 2408.08152."""
    parallel: int = Field(default=4, ge=1)
    """Simulations that are chosen together; the later ones see the earlier ones as visits without a value."""


@dataclass(slots=True, eq=False)
class Node:
    """A place, or the end of an episode, and what is known of it."""

    link: Link
    place: Place | None
    """None where the episode ended."""
    parent: "Node | None" = None
    depth: int = 0
    surprisal: float = 0.0
    """Mean surprisal of the turn that leads here, nats a token."""
    visits: int = 0
    total: float = 0.0
    value: float = 0.0
    """Q."""
    pending: int = 0
    """Simulations under way below."""
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)
    """Sampled tokens -> child."""

    def line(self) -> list["Node"]:
        """Return the nodes from the root to this one."""
        above = self.parent.line() if self.parent is not None else []
        return [*above, self]

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def prior(self, child: "Node") -> float:
        """Return the share of a child in what the policy gave its sampled children, by probability a token."""
        odds = sum(math.exp(-other.surprisal) for other in self.children.values())
        return math.exp(-child.surprisal) / odds


class Simulations:
    """The nodes of one tree, and the simulations on it."""

    def __init__(self, settings: SimulationSettings, growth: Growth, root: Node) -> None:
        self._settings, self._growth, self.root = settings, growth, root
        self._value = None if settings.value is None else value_fn(settings.value, where="value")
        self._left = None if settings.simulations is None else settings.simulations - 1
        self._weights = FrontierWeights()

    # ---- how simulations follow each other -----------------------------------------------------------------------

    async def in_waves(self) -> None:
        """Choose so many simulations together, and back all of them up when the last is over."""
        while starts := [node for _ in range(self._settings.parallel) if (node := self._choose()) is not None]:
            used = self._growth.purse.used
            branches = [self._begin(node) for node in starts]
            values = await together([self._simulated(branch) for branch in branches])
            for node, branch, value in zip(starts, branches, values, strict=True):
                self._add(node, branch, value)
            if self._left is None and used == self._growth.purse.used:
                return

    async def as_they_end(self) -> None:
        """Keep so many simulations under way."""

        async def work() -> None:
            while (node := self._choose()) is not None:
                used = self._growth.purse.used
                branch = self._begin(node)
                self._add(node, branch, await self._simulated(branch))
                if self._left is None and used == self._growth.purse.used:
                    return

        await together([work() for _ in range(self._settings.parallel)])

    async def play_out(self, node: Node) -> None:
        """Run one simulation from `node` to the end of the episode."""
        branch = self._begin(_pending(node))
        self._add(node, branch, await self._simulated(branch, whole=True))

    async def finish(self, leaves: int) -> None:
        """Play whole episodes from the most visited nodes, unfinished ones first, until there are so many leaves."""
        while len(self._growth.leaves) < leaves and not self._growth.purse.is_empty:
            room = [node for node in self.root.walk() if self._has_room(node)]
            ends = [node for node in room if not node.children] or room
            if not ends:
                return
            node = max(ends, key=lambda node: (node.visits, node.value))
            await self.play_out(node)

    # ---- one simulation ------------------------------------------------------------------------------------------

    def _choose(self) -> Node | None:
        """Return where the next simulation begins, counted as pending on its path; None: nowhere."""
        if self._left == 0 or self._growth.purse.is_empty:
            return None
        node = self._best_of_all() if self._settings.frontier else self._descend()
        if node is not None:
            _pending(node)
            self._left = None if self._left is None else self._left - 1
        return node

    def _descend(self) -> Node | None:
        node = self.root
        if not self._is_open(node):
            return None
        while not self._may_grow(node):
            node = max((child for child in node.children.values() if self._is_open(child)), key=self._score)
        return node

    def _best_of_all(self) -> Node | None:
        nodes = list(self.root.walk())
        max_depth = max(node.depth for node in nodes)
        open_nodes = [node for node in nodes if self._has_room(node)]
        return max(open_nodes, key=lambda node: self._frontier_score(node, max_depth), default=None)

    def _score(self, node: Node) -> float:
        """Return the score of a child where its parent chooses."""
        settings, parent = self._settings, node.parent
        assert parent is not None, "children are scored"
        visits, above = node.visits + node.pending, parent.visits + parent.pending
        if settings.rule == "uct":
            return uct(node.value, visits, above, c=settings.c)
        return puct(node.value, visits, above, prior=parent.prior(node), c=settings.c)

    def _frontier_score(self, node: Node, max_depth: int) -> float:
        # Several simulations that are chosen together spread: each one under way counts as a failure.
        value = node.value - node.pending
        return frontier_score(
            value=value,
            parent_value=node.parent.value if node.parent is not None else value,
            surprisal=node.surprisal,
            depth=node.depth,
            max_depth=max_depth,
            weights=self._weights,
        )

    def _may_grow(self, node: Node) -> bool:
        """Return whether the node's visits allow another child; its open children come first else."""
        settings = self._settings
        allowed = num_children(node.visits + node.pending, width=settings.width, widening=settings.widening)
        has_open_child = any(self._is_open(child) for child in node.children.values())
        return self._has_room(node) and (len(node.children) + node.pending < allowed or not has_open_child)

    def _has_room(self, node: Node) -> bool:
        begun = self._growth.num_branches(node.place) if node.place is not None else 0
        return node.place is not None and node.place.snapshot is not None and begun < self._settings.width

    def _is_open(self, node: Node) -> bool:
        return self._has_room(node) or any(self._is_open(child) for child in node.children.values())

    def _begin(self, node: Node) -> Branch:
        assert node.place is not None, "an open node is a place"
        return self._growth.branch(node.place)

    async def _simulated(self, branch: Branch, *, whole: bool = False) -> float | None:
        """Play a branch and return its value; None where it has none."""
        turns = None if whole or self._value is None else 1 + self._settings.roll_forward
        return await self._value_of(await self._growth.play(branch, turns=turns))

    def _add(self, start: Node, branch: Branch, value: float | None) -> None:
        """Put a branch into the tree of nodes and back its value up."""
        for above in start.line():
            above.pending -= 1
        node, new = start, list[Node]()
        for played in branch.turns:
            key = played.generation.token_ids if played.generation is not None else (-1 - branch.number,)
            if key not in node.children:
                node.children[key] = _child(node, played)
                new.append(node.children[key])
            node = node.children[key]
        if not new and branch.is_over:
            branch.pruned = MERGED
        if value is None:
            return
        value += self._settings.novelty * bool(new)
        line = node.line()
        for item in line:
            item.visits += 1
            item.total += value
        if self._settings.backup == "mean":
            values = [item.total / item.visits for item in line]
        else:
            values = decayed_backup([item.value for item in line], 1.0 if value >= 1.0 else -1.0)
        for item, backed_up in zip(line, values, strict=True):
            item.value = backed_up

    async def _value_of(self, branch: Branch) -> float | None:
        """Return what a simulation found; None where infrastructure ended it, or the budget before its first turn."""
        if not branch.turns or (branch.ending is not None and branch.ending.is_error):
            return None
        if self._value is None:
            return reward_of(branch)
        seen: list[Seen] = [seen_at(played.end) for played in branch.turns if played.end is not None]
        if branch.is_over:
            seen.append(seen_at_end(branch))
        first, *ahead = await self._value(seen)
        return rolled_value(first, ahead, mix=0.5)

    def annotate(self) -> None:
        """Write down what is known of every node."""
        for node in self.root.walk():
            prior = node.parent.prior(node) if node.parent is not None else None
            self._growth.stats[node.link] = SearchStats(visits=node.visits, value=node.value, prior=prior)
        for branch in self._growth.branches:
            end = branch.turns[-1].end if branch.turns else None
            if end is not None and not self._growth.num_branches(end):
                branch.pruned = UNFINISHED


def _pending(node: Node) -> Node:
    """Count a simulation as under way on the path to `node`."""
    for above in node.line():
        above.pending += 1
    return node


def _child(parent: Node, played: Played) -> Node:
    logprobs = played.generation.behavior_logprobs if played.generation is not None else ()
    surprisal = -math.fsum(logprobs) / len(logprobs) if logprobs else 0.0
    return Node(link=played.link, place=played.end, parent=parent, depth=parent.depth + 1, surprisal=surprisal)
