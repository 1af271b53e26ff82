"""The plain policy gradient."""

from dataclasses import replace
from math import log

import pytest
import torch

from envgym.trainer.methods.losses.reinforce import Reinforce
from tests.support.losses import batch_of, gradient_of


def test_the_loss_is_minus_advantage_times_logprob_whatever_the_ratio() -> None:
    batch = batch_of([[-0.5, -2.0, -1.0]], [[-0.5, -1.0, -1.0]], [[2.0, -3.0, 5.0]], [[1, 1, 0]])
    # -2 * -0.5 = 1; 3 * -2 = -6
    assert Reinforce()(batch).losses_BT.tolist() == [[1.0, -6.0, 0.0]]
    assert gradient_of(Reinforce(), batch).tolist() == [[-2.0, 3.0, 0.0]]
    assert Reinforce()(batch).stats is None, "it clips nothing"


def test_its_gradient_is_that_of_the_expected_reward() -> None:
    # Two actions with rewards 3 and 1, p = softmax(z): J = 3 p0 + p1, dJ/dz0 = p0 p1 (3 - 1).
    logits = torch.tensor([0.0, log(3.0)], dtype=torch.float64, requires_grad=True)  # p = (1/4, 3/4)
    logprobs = logits.log_softmax(dim=0)[None]
    result = Reinforce()(replace(batch_of(logprobs.tolist(), logprobs.tolist(), [[3.0, 1.0]]), logprobs_BT=logprobs))
    (result.losses_BT * logprobs.detach().exp()).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx(-2 * 3 / 16), pytest.approx(2 * 3 / 16)]
