"""The plain policy gradient."""

import torch

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, masked_advantages, weighted_likelihood
from envgym.trainer.methods.requirements import Choices, Fault


class Reinforce(Settings):
    """Weigh the log-probability of a token with its advantage: l = -A log π.

    The ratio to the old policy enters the statistics only: off-policy samples need a correction.

    Source: Williams 1992, doi:10.1007/BF00992696.
    """

    def requires(self, choices: Choices) -> Fault | None:
        """Require of the policy's loss one update per step, as rows are off-policy afterwards, and no old policy."""
        if choices.loss is not self:
            return None
        why = "with loss reinforce, which has no importance ratio"
        for setting, count in (("epochs", choices.optim.epochs), ("minibatches", choices.optim.minibatches)):
            if count > 1:
                return Fault(f"optim.{setting}", f"be 1 {why}", str(count), "set it to 1, or loss.name=ppo_clip")
        holds = (
            choices.objective.old_policy != "rollout" or not choices.correction.is_identity or len(choices.terms) > 1
        )
        do = "set loss.name=ppo_clip, or a correction"
        return Fault.unless(holds, "objective.old_policy", f"be recomputed {why}", "rollout", do)

    def __call__(self, batch: LossBatch) -> TokenLoss:
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        return TokenLoss(losses_BT=weighted_likelihood(batch, torch.ones_like(advantages_BT), advantages_BT))
