"""Prefix-RFT: the prefix of a demonstration trains with the advantage of what the policy made of it."""

from typing import ClassVar

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.segments import Origin
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio
from envgym.trainer.methods.requirements import Choices, Fault


class PrefixRft(Settings):
    """Return l = -A ρ at the prefix tokens with the highest entropy of the policy, 0 at the others.

    A is the mean advantage of the tokens that the policy sampled after the prefix, ρ = π/π_old unclipped. It is a term
    for the tokens of demonstrations (`origins: [DEMONSTRATION]`) in episodes that go on from one.

    Source: 2507.01679 (Prefix-RFT), from its authors' code. Tokens are ranked by entropy over the whole update instead
    of within a micro-batch, so that the result does not depend on how rows are dealt.
    """

    scope: ClassVar[str] = "update"
    share: float = Field(default=0.2, gt=0, le=1)
    """Of the prefix tokens, those of the highest entropy, that train."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require a term on the tokens of demonstrations alone."""
        for term in choices.terms:
            if term.loss is self and term.origins != {Origin.DEMONSTRATION}:
                got, do = f"[{', '.join(sorted(term.origins))}]", "add a term to objective.terms with these origins"
                return Fault(f"loss prefix_rft of {term.title}", "be used with origins [DEMONSTRATION]", got, do)
        return None

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token. Raises: InvalidInput: the batch holds no entropies."""
        mask_BT = batch.loss_mask_BT
        places = mask_BT.nonzero()
        num_kept = len(places) - int((1 - self.share) * len(places))
        order = batch.entropies.detach()[mask_BT].argsort(descending=True, stable=True)[:num_kept]
        kept_BT = torch.zeros_like(mask_BT)
        kept_BT[tuple(places[order].T)] = True
        sampled_BT = batch.advantages_BT != 0
        advantages_B = batch.advantages_BT.sum(dim=-1) / sampled_BT.sum(dim=-1).clamp(min=1)
        ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT).exp()
        losses_BT = torch.where(kept_BT, -advantages_B[:, None] * ratio_BT, 0.0)
        return TokenLoss(losses_BT=losses_BT, sums={"kept": kept_BT.sum()})
