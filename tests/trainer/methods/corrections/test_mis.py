"""Masked importance sampling: rows inside their bounds, weighed by their product."""

import pytest
import torch

from envgym.trainer.methods.corrections import Mis, WeightLevel
from tests.trainer.methods.corrections.gaps import assert_weights, correct


@pytest.mark.parametrize(
    "correction, expected",
    [
        # exp(.1 - .2 + .9) = 2.225541 is above 2; exp(.5) = 1.648721 is not
        (Mis(), [[0.0, 0.0, 0.0], [1.648721, 1.648721, 0.0]]),
        (Mis(high=2.3), [[2.225541, 2.225541, 2.225541], [1.648721, 1.648721, 0.0]]),
        (Mis(weights=WeightLevel.NONE), [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        (Mis(weights=WeightLevel.TOKEN), [[0.0, 0.0, 0.0], [1.0, 1.648721, 0.0]]),
    ],
)
def test_golden_weights(correction: Mis, expected: list[list[float]]) -> None:
    assert_weights(correction, expected)


def test_weight_is_the_product_that_was_judged_whatever_its_tokens() -> None:
    # exp(27 - 26.5) = 1.648721 is inside; with each token clamped to 20 first it would be exp(20 - 20) = 1
    result = correct(Mis(), torch.tensor([[27.0, -26.5]]), torch.ones(1, 2).bool())
    assert result.weights_BT[0].tolist() == pytest.approx([1.648721, 1.648721], abs=1e-5)
