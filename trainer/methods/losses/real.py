"""REAL: rewards as the labels of a classification."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from envgym.config.settings import Settings
from envgym.core.turns import REWARD_ROUNDING
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio
from envgym.trainer.methods.tensors import masked_sum


class Real(Settings):
    """Raise the scores of right episodes above those of wrong ones; advantages are not used.

    The score of an episode is s = mean of log π/π_old over its trained tokens (each clamped to ±20), over tau. A group
    with right and wrong episodes has the loss log(1 + Σ_wrong e^s) + log(1 + Σ_right e^-s), any other 0. It is laid on
    every token of the group, so that `aggregation=prompt-mean` gives the mean over groups of the paper.

    `form=bce` is the cross-entropy of each episode's score against its label, laid on the episode's tokens:
    log(1 + e^-s) of a right one, log(1 + e^s) of a wrong one; with one of each in a group it is the same loss.

    Source: 2602.05630.
    """

    scope: ClassVar[str] = "update"

    form: Literal["group", "bce"] = "group"
    """Whether episodes are compared within their group, or judged one by one."""
    tau: float = Field(default=0.5, gt=0)
    """The smaller, the sooner an episode counts as classified."""
    success_at: float = 1.0
    """An episode is right when its reward is at least this."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token. Raises: InvalidInput: it is not known what the rows are of."""
        ids, mask_BT = batch.named_rows, batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        names_E, episodes_B = ids.episodes_B.unique(return_inverse=True)
        zeros_E = log_ratio_BT.new_zeros(len(names_E))
        tokens_E = zeros_E.index_add(0, episodes_B, mask_BT.sum(-1).to(log_ratio_BT.dtype))
        sums_E = zeros_E.index_add(0, episodes_B, log_ratio_BT.sum(-1))
        scores_E = sums_E / tokens_E.clamp(min=1.0) / self.tau
        groups_E = ids.groups_B.new_zeros(len(names_E)).index_copy(0, episodes_B, ids.groups_B)
        is_right_B = ids.rewards_B >= self.success_at - REWARD_ROUNDING
        right_E = (tokens_E > 0).index_copy(0, episodes_B, is_right_B) & (tokens_E > 0)
        wrong_E = ~right_E & (tokens_E > 0)
        if self.form == "bce":
            losses_E = softplus(torch.where(right_E, -scores_E, scores_E))
        else:
            losses_E = _losses_of_groups(scores_E, groups_E[:, None] == groups_E, right_E, wrong_E)
        accuracy_E = torch.where(right_E, scores_E > 0, scores_E < 0).to(scores_E.dtype)
        return TokenLoss(
            losses_BT=torch.where(mask_BT, losses_E[episodes_B, None], 0.0),
            sums={"accuracy": masked_sum(accuracy_E[episodes_B, None].expand_as(log_ratio_BT), mask_BT)},
        )


def _losses_of_groups(
    scores_E: Float[Tensor, " E"],
    is_mate_EE: Bool[Tensor, "E E"],
    right_E: Bool[Tensor, " E"],
    wrong_E: Bool[Tensor, " E"],
) -> Float[Tensor, " E"]:
    def log_one_plus_sum(logits_E: Float[Tensor, " E"], counts_E: Bool[Tensor, " E"]) -> Float[Tensor, " E"]:
        terms_EE = logits_E.expand(len(logits_E), -1).masked_fill(~(is_mate_EE & counts_E), -torch.inf)
        return torch.cat([torch.zeros_like(logits_E)[:, None], terms_EE], dim=1).logsumexp(1)

    has_both_E = (is_mate_EE & right_E).any(1) & (is_mate_EE & wrong_E).any(1)
    return torch.where(has_both_E, log_one_plus_sum(scores_E, wrong_E) + log_one_plus_sum(-scores_E, right_E), 0.0)
