"""Clip-Cov and KL-Cov: the published tokens, the draw, and what they are without a token chosen."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.losses import ClipCov, KlCov, PpoClip
from envgym.trainer.methods.losses.covariance import covariances
from tests.support.losses import batch_of, evaluate, stats_of

PUBLISHED = batch_of(
    [[-0.1, -2.0, -0.5], [-3.0, -0.2, -1.0]],
    [[-0.2, -1.8, -0.5], [-2.5, -0.3, -1.0]],
    [1.0, -1.0],
    [[1, 1, 1], [1, 1, 0]],
)


def test_covariances_by_hand() -> None:
    """Mean advantage (3 - 2) / 5 = .2, mean log-prob -5.8 / 5 = -1.16; such as (1 - .2) (-.1 + 1.16) = .848."""
    expected = [[0.848, -0.672, 0.528], [2.208, -1.152, -torch.inf]]
    assert covariances(PUBLISHED).tolist() == [pytest.approx(row) for row in expected]


def test_clip_cov_takes_candidates_out() -> None:
    """Candidates lie above .3: (0, 0) and (0, 2); (1, 0) is clipped by PPO already."""
    value, gradient, result = evaluate(ClipCov(share=1.0, low=0.3, clip_low=0.2, clip_high=0.2), PUBLISHED)
    assert value == pytest.approx(0.217288, abs=1e-6)
    assert gradient[0] == pytest.approx([0.0, -0.163746, 0.0], abs=1e-6)
    assert gradient[1] == pytest.approx([0.0, 0.221034, 0.0], abs=1e-6)
    assert result.sums["held_back"].item() == 2
    assert stats_of(result).clipped_low.item() == 1
    assert evaluate(PpoClip(), PUBLISHED)[0] == pytest.approx(-0.203746, abs=1e-6)


@pytest.mark.parametrize("coef, expected", [(1.0, -0.12244), (0.1, -0.23044), (0.0, -0.24244)])
def test_kl_cov_penalises_the_largest(coef: float, expected: float) -> None:
    """.4 of 5 tokens are two: (1, 0) and (0, 0), with |log-ratios| .5 and .1."""
    value, _, result = evaluate(KlCov(share=0.4, coef=coef), PUBLISHED)
    assert value == pytest.approx(expected, abs=1e-6)
    assert result.sums["held_back"].item() == 2


def test_share_counts_trained_tokens_and_is_at_least_one() -> None:
    for share, count in ((1e-4, 1), (0.39, 1), (0.4, 2), (1.0, 5)):
        assert KlCov(share=share)(PUBLISHED).sums["held_back"].item() == count
    assert ClipCov(share=1e-4, low=0.3)(PUBLISHED).sums["held_back"].item() == 1


def test_bounds_of_the_covariance_are_exclusive() -> None:
    highest = covariances(PUBLISHED)[1, 0].item()
    for low, high, count in ((0.6, highest, 1), (0.6, 2.3, 2), (highest, 9.0, 0)):
        assert ClipCov(share=1.0, low=low, high=high)(PUBLISHED).sums["held_back"].item() == count


def test_draw_is_a_function_of_seed_and_step() -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, advantages = torch.randn(3, 4, 50, dtype=torch.float64, generator=generator).tolist()
    batch = batch_of(new, old, advantages)
    loss = ClipCov(share=0.05, low=-9.0, high=9.0)
    held = [
        (each(replace(batch, step=step)).losses_BT == 0).flatten().nonzero()[:, 0].tolist()
        for each, step in ((loss, 3), (loss, 3), (loss, 4), (ClipCov(share=0.05, low=-9.0, high=9.0, seed=1), 3))
    ]
    assert len(held[0]) == 10
    assert held[0] == held[1]
    assert held[0] != held[2]
    assert held[0] != held[3]


@given(seed=st.integers(0, 10_000))
def test_without_a_candidate_clip_cov_is_ppo(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old, advantages = torch.randn(3, 2, 4, dtype=torch.float64, generator=generator).tolist()
    batch = batch_of(new, old, advantages)
    found = ClipCov(low=1e9, high=1e10, clip_low=0.2, clip_high=0.28)(batch).losses_BT
    assert torch.equal(found, PpoClip(clip_low=0.2, clip_high=0.28)(batch).losses_BT)


@given(seed=st.integers(0, 10_000))
def test_without_a_penalty_kl_cov_is_ppo_without_a_clip(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old, advantages = torch.randn(3, 2, 4, dtype=torch.float64, generator=generator).tolist()
    batch = batch_of(new, old, advantages)
    found = KlCov(coef=0.0)(batch).losses_BT
    torch.testing.assert_close(found, PpoClip(clip_low=1.0, clip_high=1e9)(batch).losses_BT)
