"""Credits of outcomes: published vectors, reductions and laws, of one group and of a batch."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group, trajectories
from envgym.errors import InvalidInput
from envgym.trainer.batch.spread import token_advantages
from envgym.trainer.methods.credit.outcome import DrGrpo, Grpo, Opo, Rloo
from envgym.trainer.methods.protocols import Credit, TrajectoryCredit
from tests.support import example_trees as cases
from tests.support.credit_trees import batch_advantages, group_of, per_node
from tests.support.example_trees import outcome_tree
from tests.support.plugins import BATCH_CREDITS, CREDITS

REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=8)


def advantages(credit: Credit, *rewards: float | None) -> list[float]:
    """Return the one number that each valid episode got, after checking that it is one number."""
    found = []
    for item in credit(cases.outcome_group(*rewards)):
        first, second = item.advantages
        assert first == 0.0
        assert isinstance(second, float)
        found.append(second)
    return found


def test_published_vector_of_grpo() -> None:
    # r = [1,0,0,1]: mean .5, unbiased std sqrt(4 * .25 / 3) = .577350; .5 / (.577350 + 1e-6) = .866024
    assert advantages(Grpo(), 1, 0, 0, 1) == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-6)
    # one success of eight: mean .125, unbiased std sqrt((.875^2 + 7 * .125^2) / 7) = .353553; .875 / (.353553 + 1e-6)
    assert advantages(Grpo(), 1, *[0] * 7) == pytest.approx([2.474867, *[-0.353552] * 7], abs=1e-6)


def test_published_vector_of_dr_grpo() -> None:
    assert advantages(DrGrpo(), 1, 0, 0, 1) == [0.5, -0.5, -0.5, 0.5]


def test_published_vector_of_rloo() -> None:
    # others of the first: (0 + 0 + 1) / 3, so 1 - 1/3
    assert advantages(Rloo(), 1, 0, 0, 1) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    # others of the first: 2 of 5, so 1 - .4
    assert advantages(Rloo(), 1, 0, 0, 1, 1, 0) == pytest.approx([0.6, -0.6, -0.6, 0.6, 0.6, -0.6])


@pytest.mark.parametrize("name", CREDITS)
def test_group_of_one_has_advantage_zero(name: str) -> None:
    assert advantages(CREDITS[name](), 0.7) == [0.0]
    assert advantages(CREDITS[name](), 0.7, None) == [0.0]


@pytest.mark.parametrize("name", CREDITS)
def test_group_without_valid_episode_has_no_credit(name: str) -> None:
    assert CREDITS[name]()(cases.outcome_group(None, None)) == ()


@pytest.mark.parametrize("name", CREDITS)
def test_invalid_episode_changes_no_other_advantage(name: str) -> None:
    assert advantages(CREDITS[name](), 1, None, 0) == advantages(CREDITS[name](), 1, 0)


@settings(max_examples=15)
@given(REWARDS)
def test_advantages_sum_to_zero(rewards: list[float]) -> None:
    for build in CREDITS.values():
        found = advantages(build(), *rewards)
        assert math.fsum(found) == pytest.approx(0.0, abs=1e-4 * max(1.0, *map(abs, found)))


@settings(max_examples=15)
@given(REWARDS, st.randoms(use_true_random=False))
def test_order_of_the_group_does_not_matter(rewards: list[float], random: object) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    for build in CREDITS.values():
        whole = advantages(build(), *rewards)
        shuffled = advantages(build(), *(rewards[place] for place in order))
        assert shuffled == pytest.approx([whole[place] for place in order], abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_rloo_is_dr_grpo_times_g_over_g_minus_one(rewards: list[float]) -> None:
    size = len(rewards)
    scaled = [size / (size - 1) * advantage for advantage in advantages(DrGrpo(), *rewards)]
    assert advantages(Rloo(), *rewards) == pytest.approx(scaled, abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_grpo_is_dr_grpo_over_the_spread(rewards: list[float]) -> None:
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    scaled = [advantage / (deviation + 1e-6) for advantage in advantages(DrGrpo(), *rewards)]
    assert advantages(Grpo(), *rewards) == pytest.approx(scaled, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", CREDITS)
def test_equal_rewards_have_advantage_zero(name: str) -> None:
    assert advantages(CREDITS[name](), 0.3, 0.3, 0.3) == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)


def test_an_episode_of_two_rows_counts_once() -> None:
    """A rewritten context must not weigh its episode twice in the group's mean."""
    rewritten = cases.context_rewrite()
    group = Group(key="g", trees=(rewritten, cases.outcome_tree("t", 0.0)))
    first, second = DrGrpo()(group)
    assert len(first.trajectory.rows) == 2
    assert (first.advantages, second.advantages) == ((0.0, 0.5, 0.5), (0.0, -0.5))


def test_shared_prefix_gets_the_advantage_of_each_row() -> None:
    tree = cases.shared_prefix_both_signs()
    first, second = DrGrpo()(Group(key="g", trees=(tree,)))
    # prompt 1 2 3 4 | sampled 10 11 | glue 4 | sampled 12 (or 13)
    assert token_advantages(first, first.trajectory.rows[0]) == (0,) * 4 + (0.5, 0.5, 0.0, 0.5)
    assert token_advantages(second, second.trajectory.rows[0]) == (0,) * 4 + (-0.5, -0.5, 0.0, -0.5)


def test_entries_per_token_land_on_sampled_tokens_only() -> None:
    (episode,) = trajectories(cases.injected_hint())
    # prompt 1 2 3 4 | sampled 10 | hint 90 91 | sampled 11
    credit = TrajectoryCredit(trajectory=episode, advantages=(0.0, (0.25, -0.75)))
    assert token_advantages(credit, episode.rows[0]) == (0.0,) * 4 + (0.25, 0.0, 0.0, -0.75)


def test_both_rows_of_a_rewritten_episode_get_their_nodes_advantages() -> None:
    (episode,) = trajectories(cases.context_rewrite())
    credit = TrajectoryCredit(trajectory=episode, advantages=(0.0, 1.0, -2.0))
    before, after = episode.rows
    assert token_advantages(credit, before) == (0.0,) * 4 + (1.0, 1.0)
    assert token_advantages(credit, after) == (0.0,) * 5 + (-2.0, -2.0)


def test_credit_that_does_not_fit_is_refused() -> None:
    (episode,) = trajectories(cases.injected_hint())
    row = episode.rows[0]
    with pytest.raises(InvalidInput, match="advantages must match the path's 2 nodes, got 1"):
        token_advantages(TrajectoryCredit(trajectory=episode, advantages=(0.0,)), row)
    for wrong in ((0.1,), (0.1, 0.2, 0.3)):
        with pytest.raises(InvalidInput, match="advantages of a node must match its sampled tokens"):
            token_advantages(TrajectoryCredit(trajectory=episode, advantages=(0.0, wrong)), row)


def of_lengths(rewards: list[float], lengths: list[int]) -> Group:
    pairs = enumerate(zip(rewards, lengths, strict=True))
    return group_of(*(outcome_tree(f"t{number}", reward, tokens=length) for number, (reward, length) in pairs))


def test_long_episodes_weigh_more_in_the_baseline() -> None:
    # (3 * 1 + 1 * 1) / (3 + 2 + 4 + 1) = .4
    found = per_node(Opo()(of_lengths([1, 0, 0, 1], [3, 2, 4, 1])))
    assert [advantage for (advantage,) in found] == pytest.approx([0.6, -0.4, -0.4, 0.6])


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=6))
def test_length_weighted_advantages_sum_to_zero(pairs: list[tuple[float, int]]) -> None:
    rewards, lengths = [reward for reward, _ in pairs], [length for _, length in pairs]
    found = per_node(Opo()(of_lengths(rewards, lengths)))
    weighted = sum(length * advantage for length, (advantage,) in zip(lengths, found, strict=True))
    assert weighted == pytest.approx(0.0, abs=1e-9)


OF_REWARDS = [build for build in BATCH_CREDITS.values() if "annotation" not in getattr(build, "model_fields", ())]
"""The others leave out episodes without annotations."""
BATCHES = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.parametrize("name", BATCH_CREDITS)
def test_no_groups_and_invalid_episodes_have_no_credit(name: str) -> None:
    assert batch_advantages(BATCH_CREDITS[name]()) == []
    assert batch_advantages(BATCH_CREDITS[name](), [None, None]) == []


@pytest.mark.parametrize("name", BATCH_CREDITS)
def test_invalid_episodes_are_in_no_statistic(name: str) -> None:
    credit = BATCH_CREDITS[name]()
    assert batch_advantages(credit, [1.0, None, 0.0], [None], [1.0, 1.0]) == batch_advantages(
        credit, [1.0, 0.0], [1.0, 1.0]
    )


@settings(max_examples=15)
@given(BATCHES, st.randoms(use_true_random=False))
def test_order_of_groups_does_not_matter(batch: list[list[float]], random: object) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    for build in OF_REWARDS:
        whole = iter(batch_advantages(build(), *batch))
        of_groups = [[next(whole) for _ in rewards] for rewards in batch]
        shuffled = batch_advantages(build(), *(batch[place] for place in order))
        assert shuffled == pytest.approx([value for place in order for value in of_groups[place]], abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("name", ["lite_ppo", "bnpo", "gdpo"])
def test_equal_rewards_everywhere_have_advantage_zero(name: str) -> None:
    assert batch_advantages(BATCH_CREDITS[name](), [0.3, 0.3], [0.3]) == pytest.approx([0.0] * 3, abs=1e-9)
