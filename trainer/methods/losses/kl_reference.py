"""The KL term: how far the policy may go from a frozen model."""

from dataclasses import dataclass

from envgym.trainer.methods.losses.base import LossBatch, TokenLoss
from envgym.trainer.methods.losses.kl import KlEstimator, kl_to_reference

REFERENCE = "reference"
"""The name of the frozen model, and of the score that holds its log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlToReference:
    """Estimate KL(policy || reference) at every trained token, with gradient."""

    estimator: KlEstimator

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the estimates. Raises: UnknownName: the batch holds no log-probs of the reference."""
        return TokenLoss(
            losses_BT=kl_to_reference(
                batch.logprobs_BT, batch.score(REFERENCE), batch.loss_mask_BT, estimator=self.estimator
            )
        )
