"""Truncated importance sampling: golden values, limits, unbiasedness below the cap."""

from math import exp, inf

import pytest
import torch
from pydantic import ValidationError

from envgym.trainer.methods.corrections.tis import Tis, TisLevel
from tests.trainer.methods.corrections.gaps import GAP, MASK, assert_weights, correct


@pytest.mark.parametrize(
    "correction, expected",
    [
        (Tis(cap=2.0), [[1.105171, 0.818731, 2.0], [1.0, 1.648721, 0.0]]),
        (Tis(cap=2.0, normalize=True), [[0.840738, 0.622834, 1.521463], [0.760731, 1.254234, 0.0]]),
        # exp(.1 - .2 + .9) = 2.2255 > 2; exp(0 + .5) = 1.648721
        (Tis(level=TisLevel.SEQUENCE, cap=2.0), [[2.0, 2.0, 2.0], [1.648721, 1.648721, 0.0]]),
    ],
)
def test_golden_weights(correction: Tis, expected: list[list[float]]) -> None:
    assert_weights(correction, expected)


def test_statistics_of_the_golden_batch() -> None:
    stats = correct(Tis(cap=2.0)).stats
    assert (stats.tokens.item(), stats.truncated_tokens.item(), stats.rejected_tokens.item()) == (5, 1, 0)
    assert stats.weight_sum.item() == pytest.approx(6.572623, abs=1e-5)
    assert stats.gap_sum.item() == pytest.approx(1.7)  # .1 + .2 + .9 + 0 + .5
    assert stats.gap_max.item() == pytest.approx(0.9)
    assert correct(Tis(level=TisLevel.SEQUENCE)).stats.truncated_tokens.item() == 3


def test_normalised_sequence_weights_have_mean_one_over_rows() -> None:
    # (2, 1.648721) / 1.824361, whatever the lengths of the rows
    weights = correct(Tis(level=TisLevel.SEQUENCE, normalize=True)).weights_BT
    torch.testing.assert_close(weights[:, 0], torch.tensor([1.096274, 0.903726]), rtol=0, atol=1e-5)


def test_a_row_of_one_token_is_the_same_at_both_levels() -> None:
    gap, mask = GAP[:, 2:], MASK[:, 2:]
    by_token, by_sequence = (correct(Tis(level=level), gap, mask).weights_BT for level in TisLevel)
    assert torch.equal(by_token, by_sequence)


def test_without_a_cap_token_weights_give_the_expectation_under_the_old_policy() -> None:
    old, behavior = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64).log()
    rewards = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    weights = Tis(cap=inf)(
        old_logprobs_BT=old[None], behavior_logprobs_BT=behavior[None], loss_mask_BT=torch.ones(1, 3).bool()
    ).weights_BT[0]
    # E_behavior[w r] = E_old[r] = .7 - .4 + .5
    assert (behavior.exp() * weights * rewards).sum().item() == pytest.approx(0.8)


def test_extreme_gaps_are_clamped_and_finite() -> None:
    gap = torch.tensor([[500.0, -500.0]])
    weights = correct(Tis(cap=inf), gap, torch.ones(1, 2).bool()).weights_BT
    assert weights[0].tolist() == [pytest.approx(exp(20)), pytest.approx(exp(-20))]


def test_an_unmasked_nan_stays_visible() -> None:
    assert bool(correct(Tis(), GAP * torch.nan).weights_BT[MASK].isnan().all())


@pytest.mark.parametrize("settings", [{"cap": 0.0}, {"level": "turn"}, {"caps": 2.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Tis.model_validate(settings)
