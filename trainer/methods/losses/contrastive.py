"""A contrastive term against prompt overfitting: the words of a task do not change the state that the policy sees."""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, relu

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss
from envgym.trainer.methods.requirements import Choices, Fault
from envgym.trainer.methods.row_ids import RowIds


class Contrastive(Settings):
    """Pull a state's representations under several prompts together, and push those of other tasks away.

    z is the hidden state before the first action, over its norm. With z of an episode as it was sampled, z_p of its
    state under prompt p, and z'_p of another task's under the same prompt, the loss of every trained token of the
    episode is

        mean over p and z' of max(0, |z - z_p|² - |z - z'_p|² + margin).

    Where there is nothing to compare it is 0: for a tree without the prompts, an update with one task, and rows that
    begin with a rewritten context. Measured: `distance_same` and `distance_other`, the means of |z - z_p|² and
    |z - z'_p|².

    Source: 2410.19920, as in the authors' code, which adds it to PPO with a coefficient of 1. Deviations: z is what the
    head reads, theirs is of a middle layer; the first state of an episode stands for it, theirs are all; it is compared
    with all other tasks of the update, theirs with one.
    """

    scope: ClassVar[str] = "update"

    prompts: tuple[str, ...] = Field(default=("reworded",), min_length=1)
    """Names in `Tree.prompts` of the other renderings of the first context; a curriculum asks for them."""
    margin: float = Field(default=1.0, ge=0)
    """By how much a state must lie nearer to itself than to others; squared distances are at most 4."""

    @property
    def state_prompts(self) -> tuple[str, ...]:
        return self.prompts

    def requires(self, choices: Choices) -> Fault | None:
        """Require two tasks per update, as it pushes the states of different tasks apart."""
        groups, minibatches = choices.rollout.groups, choices.optim.minibatches
        must = "be at least 2 for each minibatch with loss contrastive, which compares tasks"
        got, do = f"{groups} for {minibatches}", "raise it, or lower optim.minibatches"
        return Fault.unless(groups >= 2 * minibatches, "rollout.groups", must, got, do)

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token. Raises: InvalidInput: no states, or it is not known what the rows are of."""
        mask_BT, ids, z_BD = batch.loss_mask_BT, batch.named_rows, normalize(batch.states, dim=-1)
        begins = [row_id.row is None or row_id.row.rewrite is None for row_id in ids.ids]
        begins_B = mask_BT.any(dim=-1) & torch.tensor(begins, device=mask_BT.device)
        parts = [self._compare(z_BD, ids, begins_B, name) for name in self.prompts]
        compared_B = torch.stack([part.compares_B for part in parts]).sum(dim=0).clamp(min=1)

        def spread(of_prompts: Iterable[Float[Tensor, " B"]]) -> Float[Tensor, "B T"]:
            mean_B = torch.stack(list(of_prompts)).sum(dim=0) / compared_B
            return torch.where(mask_BT, mean_B[:, None], 0.0)

        return TokenLoss(
            losses_BT=spread(part.losses_B for part in parts),
            sums={
                "distance_same": spread(part.same_B for part in parts).sum().detach(),
                "distance_other": spread(part.other_B for part in parts).sum().detach(),
            },
        )

    def _compare(
        self, z_BD: Float[Tensor, "B D"], ids: RowIds, begins_B: Bool[Tensor, " B"], prompt: str
    ) -> "_Comparison":
        """Compare the first states of rows with those under a prompt."""
        places = [place for place, row_id in enumerate(ids.ids) if row_id.prompt == prompt]
        squares_BK = 2.0 - 2.0 * z_BD @ z_BD[places].T
        is_same_BK = ids.trees_B[:, None] == ids.trees_B[places]
        is_other_BK = ids.tasks_B[:, None] != ids.tasks_B[places]
        compares_B = begins_B & is_same_BK.any(dim=-1) & is_other_BK.any(dim=-1)
        is_other_BK = is_other_BK & compares_B[:, None]
        num_others_B = is_other_BK.sum(dim=-1).clamp(min=1)
        same_B = torch.where(is_same_BK & compares_B[:, None], squares_BK, 0.0).sum(dim=-1)
        hinges_BK = relu(same_B[:, None] - squares_BK + self.margin)
        return _Comparison(
            compares_B=compares_B,
            losses_B=torch.where(is_other_BK, hinges_BK, 0.0).sum(dim=-1) / num_others_B,
            same_B=same_B,
            other_B=torch.where(is_other_BK, squares_BK, 0.0).sum(dim=-1) / num_others_B,
        )


class _Comparison(NamedTuple):
    """Of each row; 0 where there is nothing to compare."""

    compares_B: Bool[Tensor, " B"]
    losses_B: Float[Tensor, " B"]
    same_B: Float[Tensor, " B"]
    other_B: Float[Tensor, " B"]
