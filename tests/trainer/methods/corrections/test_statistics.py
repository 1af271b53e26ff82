"""The numbers that a correction reports, by hand; its defaults; and bounds that are reached exactly."""

from math import exp

import pytest
import torch
from pydantic import BaseModel, ValidationError

from envgym.config.plugins import Choice
from envgym.trainer.methods.corrections import (
    Divergence,
    Geometric,
    IcePop,
    Mis,
    NoCorrection,
    Rejection,
    Tis,
    TisLevel,
    WeightLevel,
)
from envgym.trainer.methods.corrections.base import importance_weights
from envgym.trainer.methods.corrections.rejection import Over
from tests.trainer.methods.corrections.gaps import correct


def test_every_statistic_of_three_rows() -> None:
    # Ratios 2, 1/2 and 4 in row 0, 4 in row 1, which has one trained token, and none in row 2.
    gap = torch.tensor([[2.0, 0.5, 4.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]).log()
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    stats = correct(IcePop(low=0.5, high=2.0), gap, mask).stats
    assert (stats.tokens.item(), stats.rejected_tokens.item(), stats.truncated_tokens.item()) == (4, 2, 0)
    assert (stats.rows.item(), stats.rejected_rows.item()) == (2, 1)
    assert stats.weight_sum.item() == pytest.approx(2.5)  # 2 + 1/2
    assert stats.weight_square_sum.item() == pytest.approx(4.25)  # 4 + 1/4
    assert stats.gap_sum.item() == pytest.approx(6 * 0.693147, abs=1e-5)  # ln 2 (1 + 1 + 2 + 2)
    assert stats.gap_max.item() == pytest.approx(2 * 0.693147, abs=1e-5)
    # k3 of KL(behavior || old) is ratio - 1 - ln ratio: (1 - .693) + (-.5 + .693) + 2 (3 - 1.386)
    assert stats.kl_sum.item() == pytest.approx(0.306853 + 0.193147 + 2 * 1.613706, abs=1e-5)
    truncated = correct(Tis(cap=3.0), gap, mask)
    assert truncated.stats.truncated_tokens.item() == 2
    torch.testing.assert_close(truncated.weights_BT[:, 0], torch.tensor([2.0, 3.0, 0.0]))


def test_a_cap_that_is_reached_exactly_truncates_nothing() -> None:
    assert correct(Tis(cap=1.0), torch.zeros(1, 2), torch.ones(1, 2).bool()).stats.truncated_tokens.item() == 0


def test_normalised_token_weights_have_mean_one_over_trained_tokens_alone() -> None:
    gap = torch.tensor([[1.0, 3.0, 50.0]]).log()
    weights = correct(Tis(cap=100.0, normalize=True), gap, torch.tensor([[True, True, False]])).weights_BT
    torch.testing.assert_close(weights, torch.tensor([[0.5, 1.5, 0.0]]))  # over (1 + 3) / 2
    # One token, whose weight is far from 1, is its own mean.
    alone = correct(Tis(cap=100.0, normalize=True), gap, torch.tensor([[False, True, False]])).weights_BT
    torch.testing.assert_close(alone, torch.tensor([[0.0, 1.0, 0.0]]))


def test_a_row_that_trains_nothing_has_no_share_in_the_mean_over_rows() -> None:
    # Products 1 and 3 of the rows that train: over their mean, 2.
    gap = torch.tensor([[1.0, 1.0], [3.0, 1.0], [7.0, 7.0]]).log()
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    weights = correct(Tis(level=TisLevel.SEQUENCE, cap=100.0, normalize=True), gap, mask).weights_BT
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5], [1.5, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_logarithm_of_a_weight_is_clamped_once(sign: float) -> None:
    def weights(level: WeightLevel, *gaps: float) -> list[float]:
        found: list[float] = importance_weights(sign * torch.tensor([gaps]), level)[0].tolist()
        return found

    one = pytest.approx
    assert weights(WeightLevel.TOKEN, 19.0, 21.0, 500.0) == [
        one(exp(sign * 19)), one(exp(sign * 20)), one(exp(sign * 20)),
    ]  # fmt: skip
    assert weights(WeightLevel.SEQUENCE, 12.0, 7.0) == [one(exp(sign * 19))] * 2
    assert weights(WeightLevel.SEQUENCE, 12.0, 12.0) == [one(exp(sign * 20))] * 2
    assert weights(WeightLevel.SEQUENCE, 500.0, -15.0) == [one(exp(sign * 20))] * 2
    assert weights(WeightLevel.SEQUENCE, 25.0, -15.0) == [one(exp(sign * 10))] * 2  # the sum is 10: nothing is clamped
    assert weights(WeightLevel.NONE, 500.0, -15.0) == [1.0, 1.0]


@pytest.mark.parametrize("over", list(Over))
def test_a_divergence_at_its_bound_still_trains(over: Over) -> None:
    # k2 of a gap of 1 is exactly 1/2.
    gap, mask = torch.ones(1, 1), torch.ones(1, 1).bool()
    for bound, kept in [(0.5, True), (0.499, False)]:
        correction = Divergence(estimator=Choice(name="k2"), over=over, bound=bound)
        assert correct(correction, gap, mask).loss_mask_BT.item() is kept


def test_a_row_is_judged_by_all_of_its_trained_tokens() -> None:
    # k2 of gaps 1, 0 and (masked) 3: sum 1/2, mean 1/4, largest 1/2.
    gap, mask = torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[True, True, False]])
    for over, bound in [(Over.SUM, 0.5), (Over.MEAN, 0.25), (Over.MAX, 0.5)]:
        for above, kept in [(0.0, True), (-0.01, False)]:
            correction = Divergence(estimator=Choice(name="k2"), over=over, bound=bound + above)
            assert correct(correction, gap, mask).loss_mask_BT.tolist() == [[kept, kept, False]]


@pytest.mark.parametrize(
    "correction, only_masks",
    [
        (NoCorrection(), True),
        (Tis(), False),
        (Mis(), False),
        (Mis(weights=WeightLevel.NONE), True),
        (IcePop(), False),
        (Geometric(), True),
        (Geometric(weights=WeightLevel.TOKEN), False),
        (Divergence(), True),
    ],
)
def test_who_only_masks_says_so(correction: Rejection | Tis | NoCorrection, only_masks: bool) -> None:
    assert correction.only_masks is only_masks
    assert correction.is_identity is isinstance(correction, NoCorrection)


@pytest.mark.parametrize(
    "settings, defaults",
    [
        (Tis(), {"level": TisLevel.TOKEN, "cap": 2.0, "normalize": False}),
        (Mis(), {"low": 0.5, "high": 2.0, "weights": WeightLevel.SEQUENCE}),
        (IcePop(), {"low": 0.5, "high": 5.0, "weights": WeightLevel.TOKEN}),
        (Geometric(), {"low": 0.99, "high": 1.01, "weights": WeightLevel.NONE}),
        (Divergence(), {"estimator": Choice(name="k3"), "over": Over.MEAN, "bound": 0.01, "weights": WeightLevel.NONE}),
    ],
)
def test_defaults_are_those_of_the_sources(settings: BaseModel, defaults: dict[str, object]) -> None:
    assert {name: getattr(settings, name) for name in type(settings).model_fields} == defaults


@pytest.mark.parametrize("kind", [Mis, IcePop, Geometric])
def test_a_range_of_ratios_holds_one(kind: type[Mis | IcePop | Geometric]) -> None:
    assert kind.model_validate({"low": 1.0, "high": 1.0}).low == 1.0
    assert kind.model_validate({"low": 0.0, "high": 1.5}).low == 0.0
    for wrong in ({"low": 1.01}, {"low": -0.01}, {"high": 0.99}):
        with pytest.raises(ValidationError):
            kind.model_validate(wrong)


def test_an_unknown_estimator_is_refused_when_it_is_named() -> None:
    with pytest.raises(ValidationError, match="estimator must be a known name, got 'k9'"):
        Divergence(estimator=Choice(name="k9"))
    with pytest.raises(ValidationError, match="estimator must be one that is never negative, got k1"):
        Divergence(estimator=Choice(name="k1"))
