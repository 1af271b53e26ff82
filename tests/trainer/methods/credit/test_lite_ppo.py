"""Lite PPO: published vectors of both spreads, its reduction to GRPO, and its laws."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.batch.build import assign_credits
from envgym.trainer.methods.credit.lite_ppo import LitePpo
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.protocols import BatchCredit, Credit
from tests.support.credit_trees import per_node
from tests.support.example_trees import outcome_group

PUBLISHED = ((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0))
BATCHES = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=4)


def advantages(credit: Credit | BatchCredit, *groups: tuple[float | None, ...]) -> list[float]:
    """Return the advantage of every valid episode, group by group."""
    credits = assign_credits(credit, [outcome_group(*rewards) for rewards in groups])
    return [advantage for (advantage,) in per_node(credits)]


def test_published_vector_with_the_spread_of_raw_rewards() -> None:
    # 7 of 12 rewards are 1: unbiased std sqrt(12 (7/12) (5/12) / 11) = .514929; .5, .25 and .75 of it
    expected = [0.971006, -0.971006, -0.971006, 0.971006, 0, 0, 0, 0, -0.485503, -0.485503, -0.485503, 1.45651]
    assert advantages(LitePpo(), *PUBLISHED) == pytest.approx(expected, abs=1e-5)


def test_published_vector_with_the_spread_of_centred_rewards() -> None:
    # population std of the differences .5 (4 times), 0 (4), .25 (3), .75: sqrt(1.75 / 12) = .381881
    expected = [1.309307, -1.309307, -1.309307, 1.309307, 0, 0, 0, 0, -0.654654, -0.654654, -0.654654, 1.963961]
    assert advantages(LitePpo(spread="centred"), *PUBLISHED) == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_one_group_gets_grpo(rewards: list[float]) -> None:
    assert advantages(LitePpo(), tuple(rewards)) == pytest.approx(advantages(Grpo(), tuple(rewards)), abs=1e-9)


@settings(max_examples=25)
@given(BATCHES, st.sampled_from(["raw", "centred"]))
def test_each_group_sums_to_zero_and_all_groups_share_one_scale(batch: list[list[float]], spread: str) -> None:
    found = iter(advantages(LitePpo.model_validate({"spread": spread}), *map(tuple, batch)))
    scales = []
    for rewards in batch:
        of_group = [next(found) for _ in rewards]
        assert math.fsum(of_group) == pytest.approx(0.0, abs=1e-3 * max(1.0, *map(abs, of_group)))
        mean = math.fsum(rewards) / len(rewards)
        scales += [a / (r - mean) for a, r in zip(of_group, rewards, strict=True) if abs(r - mean) > 1e-3]
    assert scales == pytest.approx([scales[0]] * len(scales), rel=1e-6) if scales else True


def test_invalid_episodes_are_in_no_statistic() -> None:
    assert advantages(LitePpo(), (1.0, None, 0.0), (None, None)) == advantages(LitePpo(), (1.0, 0.0))
    assert advantages(LitePpo()) == []
