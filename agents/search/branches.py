"""The parts of a search tree: states between turns, finished turns, and branches made of them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import AgentState
from envgym.agents.protocols import GenerateRequest, Generation, first_spans, join_spans
from envgym.agents.rollout.recorder import MidTurnFork
from envgym.agents.search.snapshots import Snapshot
from envgym.core.tree import SearchStats
from envgym.core.turns import Cost, Ending
from envgym.seeds import derive_seed

UNFINISHED = "not continued"

TOKENS, OBSERVATION = "tokens", "observation"
"""What a node may repeat of an earlier sibling."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchState:
    """A state at which a turn begins: the agent's, and a snapshot of the env's."""

    agent: AgentState
    request: GenerateRequest
    """Asks for the turn, with the seeds of the episode that reached the state first."""
    snapshot: Snapshot | None
    """None where no branch can begin."""

    @property
    def node(self) -> PathNode:
        assert self.agent.path is not None, "a search state lies below the prompt"
        return self.agent.path


@dataclass(frozen=True, slots=True, eq=False)
class TurnRecord:
    """A finished turn."""

    start: SearchState
    generation: Generation | None
    """What was sampled, the shared first tokens included; None where the policy failed."""
    node: PathNode
    end: SearchState | None
    """Where the next turn begins; None where the episode ended."""
    num_shared: int = 0
    """First tokens that an earlier sibling sampled."""


class SharedPrefix(NamedTuple):
    """The first tokens of a finished turn, which another branch keeps."""

    turn: TurnRecord
    num_tokens: int

    @property
    def generation(self) -> Generation:
        assert self.turn.generation is not None, "a fork inside a turn follows sampled tokens"
        return self.turn.generation

    @property
    def fork(self) -> MidTurnFork:
        """Where the branch leaves the edge of the turn, which may begin with a context rendered anew."""
        rerendered = self.turn.start.agent.pending
        return MidTurnFork(self.turn.node, sum(len(segment) for segment in rerendered) + self.num_tokens)

    def continue_request(self, request: GenerateRequest) -> GenerateRequest:
        """Return the request for what comes after the shared tokens, within the same turn limit."""
        sampling = request.sampling
        sampling = replace(sampling, max_new_tokens=sampling.max_new_tokens - self.num_tokens)
        token_ids = request.token_ids + self.generation.token_ids[: self.num_tokens]
        return replace(request, token_ids=token_ids, sampling=sampling)

    def join_generation(self, sampled: Generation) -> Generation:
        """Return one generation of the shared tokens and of what was sampled after them.

        Log-probs and versions stay as they were sampled. What only one of the two has is left out.
        """
        first, at = self.generation, self.num_tokens
        raw, top = None, None
        if first.raw_logprobs is not None and sampled.raw_logprobs is not None:
            raw = first.raw_logprobs[:at] + sampled.raw_logprobs
        if first.top_logprobs is not None and sampled.top_logprobs is not None:
            top = first.top_logprobs[:at] + sampled.top_logprobs
        spans = join_spans((*first_spans(first.spans, at), *sampled.spans))
        return replace(
            sampled,
            policy_version=min(span.policy_version for span in spans),
            version_spans=spans if len(spans) > 1 else (),
            token_ids=first.token_ids[:at] + sampled.token_ids,
            behavior_logprobs=first.behavior_logprobs[:at] + sampled.behavior_logprobs,
            raw_logprobs=raw,
            top_logprobs=top,
        )

    def subtract_cost(self, state: AgentState) -> AgentState:
        """Take the shared tokens out of the last edge's cost: the earlier sibling's edge has them."""
        node = state.path
        assert node is not None, "a turn was finished"
        cost = replace(node.edge.cost, tokens_generated=node.edge.cost.tokens_generated - self.num_tokens)
        return state._replace(path=replace(node, edge=replace(node.edge, cost=cost)))


@dataclass(slots=True, eq=False)
class Branch:
    """The turns that follow from one decision of the search."""

    number: int
    """Counts the branches of a tree in the order of the decisions."""
    start: SearchState
    seed: int
    prefix: SharedPrefix | None = None
    """The first tokens of its first turn, where it begins inside a turn."""
    replay_cost: Cost = field(default_factory=Cost)
    """What it took to return to the start."""
    turns: list[TurnRecord] = field(default_factory=list)
    pruned: str | None = None

    @property
    def state(self) -> SearchState:
        """Where the next turn begins, or the last one began."""
        return (self.turns[-1].end or self.turns[-1].start) if self.turns else self.start

    @property
    def next_prefix(self) -> SharedPrefix | None:
        """The first tokens of the next turn, where that shares some."""
        return None if self.turns else self.prefix

    def next_turn(self) -> tuple[AgentState, GenerateRequest]:
        """Return the agent before its next turn, and the request for it; the first turn has the branch's own seed."""
        state = self.state
        if self.turns or self.seed == state.agent.episode.seed:
            return state.agent, state.request
        seed = derive_seed(self.seed, "turn", state.agent.num_turns)
        return state.agent.with_seed(self.seed), replace(state.request, seed=seed)

    def add_turn(self, generation: Generation | None, agent: AgentState, end: SearchState | None) -> TurnRecord:
        """Record the next turn: what was sampled, the agent after it, and the state in which it ended."""
        node, prefix = agent.path, self.next_prefix
        assert node is not None, "the prompt was rendered"
        turn = TurnRecord(self.state, generation, node, end, 0 if prefix is None else prefix.num_tokens)
        self.turns.append(turn)
        return turn

    @property
    def last_node(self) -> PathNode | None:
        """The node after its last turn; None where it has no turn."""
        return self.turns[-1].node if self.turns else None

    @property
    def ending(self) -> Ending | None:
        """How its episode ended; None where it has not."""
        return self.last_node.ending if self.last_node is not None else None

    @property
    def is_finished(self) -> bool:
        """True where its episode ended."""
        return self.ending is not None


def prune_unfinished(branches: Sequence[Branch]) -> None:
    """Say of every branch that ended between two turns, where no other one went on, that it was not continued."""
    gone_on = {branch.start for branch in branches if branch.turns}
    for branch in branches:
        end = branch.turns[-1].end if branch.turns else None
        if end is not None and branch.pruned is None and end not in gone_on:
            branch.pruned = UNFINISHED


def node_statistics(
    branches: Sequence[Branch], search_stats: Mapping[PathNode, SearchStats], *, root: PathNode, shortfall: str | None
) -> dict[PathNode, SearchStats]:
    """Return the statistics of every node: those known, visits, why it was pruned, and what it repeats.

    A node without visits of its own gets the number of branches that pass it. The cost of replays is put on the root,
    and why leaves are missing.
    """
    paths = [branch.last_node.path() for branch in branches if branch.last_node is not None]
    num_passing = Counter(node for path in paths for node in path)
    stats = {node: search_stats.get(node, SearchStats(visits=count)) for node, count in num_passing.items()}
    for branch in branches:
        if branch.last_node is not None and branch.pruned is not None:
            stats[branch.last_node] = replace(stats[branch.last_node], pruned=branch.pruned)
    replays = sum((branch.replay_cost for branch in branches if branch.turns), Cost())
    stats[root] = replace(stats.get(root, SearchStats()), spent=replays, shortfall=shortfall)
    for node, repeated in _repetitions(branches).items():
        stats[node] = replace(stats[node], repeats=repeated)
    return stats


def _repetitions(branches: Sequence[Branch]) -> dict[PathNode, str]:
    """Return the nodes that repeat an earlier sibling's tokens, or its observation, and which of the two."""
    repetitions: dict[PathNode, str] = {}
    tokens: set[tuple[SearchState, tuple[int, ...]]] = set()
    observations: set[tuple[SearchState, object, Ending | None]] = set()
    for turn in (turn for branch in branches for turn in branch.turns):
        if turn.generation is not None:
            sampled = (turn.start, turn.generation.token_ids)
            if sampled in tokens:
                repetitions[turn.node] = TOKENS
            tokens.add(sampled)
        if turn.node.outcome is not None:
            observed = (turn.start, turn.node.outcome.observation.messages, turn.node.ending)
            if observed in observations:
                repetitions.setdefault(turn.node, OBSERVATION)
            observations.add(observed)
    return repetitions
