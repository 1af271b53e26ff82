"""GSPO: one ratio for a whole sequence, or for a turn."""

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, loss_stats, masked_advantages
from envgym.trainer.methods.losses.levels import Level, level_means
from envgym.trainer.methods.losses.ppo_clip import clipped_objective


class Gspo(Settings):
    """Clip the ratio of a sequence, the geometric mean of its tokens' ratios, as PPO clips that of a token.

    With s = exp(mean of log ρ over the level's trained tokens), each log ρ clamped to ±20:
        r = sg(s) π / sg(π),  l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)).
    A token's loss has the value of s and the gradient by the token's own log-prob; over a sequence of one advantage
    these add up to the gradient of s, and tokens may have advantages of their own (GSPO-token). `level=turn` is the
    clip of AT2PO; `level=token` that of PPO. With `aggregation=seq-mean-token-sum` it is LUSPO: the sequence's loss
    times its length. A sequence is a row. Source: 2507.18071; 2601.04767 (turns); 2602.05261 (LUSPO).
    """

    level: Level = "sequence"
    """Whose ratio is clipped: a token's, a turn's or a row's."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """How far below 1 the ratio may fall before tokens with A < 0 stop training."""
    clip_high: float = Field(default=4e-4, ge=0)
    """How far above 1 the ratio may rise before tokens with A > 0 stop training."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the clipped loss of every token. Raises: InvalidInput: the turns of the rows are not known."""
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT).detach()
        own_BT = torch.where(mask_BT, batch.logprobs_BT - batch.logprobs_BT.detach(), 0.0)
        ratio_BT = (level_means(log_ratio_BT, batch, self.level) + own_BT).exp()
        advantages_BT = masked_advantages(batch.advantages_BT, mask_BT)
        clipped = clipped_objective(ratio_BT, advantages_BT, clip_low=self.clip_low, clip_high=self.clip_high)
        stats = loss_stats(log_ratio_BT, mask_BT, clipped_low_BT=clipped.low_BT, clipped_high_BT=clipped.high_BT)
        return TokenLoss(losses_BT=clipped.losses_BT, stats=stats)
