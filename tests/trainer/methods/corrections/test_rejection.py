"""What all corrections that reject share: bounds, levels of weights, statistics, and NaN."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import exp, inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.config.plugins import Choice
from envgym.errors import SettingsError
from envgym.trainer.methods.corrections import (
    Correction,
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
from envgym.trainer.methods.corrections.base import CORRECTION, importance_weights
from envgym.trainer.methods.corrections.rejection import Over, outside_ratios
from tests.trainer.methods.corrections.gaps import GAP, MASK, correct

ALL: dict[str, Callable[..., Rejection]] = {
    "mis": Mis,
    "icepop": IcePop,
    "geometric": Geometric,
    "k2-token": partial(Divergence, estimator=Choice(name="k2"), over=Over.TOKEN),
    "k3-sum": partial(Divergence, over=Over.SUM),
    "k3-mean": partial(Divergence, over=Over.MEAN),
    "k2-max": partial(Divergence, estimator=Choice(name="k2"), over=Over.MAX),
}
OPEN = {name: {"low": 0.0, "high": inf} if name in ("mis", "icepop", "geometric") else {"bound": inf} for name in ALL}


@pytest.mark.parametrize("name", ALL)
def test_bounds_at_infinity_leave_the_weights_alone(name: str) -> None:
    same: dict[WeightLevel, Correction] = {
        WeightLevel.NONE: NoCorrection(),
        WeightLevel.TOKEN: Tis(cap=inf),
        WeightLevel.SEQUENCE: Tis(cap=inf, level=TisLevel.SEQUENCE),
    }
    for level in WeightLevel:
        found, expected = correct(ALL[name](weights=level, **OPEN[name])), correct(same[level])
        assert torch.equal(found.weights_BT, expected.weights_BT)
        assert torch.equal(found.loss_mask_BT, MASK)


@pytest.mark.parametrize("name", ALL)
@given(seed=st.integers(0, 10_000), bound=st.floats(0.01, 2.0))
@settings(max_examples=8)
def test_what_is_kept_has_the_weights_of_the_level_and_the_rest_none(name: str, seed: int, bound: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    gap = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=generator) < 0.7
    bounds = {"bound": bound} if "bound" in OPEN[name] else {"low": exp(-bound), "high": exp(bound)}
    for level in WeightLevel:
        found = correct(ALL[name](weights=level, **bounds), gap, mask)
        whole = correct(ALL[name](weights=level, **OPEN[name]), gap, mask)
        kept = found.loss_mask_BT
        assert torch.equal(found.weights_BT, torch.where(kept, whole.weights_BT, 0.0))
        assert found.stats.rejected_tokens.item() == (mask & ~kept).sum().item()
        gone = [row for row in range(4) if mask[row].any() and not kept[row].any()]
        assert (found.stats.rows.item(), found.stats.rejected_rows.item()) == (mask.any(-1).sum().item(), len(gone))
        if name not in ("icepop", "k2-token"):  # rows are kept or rejected whole
            assert all(torch.equal(kept[row], mask[row]) or row in gone for row in range(4))


@pytest.mark.parametrize("name", ALL)
def test_wider_bounds_keep_all_that_narrower_ones_keep(name: str) -> None:
    def kept(bound: float) -> torch.Tensor:
        bounds = {"bound": bound} if "bound" in OPEN[name] else {"low": exp(-bound), "high": exp(bound)}
        return correct(ALL[name](**bounds)).loss_mask_BT

    widths = [0.0, 0.01, 0.1, 0.3, 1.0, 3.0]
    assert all(bool((kept(b) | ~kept(a)).all()) for a, b in pairwise(widths))
    assert torch.equal(kept(3.0), MASK)


@pytest.mark.parametrize("weights", list(WeightLevel))
def test_in_rows_of_one_token_mis_icepop_and_geometric_are_one(weights: WeightLevel) -> None:
    gap, mask = GAP.reshape(-1, 1), MASK.reshape(-1, 1)
    mis, icepop, geometric = (
        correct(kind(low=0.9, high=2.0, weights=weights), gap, mask) for kind in (Mis, IcePop, Geometric)
    )
    assert icepop.loss_mask_BT[:, 0].tolist() == [True, False, False, True, True, False]  # e^-.2 = .82, e^.9 = 2.46
    for other in (mis, geometric):
        assert torch.equal(other.weights_BT, icepop.weights_BT)
        assert torch.equal(other.loss_mask_BT, icepop.loss_mask_BT)


@pytest.mark.parametrize("name", ALL)
def test_a_gap_that_is_no_number_stays_visible(name: str) -> None:
    result = correct(ALL[name](weights=WeightLevel.TOKEN), GAP * torch.nan)
    assert torch.equal(result.loss_mask_BT, MASK)
    assert bool(result.weights_BT[MASK].isnan().all())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("gap", [inf, -inf, 500.0, -500.0])
def test_a_gap_without_end_is_rejected(name: str, gap: float) -> None:
    result = correct(ALL[name](weights=WeightLevel.TOKEN), torch.tensor([[gap]]), torch.ones(1, 1).bool())
    assert (result.loss_mask_BT.item(), result.weights_BT.item()) == (False, 0.0)


def test_the_bounds_themselves_are_inside() -> None:
    logs = torch.tensor([0.5, 0.49, 1.0, 2.0, 2.01]).log()
    assert outside_ratios(logs, 0.5, 2.0).tolist() == [False, True, False, False, True]
    assert not bool(outside_ratios(torch.tensor([-inf, inf]), 0.0, inf).any())


@pytest.mark.parametrize(
    "name, given, sentence",
    [
        ("mis", {"low": 1.5}, "low must be less than or equal to 1, got 1.5"),
        ("mis", {"low": -0.1}, "low must be greater than or equal to 0, got -0.1"),
        ("icepop", {"high": 0.5}, "high must be greater than or equal to 1, got 0.5"),
        ("geometric", {"high": float("nan")}, "high must be greater than or equal to 1, got nan"),
        ("divergence", {"bound": -1.0}, "bound must be greater than or equal to 0, got -1.0"),
        ("divergence", {"estimator": "k1"}, "estimator must be"),
        ("divergence", {"over": "row"}, "over must be"),
        ("mis", {"weights": "turn"}, "weights must be"),
        ("mis", {"cap": 2.0}, "settings key must be known, got cap"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(name: str, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError) as found:
        CORRECTION.build(Choice.model_validate({"name": name, **given}))
    assert sentence in str(found.value)
    assert "\n" not in str(found.value)


def test_a_correction_of_ones_own_says_only_what_it_rejects() -> None:
    class FirstRow(Rejection):
        weights: WeightLevel = WeightLevel.NONE

        def outside(self, gap_BT: torch.Tensor, loss_mask_BT: torch.Tensor) -> torch.Tensor:
            return torch.arange(len(gap_BT))[:, None] == 0

    assert correct(FirstRow()).weights_BT.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", ALL)
def test_only_without_weights_it_only_masks(name: str) -> None:
    assert [ALL[name](weights=level).only_masks for level in WeightLevel] == [True, False, False]


def test_the_logarithm_of_a_weight_is_bounded_by_20() -> None:
    gap = torch.tensor([[30.0, -30.0, 0.5], [15.0, 15.0, 0.0]], dtype=torch.float64)
    for level, logarithms in (
        (WeightLevel.TOKEN, [[20.0, -20.0, 0.5], [15.0, 15.0, 0.0]]),
        (WeightLevel.SEQUENCE, [[0.5] * 3, [20.0] * 3]),
    ):
        expected = torch.tensor(logarithms, dtype=torch.float64).exp()
        torch.testing.assert_close(importance_weights(gap, level), expected)
