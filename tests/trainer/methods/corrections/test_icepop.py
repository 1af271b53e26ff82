"""IcePop: tokens inside their bounds, each weighed by its own ratio."""

import pytest

from envgym.trainer.methods.corrections import IcePop, WeightLevel
from tests.trainer.methods.corrections.gaps import assert_weights


@pytest.mark.parametrize(
    "correction, expected",
    [
        (IcePop(low=0.5, high=2.0), [[1.105171, 0.818731, 0.0], [1.0, 1.648721, 0.0]]),  # exp(.9) = 2.459603
        (IcePop(low=0.9), [[1.105171, 0.0, 2.459603], [1.0, 1.648721, 0.0]]),
        (IcePop(low=0.9, high=2.0, weights=WeightLevel.NONE), [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
    ],
)
def test_golden_weights(correction: IcePop, expected: list[list[float]]) -> None:
    assert_weights(correction, expected)
