"""DRO: the published batch, and its pull."""

import pytest

from envgym.trainer.methods.losses import Dro
from tests.support.losses import batch_of, evaluate, golden_batch


def test_golden_batch() -> None:
    value, gradient, _ = evaluate(Dro(beta=0.1), golden_batch())
    assert value == pytest.approx(-0.1454, abs=1e-6)
    # (-A + .1 z) / 5, z = .5, -.2 | -.4, .1, -2
    expected = [[-0.19, -0.204, 0.0], [0.092, 0.102, 0.06]]
    assert gradient == [pytest.approx(row) for row in expected]


def test_it_rests_where_the_log_ratio_is_the_advantage_over_beta() -> None:
    assert evaluate(Dro(beta=0.5), batch_of([[0.6]], 0.0, [0.3]))[1] == [[pytest.approx(0.0)]]
