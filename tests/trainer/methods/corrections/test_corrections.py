"""Corrections: golden weights and masks, limits, unbiasedness below the cap, and none at all."""

from math import exp, inf

import pytest
import torch
from pydantic import ValidationError

from envgym.config.plugins import Choice
from envgym.trainer.methods.corrections import Correction, Geometric, IcePop, Mis, NoCorrection, Tis, WeightLevel
from envgym.trainer.methods.corrections.rejection import Divergence, Over
from envgym.trainer.methods.corrections.tis import TisLevel
from tests.trainer.methods.corrections.gaps import GAP, MASK, assert_weights, correct


@pytest.mark.parametrize(
    "correction, expected",
    [
        (Tis(cap=2.0), [[1.105171, 0.818731, 2.0], [1.0, 1.648721, 0.0]]),
        (Tis(cap=2.0, normalize=True), [[0.840738, 0.622834, 1.521463], [0.760731, 1.254234, 0.0]]),
        # exp(.1 - .2 + .9) = 2.2255 > 2; exp(0 + .5) = 1.648721
        (Tis(level=TisLevel.SEQUENCE, cap=2.0), [[2.0, 2.0, 2.0], [1.648721, 1.648721, 0.0]]),
        (IcePop(low=0.5, high=2.0), [[1.105171, 0.818731, 0.0], [1.0, 1.648721, 0.0]]),  # exp(.9) = 2.459603
        (IcePop(low=0.9), [[1.105171, 0.0, 2.459603], [1.0, 1.648721, 0.0]]),
        (IcePop(low=0.9, high=2.0, weights=WeightLevel.NONE), [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        # exp(.1 - .2 + .9) = 2.225541 is above 2; exp(.5) = 1.648721 is not
        (Mis(), [[0.0, 0.0, 0.0], [1.648721, 1.648721, 0.0]]),
        (Mis(high=2.3), [[2.225541, 2.225541, 2.225541], [1.648721, 1.648721, 0.0]]),
        (Mis(weights=WeightLevel.NONE), [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        (Mis(weights=WeightLevel.TOKEN), [[0.0, 0.0, 0.0], [1.0, 1.648721, 0.0]]),
        # exp(.8 / 3) = 1.305605 and exp(.5 / 2) = 1.284025
        (Geometric(high=1.3), [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        (Geometric(high=1.31), [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
        (Geometric(), [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        # Seq-Mask-TIS: token weights without a cap, in kept rows
        (Geometric(high=1.31, weights=WeightLevel.TOKEN), [[1.105171, 0.818731, 2.459603], [1.0, 1.648721, 0.0]]),
    ],
)
def test_golden_weights(correction: Correction, expected: list[list[float]]) -> None:
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


def test_weight_is_the_product_that_was_judged_whatever_its_tokens() -> None:
    # exp(27 - 26.5) = 1.648721 is inside; with each token clamped to 20 first it would be exp(20 - 20) = 1
    result = correct(Mis(), torch.tensor([[27.0, -26.5]]), torch.ones(1, 2).bool())
    assert result.weights_BT[0].tolist() == pytest.approx([1.648721, 1.648721], abs=1e-5)


def test_a_row_repeated_behind_itself_is_judged_as_before_and_its_product_is_not() -> None:
    twice, mask = GAP.repeat(1, 4), MASK.repeat(1, 4)  # products exp(3.2) = 24.5 and exp(2) = 7.4
    assert torch.equal(
        correct(Geometric(high=1.3), twice, mask).loss_mask_BT[:, :3], correct(Geometric(high=1.3)).loss_mask_BT
    )
    assert not bool(correct(Mis(high=7.0), twice, mask).loss_mask_BT.any())
    assert bool(correct(Mis(high=7.0)).loss_mask_BT.any())


def test_gaps_of_both_signs_cancel() -> None:
    gap = torch.tensor([[3.0, -3.0]])
    assert correct(Geometric(), gap, torch.ones(1, 2).bool()).stats.rejected_tokens.item() == 0


# gap   .1        -.2       .9       |  0   .5         row: sum       mean       max
# k2    .005      .02       .405     |  0   .125       .43, .125      .1433, .0625
# k3    .005171   .018731   .559603  |  0   .148721    .583505        .194502, .074361
ALL = [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
SECOND = [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
NONE = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "estimator, over, bound, expected",
    [
        ("k2", "token", 0.13, [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),
        ("k3", "token", 0.13, [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        ("k2", "sum", 0.431, ALL),
        ("k2", "sum", 0.429, SECOND),
        ("k3", "sum", 0.5836, ALL),
        ("k3", "sum", 0.5834, SECOND),
        ("k2", "mean", 0.144, ALL),
        ("k2", "mean", 0.143, SECOND),
        ("k2", "mean", 0.06, NONE),
        ("k3", "mean", 0.1946, ALL),
        ("k3", "mean", 0.1944, SECOND),
        ("k3", "mean", 0.0743, NONE),
        ("k2", "max", 0.406, ALL),
        ("k2", "max", 0.404, SECOND),
        ("k3", "max", 0.5597, ALL),
        ("k3", "max", 0.5595, SECOND),
    ],
)
def test_golden_masks(estimator: str, over: str, bound: float, expected: list[list[float]]) -> None:
    assert_weights(Divergence.model_validate({"estimator": estimator, "over": over, "bound": bound}), expected)


def test_gaps_of_both_signs_add_up() -> None:
    gap, mask = torch.tensor([[0.3, -0.3]]), torch.ones(1, 2).bool()  # k2: .045 each
    assert (
        correct(
            Divergence(estimator=Choice(name="k2"), over=Over.SUM, bound=0.08), gap, mask
        ).stats.rejected_tokens.item()
        == 2
    )


def test_k3_forgives_tokens_that_the_trainer_finds_less_likely() -> None:
    # e^1 - 2 = .718, e^-1 - 1 + 1 = .368
    gap, mask = torch.tensor([[1.0, -1.0]]), torch.ones(1, 2).bool()
    assert correct(Divergence(over=Over.TOKEN, bound=0.5), gap, mask).loss_mask_BT.tolist() == [[False, True]]


def test_weights_are_one_and_the_gap_is_measured() -> None:
    result = NoCorrection()(
        old_logprobs_BT=torch.tensor([[-1.0, -2.0, -3.0]]),
        behavior_logprobs_BT=torch.tensor([[-1.5, -1.0, -9.0]]),
        loss_mask_BT=torch.tensor([[True, True, False]]),
    )
    assert result.weights_BT.tolist() == [[1.0, 1.0, 0.0]]
    stats = result.stats
    assert (stats.tokens.item(), stats.truncated_tokens.item(), stats.rejected_tokens.item()) == (2, 0, 0)
    assert (stats.weight_sum.item(), stats.weight_square_sum.item()) == (2.0, 2.0)
    assert (stats.gap_sum.item(), stats.gap_max.item()) == (1.5, 1.0)  # |.5| + |-1|
    assert stats.kl_sum.item() == pytest.approx((exp(0.5) - 1 - 0.5) + (exp(-1) - 1 + 1), abs=1e-6)
