"""The parts of a growing tree: places where a turn begins, turns that were played, and branches made of them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from envgym.agents.loop import AgentState
from envgym.agents.path import Link
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.search.snapshots import Snapshot
from envgym.core.endings import Ending
from envgym.core.tree import SearchStats
from envgym.core.turns import Cost
from envgym.seeds import derive_seed

TOKENS, OBSERVATION = "tokens", "observation"
"""What a node may repeat of an elder sibling."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a turn begins: what the agent knows there, and the way back to its env."""

    state: AgentState
    request: GenerateRequest
    snapshot: Snapshot | None
    """None where nobody is to come back."""

    @property
    def link(self) -> Link:
        """The edge that ends here."""
        assert self.state.path is not None, "a place lies below the root"
        return self.state.path


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A turn that was played."""

    start: Place
    generation: Generation | None
    """What was sampled, the shared first tokens included; None where the policy failed."""
    link: Link
    end: Place | None
    """Where the next turn begins; None where the episode ended."""
    shared: int = 0
    """First tokens that an elder sibling sampled."""


@dataclass(slots=True, eq=False)
class Branch:
    """What one decision of the search made: turns from a place on."""

    number: int
    """Counts the branches of a tree in the order of the decisions."""
    start: Place
    seed: int
    prefix: Played | None = None
    at: int = 0
    """The branch keeps the first so many tokens that `prefix` sampled."""
    turns: list[Played] = field(default_factory=list)
    pruned: str | None = None

    @property
    def first(self) -> Place:
        """The start, with the branch's own seeds."""
        start = self.start
        if self.seed == start.state.seed:
            return start
        seed = derive_seed(self.seed, "turn", start.state.num_turns)
        return replace(start, state=start.state._replace(seed=self.seed), request=replace(start.request, seed=seed))

    @property
    def last(self) -> Link | None:
        """The last edge; None where the branch has none of its own."""
        return self.turns[-1].link if self.turns else None

    @property
    def ending(self) -> Ending | None:
        """How its episode ended; None where it has not."""
        return self.last.ending if self.last is not None else None

    @property
    def is_over(self) -> bool:
        """True where its episode ended."""
        return self.ending is not None


def marked(branches: Sequence[Branch], known: Mapping[Link, SearchStats], *, root: Link) -> dict[Link, SearchStats]:
    """Return the statistics of every node: what is known, how many branches pass, what was cut, what repeats.

    A node without visits of its own gets the number of branches that pass it. Of siblings that sampled the same
    tokens, or got the same answer, the younger ones say so. What replays cost stands at the root.
    """
    lines = [branch.last.line() for branch in branches if branch.last is not None]
    passing = Counter(link for line in lines for link in line)
    stats = {link: known.get(link, SearchStats(visits=count)) for link, count in passing.items()}
    for branch in branches:
        if branch.last is not None and branch.pruned is not None:
            stats[branch.last] = replace(stats[branch.last], pruned=branch.pruned)
    replays = [branch.start.snapshot.opening for branch in branches if branch.turns and branch.start.snapshot]
    stats[root] = replace(stats.get(root, SearchStats()), spent=sum(replays, Cost()))
    for link, what in _repeats(branches).items():
        stats[link] = replace(stats[link], repeats=what)
    return stats


def _repeats(branches: Sequence[Branch]) -> dict[Link, str]:
    """Return the links that repeat an elder sibling, with what they repeat."""
    found: dict[Link, str] = {}
    tokens: set[tuple[int, tuple[int, ...]]] = set()
    answers: set[tuple[int, tuple[object, ...]]] = set()
    for branch in branches:
        start = branch.start
        for turn in branch.turns:
            place = id(start)
            if turn.generation is not None:
                said = (place, turn.generation.token_ids)
                if said in tokens:
                    found[turn.link] = TOKENS
                tokens.add(said)
            if turn.link.outcome is not None:
                observation = turn.link.outcome.observation
                heard = (place, (observation.messages, turn.link.ending))
                if heard in answers:
                    found.setdefault(turn.link, OBSERVATION)
                answers.add(heard)
            if turn.end is None:
                break
            start = turn.end
    return found
