"""Guide-GRPO's loss: a shaped ratio for episodes that were sampled with a hint and train without it."""

from typing import ClassVar

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.tree import Source
from envgym.errors import InvalidInput
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, masked_advantages
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.requirements import Choices, Fault
from envgym.trainer.methods.row_ids import SOURCES


class GuideLoss(Settings):
    """Return PPO's clipped loss for plain rows, and for hinted ones (`source` REPLAY) l = -A r / (r + g), unclipped.

    r = π(y | task) / π_b(y | task, hint), the denominator as the sampler stated it; g = max(q, 1e-4), where q is the
    `quantile` of r over the trained tokens of all hinted rows of the update, without gradient.

    Source: 2506.13923, the authors' code, which recomputes the denominator and counts padding in the quantile.
    """

    scope: ClassVar[str] = "update"
    weighs_hints: ClassVar[bool] = True
    clip: float = Field(default=0.2, ge=0, le=1)
    """How far the ratio of plain rows may move from 1 before a token stops training."""
    quantile: float = Field(default=0.9, ge=0, le=1)
    """Quantile of the ratios of hinted tokens that scales them."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require of the policy's loss an allocator, which gives the hints."""
        holds = choices.loss is not self or choices.allocator is not None
        must, do = "be used with allocator guide, whose hints it weighs", "set allocator=guide"
        return Fault.unless(holds, "loss guide", must, "none", do)

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token. Raises: InvalidInput: hinted rows without the sampler's log-probs."""
        plain = PpoClip(clip_low=self.clip, clip_high=self.clip)(batch)
        hinted_B = batch.ids.sources_B == SOURCES.index(Source.REPLAY)
        hinted_BT = hinted_B[:, None] & batch.loss_mask_BT
        if not hinted_BT.any():
            return plain
        if batch.behavior_logprobs_BT is None:
            do = "pass those that the sampler stated"
            raise InvalidInput.of("behavior_logprobs", "be given", None, where="loss guide", do=do)
        ratio_BT = log_ratio(batch.logprobs_BT, batch.behavior_logprobs_BT, hinted_BT).exp()
        scale = ratio_BT.detach()[hinted_BT].quantile(self.quantile).clamp(min=1e-4)
        shaped_BT = ratio_BT / (ratio_BT + scale)
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        losses_BT = torch.where(hinted_BT, -advantages_BT * shaped_BT, plain.losses_BT)
        return TokenLoss(losses_BT=losses_BT, stats=plain.stats, sums={"shaped": shaped_BT.detach()[hinted_BT].sum()})
