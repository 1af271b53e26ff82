"""Rejection by divergence: tokens, or rows by sum, mean or maximum."""

import pytest
import torch

from envgym.plugins import Choice
from envgym.trainer.methods.corrections.rejection import Divergence, Over
from tests.trainer.methods.corrections.gaps import assert_weights, correct

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
