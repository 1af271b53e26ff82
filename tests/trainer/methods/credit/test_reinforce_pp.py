"""REINFORCE++: the published vector, both forms by hand, and the law of whitening."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.batch.build import assign_credits, build_batch
from envgym.trainer.methods.credit.reinforce_pp import ReinforcePlusPlus
from envgym.trainer.methods.protocols import CreditContext, TrajectoryValues
from tests.support.credit_trees import chains, per_node
from tests.support.example_trees import outcome_tree


def group_of(*episodes: tuple[float | None, int]) -> Group:
    """Return a group of one-turn episodes, each given by its reward and its number of sampled tokens."""
    pairs = enumerate(episodes)
    return Group(key="g", trees=tuple(outcome_tree(f"t{n}", reward, tokens=tokens) for n, (reward, tokens) in pairs))


def test_published_vector() -> None:
    # tokens 3 3 3 -3 -3: mean .6, unbiased variance 10.8; 2.4 / 3.286335 and -3.6 / 3.286335
    found = per_node(assign_credits(ReinforcePlusPlus(), [group_of((3.0, 3)), group_of((-3.0, 2))]))
    assert found == [pytest.approx([0.730297], abs=1e-6), pytest.approx([-1.095445], abs=1e-6)]


def test_published_vector_of_one_group_of_four_lengths() -> None:
    # returns 1 0 0 1 of 3, 2, 4 and 1 tokens: mean .4, unbiased variance 2.4 / 9; .6 / .516398 and -.4 / .516398
    group = group_of((1.0, 3), (0.0, 2), (0.0, 4), (1.0, 1))
    for form in ("none", "group"):  # centring one group first moves all of it alike
        found = per_node(assign_credits(ReinforcePlusPlus.model_validate({"baseline": form}), [group]))
        expected = [1.161895, -0.774597, -0.774597, 1.161895]
        assert [advantage for (advantage,) in found] == pytest.approx(expected, abs=1e-6)


def test_variance_of_the_population() -> None:
    # 43.2 / 5 = 8.64: 2.4 / 2.939388
    credit = ReinforcePlusPlus(variance="population")
    found = per_node(assign_credits(credit, [group_of((3.0, 3)), group_of((-3.0, 2))]))
    assert found == [pytest.approx([0.816497], abs=1e-6), pytest.approx([-1.224745], abs=1e-6)]


def test_baseline_form_moves_groups_of_equal_rewards_where_lengths_differ() -> None:
    # centred: .5, -.5 three times, 0 twice: mean -1/6, variance (4/9 + 3/9 + 2/36) / 5 = 1/6
    groups = [group_of((1.0, 1), (0.0, 3)), group_of((1.0, 2))]
    found = per_node(assign_credits(ReinforcePlusPlus(baseline="group"), groups))
    assert [advantage for (advantage,) in found] == pytest.approx([1.632993, -0.816497, 0.408248], abs=1e-5)


def test_turns_get_what_is_paid_from_them_on() -> None:
    # returns 2 1 1 of one episode and 0 of the other: mean 1, variance (1 + 1) / 3
    found = per_node(assign_credits(ReinforcePlusPlus(), [chains([1, 0, 1], [0])]))
    assert found[0] == pytest.approx([1.224745, 0, 0], abs=1e-6)
    assert found[1] == pytest.approx([-1.224745], abs=1e-6)


EPISODES = st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 4)), min_size=1, max_size=4)


@settings(max_examples=25)
@given(st.lists(EPISODES, min_size=1, max_size=3), st.sampled_from(["none", "group"]))
def test_tokens_of_the_batch_have_mean_zero_and_variance_one(batch: list[list[tuple[float, int]]], form: str) -> None:
    groups = [group_of(*episodes) for episodes in batch]
    rows = build_batch(groups, ReinforcePlusPlus.model_validate({"baseline": form}), once=False).rows
    tokens = [a for row in rows for a, trains in zip(row.advantages, row.loss_mask, strict=True) if trains]
    squares = math.fsum(token**2 for token in tokens)
    assert math.fsum(tokens) == pytest.approx(0.0, abs=1e-6)
    if squares > 1e-3:  # else all returns are equal, up to rounding
        assert squares <= len(tokens) - 1 + 1e-6
        spread = max(tokens) - min(tokens)
        assert squares == pytest.approx(len(tokens) - 1, rel=1e-2) or spread < 1.0


def test_one_episode_alone_is_refused_only_with_a_baseline() -> None:
    assert ReinforcePlusPlus().works_alone
    assert not ReinforcePlusPlus(baseline="group").works_alone


def test_kl_in_the_reward_is_paid_from_each_token_on() -> None:
    group = group_of((3.0, 3), (-3.0, 2))
    first, second = group.valid
    policy = [
        TrajectoryValues(trajectory=first, values=((), (-1.0, -2.0, -0.25))),
        TrajectoryValues(trajectory=second, values=((), (-1.0, -1.0))),
    ]
    reference = [
        TrajectoryValues(trajectory=first, values=((), (-2.5, -1.0, -1.0))),
        TrajectoryValues(trajectory=second, values=((), (-1.0, -1.0))),
    ]
    credit = ReinforcePlusPlus(kl_coef=0.1, variance="population")
    context = CreditContext(scores={"policy": policy, "reference": reference})
    found = [entry.advantages[1] for entry in credit.assign([group], context)]
    # k1 terms .15, -.1, .075: G = 3 - .125, 3 + .025, 3 - .075, and -3 twice
    returns = [2.875, 3.025, 2.925, -3.0, -3.0]
    mean = sum(returns) / 5
    deviation = math.sqrt(sum((value - mean) ** 2 for value in returns) / 5)
    expected = [(value - mean) / deviation for value in returns]
    assert found == [pytest.approx(tuple(expected[:3]), abs=1e-6), pytest.approx(tuple(expected[3:]), abs=1e-6)]
    # a reference that is the policy changes nothing
    same = CreditContext(scores={"policy": policy, "reference": policy})
    plain = ReinforcePlusPlus(variance="population").assign([group], CreditContext())
    for entry, without in zip(credit.assign([group], same), plain, strict=True):
        values, value = entry.advantages[1], without.advantages[1]
        assert isinstance(values, tuple)
        assert values == pytest.approx([value] * len(values), abs=1e-9)
    assert [request.model for request in credit.scores] == ["policy", "reference"]
    assert ReinforcePlusPlus().scores == ()
