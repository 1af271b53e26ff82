"""Tree-GRPO's search: how many leaves, from where, which are kept, and what a draw may not do."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym import Action, Ending, Reply
from envgym.agents.search import Chain, RandomExpand
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import OUT_OF_BUDGET
from envgym.agents.search.random_expand import draw
from envgym.agents.search.rounds import NOT_KEPT, GroupShape
from envgym.agents.search.snapshots import Branching
from envgym.core.trajectory import Group
from envgym.errors import SettingsError
from envgym.trainer.metrics.rollout import rollout_metrics
from tests.agents.search.growing import Babbler, ended, episodes, grow
from tests.support.parrots import Parrot


@settings(max_examples=15)
@given(trees=st.integers(1, 3), nodes=st.integers(1, 3), rounds=st.integers(1, 2), seed=st.integers(0, 99))
def test_a_tree_has_one_leaf_and_one_more_for_every_draw(trees: int, nodes: int, rounds: int, seed: int) -> None:
    most = 1 + nodes * rounds
    grown = grow(RandomExpand(trees=trees, nodes=nodes, rounds=rounds), group_size=trees * most, seed=seed)
    assert [len(tree.leaves) for tree in grown.trees] == [most] * trees
    assert len(Group(key="g", trees=grown.trees).valid) == trees * most


@settings(max_examples=10)
@given(keep=st.integers(1, 5), seed=st.integers(0, 99))
def test_exactly_k_leaves_are_kept_and_the_others_say_why(keep: int, seed: int) -> None:
    grown = grow(RandomExpand(trees=2, nodes=2, rounds=2, keep=keep), group_size=2 * keep, seed=seed)
    for tree in grown.trees:
        assert len(tree.leaves) == keep
        assert len(ended(tree)) == 5
        cut = [tree.nodes[leaf].stats for leaf in ended(tree) if leaf not in tree.leaves]
        assert [stats.pruned for stats in cut if stats is not None] == [NOT_KEPT] * (5 - keep)


def test_kept_leaves_are_drawn_anew_for_every_seed() -> None:
    kept: Counter[int] = Counter()
    for seed in range(60):
        (tree,) = grow(RandomExpand(trees=1, nodes=3, rounds=1, keep=2), group_size=2, seed=seed).trees
        kept.update(ended(tree).index(leaf) for leaf in tree.leaves)
    # 60 trees keep 2 of 4 leaves: 30 of each; the standard deviation is sqrt(60 / 4) < 4.
    assert sorted(kept) == [0, 1, 2, 3]
    assert all(abs(count - 30) < 3 * 4 for count in kept.values())


def test_the_first_leaf_of_each_tree_is_the_chain_of_that_member() -> None:
    chains = episodes(grow(Chain(), group_size=2).trees)
    grown = grow(RandomExpand(trees=2, nodes=2, rounds=2), group_size=10).trees
    firsts = [episodes([tree])[0] for tree in grown]
    assert [first.rows[0].token_ids for first in firsts] == [chain.rows[0].token_ids for chain in chains]
    assert [first.rows[0].behavior_logprobs for first in firsts] == [
        chain.rows[0].behavior_logprobs for chain in chains
    ]


def test_a_round_draws_no_place_twice_before_all_were_drawn() -> None:
    grown = grow(RandomExpand(nodes=2, rounds=1), group_size=3)
    places = [object(), object(), object()]
    counts = [Counter(map(id, draw(places, count, 1))) for count in (2, 3, 7)]
    assert [sorted(count.values()) for count in counts] == [[1, 1], [1, 1, 1], [2, 2, 3]]
    assert len(grown.trees[0].leaves) == 3


def test_draws_are_uniform_over_the_places() -> None:
    places = list(range(4))
    counts = Counter(place for seed in range(2000) for place in draw(places, 2, "u", seed))
    # 4,000 draws of four places: 1,000 each; the standard deviation is at most sqrt(2000 / 4) < 23.
    assert all(abs(count - 1000) < 5 * 23 for count in counts.values())


def test_a_continuation_costs_half_a_chain_and_half_a_turn_on_average() -> None:
    # Episodes of exactly D = 3 turns; places at depth 0, 1, 2 leave 3, 2, 1 turns: (D + 1) / 2 = 2 on average.
    # N = 3 places without repetition are all of them: 3 + (3 + 2 + 1) = 9 turns, against 4 x 3 = 12 of four chains.
    policy = Babbler("a", end=0.5)
    grown = grow(RandomExpand(trees=1, nodes=3, rounds=1), policy, make_env=lambda: Parrot(max_turns=3), group_size=4)
    assert grown.spent.env_steps == 9
    assert sum(len(episode.turns) for episode in episodes(grown.trees)) == 12
    assert sum(tree.cost.env_steps for tree in grown.trees) == 9


@pytest.mark.parametrize("depth, published", [(2, 5.0), (3, 4.666667), (4, 4.5), (10, 4.2)])
def test_published_cost_of_a_group_in_chains(depth: int, published: float) -> None:
    """M = 2, N = 2, L = 1 on episodes of D turns: M + M N (D + 1) / 2D chains; the paper counts M + M N / 2 = 4.

    The authors draw places with replacement; that none is drawn twice changes no mean of a round.
    """
    left = [depth - place for seed in range(2000) for place in draw(range(depth), 2, "cost", seed)]
    # 4,000 draws of at most 10 places: the deviation of 4 * mean / D is below 4 * .29 / sqrt(4000) < .019
    assert 2 + 4 * sum(left) / len(left) / depth == pytest.approx(published, abs=5 * 0.019)


@pytest.mark.parametrize("deterministic", [True, False])
def test_trees_grow_until_the_budget_is_spent(deterministic: bool) -> None:
    strategy = RandomExpand(
        trees=2, nodes=2, rounds=None, deterministic=deterministic, budget=SearchBudget(env_steps=60)
    )
    grown = grow(strategy, group_size=8)
    assert [tree.cost.env_steps for tree in grown.trees] == [30, 30]
    group = Group(key="g", trees=grown.trees)
    cut = [episode for episode in group.trajectories if not episode.is_valid]
    assert 1 <= len(cut) <= 4
    assert {(episode.ending, episode.tree.nodes[episode.leaf].error) for episode in cut} == {
        (Ending.ERROR_ABORTED, OUT_OF_BUDGET)
    }


@pytest.mark.parametrize("pace", [1, 2, 3])
@pytest.mark.parametrize(
    "budget", [SearchBudget(), SearchBudget(tokens_generated=90), SearchBudget(env_steps=11, tokens_prefilled=700)]
)
def test_the_trees_do_not_depend_on_who_is_faster(pace: int, budget: SearchBudget) -> None:
    strategy = RandomExpand(trees=2, nodes=3, rounds=2, budget=budget)
    calm = grow(strategy, Babbler(), group_size=6)
    assert grow(strategy, Babbler(pace=pace), group_size=6) == calm
    assert grow(strategy, Babbler(pace=pace), group_size=6, slots=1) == calm


def test_a_branch_that_breaks_is_a_leaf_and_the_tree_survives() -> None:
    grown = grow(RandomExpand(trees=1, nodes=3, rounds=1), Babbler(fails_at=6), group_size=4)
    (tree,) = grown.trees
    broken = [tree.nodes[leaf] for leaf in tree.leaves if tree.nodes[leaf].ending is Ending.ERROR_POLICY]
    assert [node.error for node in broken] == ["generation failed: RuntimeError: the engine fell"]
    assert len(tree.leaves) == 4
    assert len(Group(key="g", trees=grown.trees).valid) == 3


def test_broken_leaves_are_kept_last() -> None:
    for seed in range(6):
        strategy = RandomExpand(trees=1, nodes=3, rounds=1, keep=3)
        grown = grow(strategy, Babbler(fails_at=6), group_size=3, seed=seed)
        assert len(Group(key="g", trees=grown.trees).valid) == 3


@pytest.mark.parametrize(
    "group_size, shape",
    [(6, GroupShape(2, 3)), (9, GroupShape(3, 3)), (8, GroupShape(4, 2)), (3, GroupShape(1, 3)), (2, GroupShape(1, 2))],
)
def test_a_group_is_made_of_as_many_leaves_of_a_tree_as_there_are(group_size: int, shape: GroupShape) -> None:
    assert RandomExpand().group_shape(group_size) == shape


@pytest.mark.parametrize(
    "group_size, fields, sentence",
    [
        (1, {}, "group must hold at least 2 episodes, got 1"),
        (7, {}, "group size must be any number of trees times 2 to 3 kept leaves, got 7"),
        (8, {"trees": 2}, "group size must be 2 trees times 2 to 3 kept leaves, got 8"),
        (6, {"keep": 4}, "group size must be any number of trees times 4 kept leaves, got 6"),
    ],
)
def test_a_size_that_leaves_do_not_make_up_is_refused(group_size: int, fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        RandomExpand.model_validate(fields).group_shape(group_size)


class CountedParrot(Parrot):
    num_steps = 0

    def respond(self, action: Action) -> Reply:
        CountedParrot.num_steps += 1
        return super().respond(action)


def test_cost_of_a_step_counts_the_replays_of_its_searches() -> None:
    CountedParrot.num_steps = 0
    strategy = RandomExpand(trees=2, nodes=2, rounds=2, branching=Branching.REPLAY)
    grown = grow(strategy, Babbler("abc"), make_env=lambda: CountedParrot(max_turns=4), group_size=6)
    metrics = rollout_metrics([Group(key="g", trees=grown.trees)], success_at=1.0)
    assert sum(tree.cost.env_steps for tree in grown.trees) < CountedParrot.num_steps
    assert metrics["cost/env_steps"] == CountedParrot.num_steps
