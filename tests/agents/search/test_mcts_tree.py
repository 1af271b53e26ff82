"""The nodes of a Monte Carlo tree by hand: priors, scores, who may grow, where a simulation begins, what it adds."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from envgym.agents.loop.path import PathNode
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Generation, Sampling
from envgym.agents.search import RolloutContext
from envgym.agents.search.branches import Branch, SearchState, TurnRecord
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.mcts_tree import MERGED, MctsNode, Simulations, SimulationSettings
from envgym.agents.search.snapshots import Branching
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tree import Edge
from envgym.core.turns import Ending, TurnOutcome
from tests.support.generations import generated
from tests.support.parrots import char_agent, parrot_job, said


def simulations(**fields: Any) -> Simulations:  # settings by name
    """Return simulations on a tree that was begun and not expanded."""

    async def begin() -> SearchTree:
        policy = ScriptedPolicy(lambda request: said("a"))
        context = RolloutContext(
            agent=char_agent(), policy=policy, sampling=Sampling(), slots=asyncio.Semaphore(4), clock=lambda: 0.0
        )
        tree = SearchTree(parrot_job(), context, branching=Branching.FORK, budget=SearchBudget())
        await tree.begin()
        await tree.close()
        return tree

    return Simulations(SimulationSettings.model_validate(fields), asyncio.run(begin()), value_fn=None)


def child(parent: MctsNode, key: int, *, ended: bool = False, **fields: Any) -> MctsNode:  # fields by name
    state = None if ended or parent.state is None else replace(parent.state)
    node = MctsNode(PathNode(parent.node, parent.node.edge), state, parent=parent, depth=parent.depth + 1, **fields)
    parent.children[key,] = node
    return node


def test_nodes_know_their_path_and_all_below() -> None:
    root = simulations().root
    left, right = child(root, 1), child(root, 2)
    leaf = child(left, 3)
    assert leaf.path() == [root, left, leaf]
    assert list(root.walk()) == [root, left, leaf, right]
    assert (root.depth, right.depth, leaf.depth) == (0, 1, 2)


def test_prior_is_the_share_of_the_mean_probability_of_a_token() -> None:
    root = simulations().root
    sure, unsure = child(root, 1, surprisal=math.log(2)), child(root, 2, surprisal=math.log(6))
    # 1/2 and 1/6 of 2/3
    assert root.prior(sure) == pytest.approx(0.75)
    assert root.prior(unsure) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "rule, score",
    [
        ("puct", 0.5 + 2 * 0.75 * math.sqrt(9) / 4),  # visits 2 + 1 and 7 + 2
        ("uct", 0.5 + 2 * math.sqrt(math.log(9) / 3)),
    ],
)
def test_a_child_is_scored_by_its_visits_and_by_those_under_way(rule: str, score: float) -> None:
    found = simulations(rule=rule, c=2.0)
    found.root.visits, found.root.pending = 7, 2
    first = child(found.root, 1, surprisal=math.log(2), visits=2, pending=1, value=0.5)
    child(found.root, 2, surprisal=math.log(6))
    assert found._score(first) == pytest.approx(score)


def test_the_frontier_is_scored_by_the_parents_value_and_by_depth() -> None:
    found = simulations(frontier=True)
    found.root.value = 0.5
    inner = child(found.root, 1, value=0.3, surprisal=9.0)
    leaf = child(inner, 2, value=0.9, pending=1)
    # 0.4 tanh(Q of the parent) + 0.01 sqrt(depth / 4); the root is its own parent, and one under way is a failure.
    assert found._frontier_score(found.root, 4) == pytest.approx(0.4 * math.tanh(0.5))
    assert found._frontier_score(inner, 4) == pytest.approx(0.4 * math.tanh(0.5) + 0.005)
    assert found._frontier_score(leaf, 4) == pytest.approx(0.4 * math.tanh(0.3) + 0.01 * math.sqrt(0.5))
    found.root.pending = 2
    assert found._frontier_score(found.root, 4) == pytest.approx(0.4 * math.tanh(-1.5))
    found.root.pending = 0
    assert found._best_of_all() is inner  # of .4 tanh .5 at depth 0 and 1, and .4 tanh .3
    assert simulations(frontier=True, width=1)._best_of_all() is not None


def test_a_node_grows_by_its_visits_and_where_no_child_is_open() -> None:
    found = simulations(widening=0.5, width=3)
    root = found.root
    root.visits = 4  # 2 children
    first = child(root, 1)
    assert found._may_grow(root)
    root.repeats = 1  # the same turn again: the visits are spent, and the search goes on below
    assert not found._may_grow(root)
    root.repeats = 0
    root.pending = 1  # ceil(sqrt 5) = 3 children, and one is under way
    assert found._may_grow(root)
    second = child(root, 2)
    assert not found._may_grow(root)
    root.pending = 0
    assert not found._may_grow(root)
    first.state = second.state = None  # both episodes ended: a third child, though the visits allow two
    assert found._may_grow(root)
    child(root, 3)
    assert not found._may_grow(root)  # 3 is the width
    assert found._is_open(root)  # by its third child
    assert not found._is_open(first)


def test_a_descent_follows_the_best_open_child() -> None:
    found = simulations(width=2, widening=0.0, c=0.0)
    root = found.root
    assert found._descend() is root
    best, second = child(root, 1, value=0.9, ended=True), child(root, 2, value=0.2)
    assert found._descend() is second  # the better one has ended
    below, worse = child(second, 3, value=0.1), child(second, 4, value=0.05)
    assert found._descend() is below
    below.state = None
    assert found._descend() is worse
    worse.state = None
    assert found._descend() is None  # both nodes have their width, and nothing below is open
    assert best.children == {}


def test_simulations_are_counted_when_they_are_chosen() -> None:
    found = simulations(simulations=3)  # the first is a whole episode, which is not chosen
    chosen = [found._choose() for _ in range(3)]
    assert chosen == [found.root, found.root, None]
    assert found.root.pending == 2
    endless = simulations(simulations=None)
    assert all(endless._choose() is endless.root for _ in range(5))


def generation(*logprobs: float, token: int = 7) -> Generation:
    return generated((token,) * len(logprobs), logprobs)


def branch_of(found: Simulations, *generations: Generation | None, shows: str = "?") -> Branch:
    """Return a branch from the root with a turn for each generation; its last turn ends the episode."""
    state, turns = found.root.state, list[TurnRecord]()
    assert state is not None
    for number, sampled in enumerate(generations, start=1):
        is_last = number == len(generations)
        said_back = Observation(shows, (Message(role=Role.USER, content=shows),))
        node = PathNode(
            parent=None,
            edge=Edge(segments=(), ends_turn=True),
            outcome=TurnOutcome(action=Action("a"), observation=said_back),
            ending=Ending.TERMINATED if is_last else None,
        )
        end: SearchState | None = None if is_last else replace(state)
        turns.append(TurnRecord(state, sampled, node, end))
        state = end or state
    return Branch(0, turns[0].start, seed=0, turns=turns)


def back_up(found: Simulations, branch: Branch, value: float | None) -> None:
    found.root.pending += 1
    found._back_up(found.root, branch, value)


def test_a_simulation_adds_its_turns_and_its_value_to_all_above() -> None:
    found = simulations()
    back_up(found, branch_of(found, generation(-1.0, -3.0), generation(-0.5)), 1.0)
    back_up(found, branch_of(found, generation(-1.0, -3.0), generation(-0.5, token=8)), 0.0)
    root, (first,) = found.root, found.root.children.values()
    left, right = first.children.values()
    assert [(node.visits, node.total, node.value) for node in (root, first, left, right)] == [
        (2, 1.0, 0.5), (2, 1.0, 0.5), (1, 1.0, 1.0), (1, 0.0, 0.0),
    ]  # fmt: skip
    assert [node.repeats for node in (root, first, left)] == [1, 0, 0]  # the first turn was sampled twice
    assert [(node.depth, node.surprisal, node.pending) for node in (root, first, left)] == [
        (0, 0.0, 0), (1, 2.0, 0), (2, 0.5, 0),
    ]  # fmt: skip
    assert list(root.children) == [(7, 7)]


def test_an_episode_that_repeats_another_to_its_end_is_merged_and_counts() -> None:
    found = simulations()
    first, again = (branch_of(found, generation(-1.0)) for _ in range(2))
    longer = branch_of(found, generation(-1.0), generation(-1.0))
    for branch, value in ((first, 1.0), (again, 1.0), (longer, 0.25)):
        back_up(found, branch, value)
    assert [branch.pruned for branch in (first, again, longer)] == [None, MERGED, None]
    assert (found.root.visits, found.root.value) == (3, 0.75)


def test_a_simulation_without_a_value_is_no_visit_and_what_failed_is_a_child_of_its_own() -> None:
    found = simulations()
    for _ in range(2):
        failed = branch_of(found, None)
        failed.number = len(found.root.children)
        back_up(found, failed, None)
    assert (found.root.visits, found.root.pending, list(found.root.children)) == (0, 0, [(-1,), (-2,)])
    assert [node.surprisal for node in found.root.children.values()] == [0.0, 0.0]


def test_decayed_values_are_of_success_and_failure() -> None:
    found = simulations(backup="decayed")
    back_up(found, branch_of(found, generation(-1.0), generation(-2.0)), 1.0)
    path = [found.root, *found.root.children.values()]
    assert [node.value for node in path] == [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    back_up(found, branch_of(found, generation(-3.0, token=9)), 0.99)  # less than 1 is a failure
    assert [node.value for node in path] == [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert [node.value for node in found.root.children.values()][1] == -1.0


def test_what_the_env_showed_first_is_worth_more() -> None:
    found = simulations(novelty=0.5)
    values = []
    for token, shows in enumerate(["one", "one", "two", "Q"]):  # Q is the task
        back_up(found, branch_of(found, generation(-1.0, token=token), shows=shows), 0.25)
        values.append(list(found.root.children.values())[-1].value)
    assert values == [0.75, 0.25, 0.75, 0.25]
