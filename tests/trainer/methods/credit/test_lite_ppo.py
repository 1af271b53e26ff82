"""Lite PPO: published vectors of both spreads, its reduction to GRPO, and its laws."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.lite_ppo import LitePpo
from envgym.trainer.methods.credit.outcome import Grpo
from tests.support.credit_trees import batch_advantages

PUBLISHED = ((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0))
BATCHES = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=4)


def test_published_vector_with_the_spread_of_raw_rewards() -> None:
    # 7 of 12 rewards are 1: unbiased std sqrt(12 (7/12) (5/12) / 11) = .514929; .5, .25 and .75 of it
    expected = [0.971006, -0.971006, -0.971006, 0.971006, 0, 0, 0, 0, -0.485503, -0.485503, -0.485503, 1.45651]
    assert batch_advantages(LitePpo(), *PUBLISHED) == pytest.approx(expected, abs=1e-5)


def test_published_vector_with_the_spread_of_centred_rewards() -> None:
    # population std of the differences .5 (4 times), 0 (4), .25 (3), .75: sqrt(1.75 / 12) = .381881
    expected = [1.309307, -1.309307, -1.309307, 1.309307, 0, 0, 0, 0, -0.654654, -0.654654, -0.654654, 1.963961]
    assert batch_advantages(LitePpo(spread="centred"), *PUBLISHED) == pytest.approx(expected, abs=1e-5)
    # ScaleRL drops the flat group first: sqrt(1.75 / 8) = .467707
    expected = [1.069045, -1.069045, -1.069045, 1.069045, -0.534522, -0.534522, -0.534522, 1.603567]
    found = batch_advantages(LitePpo(spread="centred"), PUBLISHED[0], PUBLISHED[2])
    assert found == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_one_group_gets_grpo(rewards: list[float]) -> None:
    assert batch_advantages(LitePpo(), tuple(rewards)) == pytest.approx(
        batch_advantages(Grpo(), tuple(rewards)), abs=1e-9
    )


@settings(max_examples=25)
@given(BATCHES, st.sampled_from(["raw", "centred"]))
def test_each_group_sums_to_zero_and_all_groups_share_one_scale(batch: list[list[float]], spread: str) -> None:
    found = iter(batch_advantages(LitePpo.model_validate({"spread": spread}), *batch))
    scales = []
    for rewards in batch:
        of_group = [next(found) for _ in rewards]
        assert math.fsum(of_group) == pytest.approx(0.0, abs=1e-3 * max(1.0, *map(abs, of_group)))
        mean = math.fsum(rewards) / len(rewards)
        scales += [a / (r - mean) for a, r in zip(of_group, rewards, strict=True) if abs(r - mean) > 1e-3]
    assert scales == pytest.approx([scales[0]] * len(scales), rel=1e-6) if scales else True
