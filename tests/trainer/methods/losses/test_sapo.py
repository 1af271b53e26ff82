"""SAPO: a gate by hand, and its slope."""

from math import cosh, exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.losses import Sapo
from tests.support.losses import batch_of, evaluate


def test_gates_by_hand() -> None:
    # ratios 1, 2, .5; A = 2: -2 * 4 * sigmoid(rho - 1); A = -2 with tau 1.05: 2 * (4 / 1.05) * sigmoid(1.05 (rho - 1))
    logprobs = [0.0, log(2), log(0.5)]
    losses = evaluate(Sapo(), batch_of([logprobs, logprobs], 0.0, [2.0, -2.0]))[2].losses_BT.tolist()
    assert losses[0] == pytest.approx([-4.0, -8 / (1 + exp(-1)), -8 / (1 + exp(0.5))])
    assert losses[1] == pytest.approx([8 / 1.05 / (1 + exp(-1.05 * move)) for move in (0.0, 1.0, -0.5)])


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.05, 3.0])
@pytest.mark.parametrize("advantage", [2.0, -3.0])
def test_slope_at_ratio_one_is_that_of_the_policy_gradient(tau: float, advantage: float) -> None:
    loss = Sapo(tau_positive=tau, tau_negative=tau)
    assert evaluate(loss, batch_of([[-1.0]], -1.0, [advantage]))[1] == [[pytest.approx(-advantage)]]


@given(log_ratio=st.floats(-3, 3), tau=st.floats(0.2, 4))
def test_weight_is_the_ratio_over_a_squared_hyperbolic_cosine(log_ratio: float, tau: float) -> None:
    ratio = exp(log_ratio)
    gradient = evaluate(Sapo(tau_positive=tau), batch_of([[log_ratio]], 0.0, [1.0]))[1][0][0]
    assert gradient == pytest.approx(-ratio / cosh(tau * (ratio - 1) / 2) ** 2, rel=1e-6, abs=1e-12)


def test_which_gate_is_chosen_by_the_sign_of_the_advantage() -> None:
    batch = batch_of([[log(2)], [log(2)], [log(2)]], 0.0, [1.0, -1.0, 0.0])
    gradient = evaluate(Sapo(tau_positive=1.0, tau_negative=2.0), batch)[1]
    # means of three: -2 / cosh(.5)^2 / 3, 2 / cosh(1)^2 / 3
    assert [row[0] for row in gradient] == pytest.approx([-2 / cosh(0.5) ** 2 / 3, 2 / cosh(1) ** 2 / 3, 0.0])
