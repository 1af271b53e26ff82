"""No correction, but the gap is still measured."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.settings import Settings
from envgym.trainer.methods.corrections.base import CorrectionResult, behavior_gap, correction_result


class NoCorrection(Settings):
    """Trust the sampler: weight 1 for every trained token."""

    is_identity: ClassVar[bool] = True
    only_masks: ClassVar[bool] = True

    def __call__(
        self,
        *,
        old_logprobs_BT: Float[Tensor, "B T"],
        behavior_logprobs_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> CorrectionResult:
        """Return weights of 1 and the mask as it is; arguments as for `Correction`."""
        gap_BT = behavior_gap(old_logprobs_BT, behavior_logprobs_BT, loss_mask_BT)
        return correction_result(
            torch.ones_like(gap_BT),
            loss_mask_BT,
            gap_BT=gap_BT,
            loss_mask_BT=loss_mask_BT,
            truncated_BT=torch.zeros_like(loss_mask_BT),
        )
