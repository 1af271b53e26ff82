"""The KL term on a batch: its direction, and what it reads."""

from dataclasses import replace
from math import log

import pytest
import torch

from envgym.errors import UnknownName
from envgym.trainer.methods.losses.kl import KlEstimator, k1, k2, k3
from envgym.trainer.methods.losses.kl_reference import REFERENCE, KlToReference
from tests.support.losses import batch_of


@pytest.mark.parametrize("estimator, value", [(k1, log(2)), (k2, log(2) ** 2 / 2), (k3, 0.5 - 1 + log(2))])
def test_it_goes_from_the_policy_to_the_reference(estimator: KlEstimator, value: float) -> None:
    # The policy finds the first token twice as likely as the reference does; the second is masked.
    reference = torch.tensor([[-3.0, -3.0]], dtype=torch.float64)
    batch = replace(batch_of([[log(2) - 3] * 2], -9.0, [5.0], [[1, 0]]), scores={REFERENCE: reference})
    assert KlToReference(estimator=estimator)(batch).losses_BT[0].tolist() == [pytest.approx(value), 0.0]


def test_without_the_scores_of_the_reference_it_says_so() -> None:
    with pytest.raises(UnknownName, match="score must be a known name, got 'reference'"):
        KlToReference(estimator=k3)(batch_of([[0.0]], 0.0, [0.0]))
