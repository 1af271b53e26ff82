"""The parts of a search tree by hand: what a branch shares, continues and costs, and what its nodes say of it."""

from dataclasses import replace

import pytest

from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import AgentState, begin
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.search.branches import Branch, SearchState, SharedPrefix, TurnRecord, node_statistics
from envgym.core.messages import Action, Observation
from envgym.core.tree import Edge, SearchStats
from envgym.core.turns import Cost, Ending, TurnOutcome
from envgym.seeds import derive_seed
from tests.support import example_trees as cases
from tests.support.generations import generated
from tests.support.parrots import char_agent

ROOT = PathNode(parent=None, edge=Edge(segments=(), ends_turn=False))


def sampled(*ids: int, raw: bool = True, version: int = 1) -> Generation:
    raw_logprobs = tuple(-i / 100 for i in ids) if raw else None
    return generated(ids, [-i / 10 for i in ids], raw=raw_logprobs, version=version)


def agent_at(node: PathNode, *, num_turns: int = 0, seed: int = 5) -> AgentState:
    return begin(char_agent(), sampling=Sampling(), seed=seed)._replace(path=node, num_turns=num_turns)


def state_at(node: PathNode, *, num_turns: int = 0) -> SearchState:
    agent = agent_at(node, num_turns=num_turns)
    request = GenerateRequest(token_ids=(1, 2), sampling=replace(agent.episode.sampling, max_new_tokens=9), seed=77)
    return SearchState(agent, request, snapshot=None)


def node_below(parent: PathNode, *, shows: str | None = "?", ending: Ending | None = None) -> PathNode:
    outcome = None if shows is None else TurnOutcome(action=Action("a"), observation=Observation(shows))
    edge = Edge(segments=(cases.policy(10),), ends_turn=outcome is not None, cost=Cost(tokens_generated=6))
    return PathNode(parent=parent, edge=edge, outcome=outcome, ending=ending)


START = state_at(ROOT)
TURN = TurnRecord(START, sampled(10, 11, 12), node_below(ROOT), None)


@pytest.mark.parametrize("is_raw_before", [True, False])
@pytest.mark.parametrize("is_raw_after", [True, False])
def test_a_turn_after_a_fork_joins_what_is_shared_and_what_was_sampled(is_raw_before: bool, is_raw_after: bool) -> None:
    turn = replace(TURN, generation=sampled(10, 11, 12, raw=is_raw_before))
    joined = SharedPrefix(turn, 2).join_generation(sampled(20, 21, raw=is_raw_after, version=8))
    assert joined.token_ids == (10, 11, 20, 21)
    assert joined.behavior_logprobs == (-1.0, -1.1, -2.0, -2.1)
    both = is_raw_before and is_raw_after
    assert joined.raw_logprobs == ((-0.1, -0.11, -0.2, -0.21) if both else None)
    assert joined.policy_version == 1
    assert joined.spans == ((1, 2), (8, 2))


def test_a_fork_asks_for_the_rest_of_the_turn() -> None:
    request = SharedPrefix(TURN, 2).continue_request(START.request)
    assert request.token_ids == (1, 2, 10, 11)
    assert request.sampling.max_new_tokens == 9 - 2
    assert request.seed == START.request.seed


def test_a_fork_stands_behind_the_context_that_was_rendered_anew() -> None:
    agent = agent_at(ROOT)._replace(pending=(cases.prompt(1, 2, 3), cases.glue(4)))
    turn = replace(TURN, start=replace(START, agent=agent))
    forks = [SharedPrefix(turn, 2).fork, SharedPrefix(TURN, 1).fork]
    assert [(fork.sibling, fork.num_tokens) for fork in forks] == [(TURN.node, 4 + 2), (TURN.node, 1)]


def test_shared_tokens_are_paid_for_once() -> None:
    after = SharedPrefix(TURN, 2).subtract_cost(agent_at(node_below(ROOT)))
    assert after.path is not None
    assert after.path.edge.cost == Cost(tokens_generated=6 - 2)
    assert after.path.parent is ROOT


def test_a_branch_stands_where_its_last_turn_ended_or_began() -> None:
    branch = Branch(3, START, seed=5, prefix=SharedPrefix(TURN, 2))
    assert (branch.state, branch.last_node, branch.ending, branch.is_finished) == (START, None, None, False)
    prefixes = [branch.next_prefix]
    middle, leaf = node_below(ROOT), PathNode(parent=ROOT, edge=TURN.node.edge, ending=Ending.TRUNCATED_TIME)
    end = state_at(middle, num_turns=1)
    first = branch.add_turn(sampled(10), agent_at(middle), end)
    assert (first.start, first.node, first.end, first.num_shared) == (START, middle, end, 2)
    assert (branch.state, branch.last_node, branch.is_finished) == (end, middle, False)
    prefixes.append(branch.next_prefix)
    assert prefixes == [SharedPrefix(TURN, 2), None]
    second = branch.add_turn(None, agent_at(leaf), None)
    assert (second.start, second.num_shared) == (end, 0)
    assert branch.turns == [first, second]
    assert (branch.state, branch.last_node, branch.ending, branch.is_finished) == (
        end, leaf, Ending.TRUNCATED_TIME, True,
    )  # fmt: skip


def test_the_first_turn_of_a_later_branch_has_a_seed_of_its_own() -> None:
    start = state_at(ROOT, num_turns=3)
    assert Branch(0, start, seed=start.agent.episode.seed).next_turn() == (start.agent, start.request)
    agent, request = Branch(1, start, seed=6).next_turn()
    assert agent == start.agent.with_seed(6)
    assert request == replace(start.request, seed=derive_seed(6, "turn", 3))
    # Later turns have the request of the state that the turn before them reached.
    branch = Branch(1, start, seed=6)
    end = state_at(node_below(ROOT), num_turns=4)
    branch.add_turn(sampled(10), agent_at(end.node), end)
    assert branch.next_turn() == (end.agent, end.request)


def test_statistics_count_who_passes_and_put_replays_on_the_root() -> None:
    shared = node_below(ROOT)
    end = state_at(shared)
    left, right = node_below(shared, ending=Ending.TERMINATED), node_below(shared, ending=Ending.TERMINATED)
    first = Branch(0, START, seed=5, turns=[TurnRecord(START, sampled(1), shared, end)])
    first.turns.append(TurnRecord(end, sampled(2), left, None))
    second = Branch(1, end, seed=6, replay_cost=Cost(env_steps=4), turns=[TurnRecord(end, sampled(3), right, None)])
    second.pruned = "not chosen"
    never_begun = Branch(2, end, seed=7, replay_cost=Cost(env_steps=8))
    never_begun.pruned = "out of budget"
    known = {left: SearchStats(visits=9, value=0.5)}
    stats = node_statistics([first, second, never_begun], known, root=ROOT, shortfall="too few")
    assert stats == {
        ROOT: SearchStats(visits=2, spent=Cost(env_steps=4), shortfall="too few"),
        shared: SearchStats(visits=2),
        left: SearchStats(visits=9, value=0.5),
        # The two show the same.
        right: SearchStats(visits=1, pruned="not chosen", repeats="observation"),
    }


def test_statistics_of_a_tree_without_a_turn_are_those_of_its_root() -> None:
    assert node_statistics([], {}, root=ROOT, shortfall=None) == {ROOT: SearchStats()}


@pytest.mark.parametrize(
    "tokens, shows, ending, repeats",
    [
        ((10,), "?", None, "tokens"),  # both: what was sampled comes first
        ((10,), "!", None, "tokens"),
        ((11,), "?", None, "observation"),
        ((11,), "!", None, None),
        ((11,), "?", Ending.TERMINATED, None),  # the same words, but the episode is over
        ((11,), None, Ending.TRUNCATED_TOKENS, None),  # no reply
        (None, None, Ending.ERROR_POLICY, None),  # nothing was sampled
    ],
)
def test_a_node_repeats_an_earlier_sibling(
    tokens: tuple[int, ...] | None, shows: str | None, ending: Ending | None, repeats: str | None
) -> None:
    earlier, later = node_below(ROOT), node_below(ROOT, shows=shows, ending=ending)
    generation = None if tokens is None else sampled(*tokens)
    branches = [
        Branch(0, START, seed=5, turns=[TurnRecord(START, sampled(10), earlier, None)]),
        Branch(1, START, seed=6, turns=[TurnRecord(START, generation, later, None)]),
    ]
    stats = node_statistics(branches, {}, root=ROOT, shortfall=None)
    assert (stats[earlier].repeats, stats[later].repeats) == (None, repeats)
    # Nodes below different states are no siblings.
    branches[1] = Branch(1, START, seed=6, turns=[TurnRecord(state_at(ROOT), generation, later, None)])
    assert node_statistics(branches, {}, root=ROOT, shortfall=None)[later].repeats is None
