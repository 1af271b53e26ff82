"""Planned trees: which turns branch, how often, that the plan is drawn beforehand, and what short episodes do."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.agents.search import Chain, PlannedTrees
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import OUT_OF_BUDGET
from envgym.agents.search.planned import ENDED_BEFORE, Level
from envgym.agents.search.snapshots import Branching
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from envgym.trainer.metrics.rollout import rollout_metrics
from tests.agents.search.growing import Babbler, ended, episodes, grow
from tests.support.parrots import Parrot


def branchings(tree: Tree) -> Counter[tuple[int, int]]:
    """Count the nodes of a tree by (turn, children), where they have several children."""
    children = Counter(node.parent for node in tree.nodes if node.parent is not None)
    return Counter((len(tree.path(node)) - 1, count) for node, count in children.items() if count > 1)


def long_parrot() -> Parrot:
    return Parrot(max_turns=5)


@settings(max_examples=10)
@given(
    children=st.lists(st.integers(2, 3), min_size=1, max_size=2).map(tuple),
    deterministic=st.booleans(),
    seed=st.integers(0, 99),
)
def test_episodes_branch_at_the_turns_of_the_plan(children: tuple[int, ...], deterministic: bool, seed: int) -> None:
    turns = (1, 3)[: len(children)]
    strategy = PlannedTrees(children=children, turns=turns, deterministic=deterministic)
    size = 2 * strategy.most_leaves
    trees = grow(strategy, Babbler("ab", end=0.5), make_env=long_parrot, group_size=size, seed=seed).trees
    for tree in trees:
        nodes, expected = 1, Counter[tuple[int, int]]()
        for turn, count in zip(turns, children, strict=True):
            expected[turn, count] = nodes
            nodes *= count
        assert branchings(tree) == expected
        assert len(tree.leaves) == strategy.most_leaves
        assert tree.nodes[0].stats is not None
        assert tree.nodes[0].stats.shortfall is None


def test_the_first_leaf_of_each_tree_is_the_chain_of_that_member() -> None:
    chains = episodes(grow(Chain(), make_env=long_parrot, group_size=2).trees)
    grown = grow(PlannedTrees(turns=(2,)), make_env=long_parrot, group_size=4).trees
    firsts = [episodes([tree])[0] for tree in grown]
    assert [first.rows[0].token_ids for first in firsts] == [chain.rows[0].token_ids for chain in chains]


def test_an_episode_that_ends_before_its_turn_does_not_branch() -> None:
    short = grow(PlannedTrees(turns=(3,)), make_env=lambda: Parrot(max_turns=3), group_size=4)
    for tree in short.trees:
        assert len(tree.leaves) == len(ended(tree)) == 1
        assert tree.nodes[0].stats is not None
        assert tree.nodes[0].stats.shortfall == ENDED_BEFORE
    metrics = rollout_metrics([Group(key="g", trees=short.trees)], success_at=1.0)
    assert metrics["rollout/short_trees"] == 2.0


def test_plan_is_drawn_from_the_seed_uniformly_and_without_a_turn_twice() -> None:
    strategy = PlannedTrees(children=(2, 3), first_turn=2, last_turn=5)
    plans = [strategy.plan(seed, "plan") for seed in range(1200)]
    assert plans[0] == strategy.plan(0, "plan")
    assert all([level.num_children for level in plan] == [2, 3] for plan in plans)
    counts = Counter(tuple(level.turn for level in plan) for plan in plans)
    # 6 pairs of four turns, 200 of each; the standard deviation is below sqrt(200) < 15
    assert sorted(counts) == [(2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)]
    assert all(abs(count - 200) < 4 * 15 for count in counts.values())


def test_trees_of_a_group_draw_their_own_plans() -> None:
    trees = grow(PlannedTrees(last_turn=4), make_env=long_parrot, group_size=40).trees
    turns = Counter(turn for tree in trees for turn, _ in branchings(tree))
    assert sorted(turns) == [1, 2, 3, 4]
    assert PlannedTrees(turns=(2, 4), children=(3, 2)).plan(1) == (Level(2, 3), Level(4, 2))


@pytest.mark.parametrize("branching", list(Branching))
def test_trees_are_the_same_however_a_state_is_restored(branching: Branching) -> None:
    def leaves(branching: Branching) -> list[tuple[int, ...]]:
        strategy = PlannedTrees(children=(2, 2), turns=(1, 2), branching=branching)
        grown = grow(strategy, Babbler("abc"), group_size=8)
        return [episode.rows[0].token_ids for episode in episodes(grown.trees)]

    assert leaves(branching) == leaves(Branching.AUTO)


@pytest.mark.parametrize("pace", [1, 2])
@pytest.mark.parametrize("budget", [SearchBudget(), SearchBudget(env_steps=14)])
def test_the_trees_do_not_depend_on_who_is_faster(pace: int, budget: SearchBudget) -> None:
    strategy = PlannedTrees(children=(2, 2), turns=(1, 2), budget=budget)
    calm = grow(strategy, Babbler(), group_size=8)
    assert grow(strategy, Babbler(pace=pace), group_size=8) == calm
    assert grow(strategy, Babbler(pace=pace), group_size=8, slots=1) == calm


def test_a_budget_ends_a_tree_and_says_so() -> None:
    strategy = PlannedTrees(children=(3,), turns=(1,), budget=SearchBudget(env_steps=12))
    grown = grow(strategy, Babbler("ab", end=0.5), make_env=long_parrot, group_size=6)
    assert [tree.cost.env_steps for tree in grown.trees] == [6, 6]
    reasons = [tree.nodes[0].stats.shortfall for tree in grown.trees if tree.nodes[0].stats is not None]
    assert reasons == [OUT_OF_BUDGET] * 2


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"children": (1,)}, "children must be at least 2 at every level"),
        ({"children": ()}, "children"),
        ({"turns": (0,)}, "turns must be 1 ascending turns from 1 on"),
        ({"turns": (3, 2), "children": (2, 2)}, "turns must be 2 ascending turns from 1 on"),
        ({"turns": (3,), "children": (2, 2)}, "turns must be 2 ascending turns from 1 on"),
        ({"children": (2, 2), "first_turn": 4, "last_turn": 4}, "first_turn to last_turn must hold 2 different turns"),
        ({"trees": 1}, "trees"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PlannedTrees.model_validate(fields)


@pytest.mark.parametrize(
    "group_size, fields, must",
    [
        (2, {}, "at least 2 trees times 2 leaves, got 2"),
        (7, {}, "at least 2 trees times 2 leaves, got 7"),
        (8, {"trees": 3}, "3 trees times 2 leaves, got 8"),
    ],
)
def test_a_size_that_no_trees_make_up_is_refused(group_size: int, fields: dict[str, int], must: str) -> None:
    with pytest.raises(SettingsError, match=must):
        PlannedTrees.model_validate(fields).num_trees(group_size)


def test_group_is_made_of_trees_with_all_their_leaves() -> None:
    assert PlannedTrees().num_trees(8) == 4
    assert PlannedTrees(children=(3, 2)).num_trees(12) == 2
