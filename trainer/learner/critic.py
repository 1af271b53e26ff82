"""The critic: a value head on a model's body, what it learns from, and its own optimizer.

It says the value of the prefix before a token, from the hidden state that also predicts the token: packs, shared
prefixes and padded rows are those of the log-probs. On the policy's body one pass serves both; a critic with weights of
its own has a body that learns the value loss alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.causal_lm import lm_head_of
from envgym.trainer.learner.logprobs import TokenHiddenStates
from envgym.trainer.learner.settings import CriticSettings, OptimSettings
from envgym.trainer.methods.losses import Denominator, TokenMean
from envgym.trainer.methods.tensors import check_rows, to_device
from envgym.trainer.metrics.update import Metrics, UpdateMetrics


def value_loss(
    values_BT: Float[Tensor, "B T"],
    targets_BT: Float[Tensor, "B T"],
    old_values_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    *,
    clip: float | None = None,
) -> Float[Tensor, "B T"]:
    """Return l = (V - R)² / 2; with a clip c the larger of that and ((V_old + clamp(V - V_old, ±c)) - R)² / 2.

    Clipped, a value stops learning once it is further than c from what it was before the update, on the target's side.

    Source: the clip is of the code of 1707.06347 (PPO).

    Args:
        values_BT: [B, T] V, with gradient.
        targets_BT: [B, T] R, without gradient.
        old_values_BT: [B, T] V_old, of the critic before the update; read only where there is a clip.
        mask_BT: [B, T] bool, True = supervised. What the other tensors hold under it is never read.
        clip: c > 0.

    Returns:
        [B, T], exactly 0, with gradient 0, where the mask is False.
    """
    check_rows(mask_BT, {"values": values_BT, "targets": targets_BT, "old_values": old_values_BT}, where="value_loss")
    losses_BT = torch.where(mask_BT, values_BT - targets_BT, 0.0).square()
    if clip is not None:
        moved_BT = torch.where(mask_BT, values_BT - old_values_BT, 0.0).clamp(-clip, clip)
        before_BT = torch.where(mask_BT, old_values_BT - targets_BT, 0.0)
        losses_BT = torch.maximum(losses_BT, (before_BT + moved_BT).square())
    return 0.5 * losses_BT


class ValueHead(nn.Module):
    """Say V(h) = w · ĥ / D + b with ĥ = h / rms(h), where w and b begin at 0, so that the first values are 0.

    With ĥ of size 1 and divided by the width D, one update of Adam moves a value by about the rate, whatever the
    model's width and scale: one rate suits all models. Computes in its own dtype, autocast or not.
    """

    def __init__(self, width: int, *, dtype: torch.dtype, device: torch.device) -> None:
        """Make a head that says 0 of everything."""
        super().__init__()
        self.weight_D = nn.Parameter(torch.zeros(width, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(self, hidden_SD: Float[Tensor, "S D"]) -> Float[Tensor, " S"]:
        with torch.autocast(hidden_SD.device.type, enabled=False):
            width = len(self.weight_D)
            normal_SD = nn.functional.rms_norm(hidden_SD.to(self.weight_D.dtype), (width,))
            return normal_SD @ self.weight_D / width + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedValueTargets:
    """Values before the update and their targets, for all rows, padded on the right."""

    values_NT: Float[Tensor, "N T"]
    targets_NT: Float[Tensor, "N T"]
    mask_NT: Bool[Tensor, "N T"]
    """Where it is supervised."""

    @classmethod
    def of_rows(cls, rows: Sequence[TrainRow], *, dtype: torch.dtype, device: torch.device) -> "PaddedValueTargets":
        """Pad the rows' value targets on the right."""
        shape = (len(rows), max(map(len, rows)))
        values_NT, targets_NT = (torch.zeros(shape, dtype=dtype) for _ in range(2))
        mask_NT = torch.zeros(shape, dtype=torch.bool)
        for number, row in enumerate(rows):
            for place, value_target in row.supervised:
                values_NT[number, place], targets_NT[number, place] = value_target
                mask_NT[number, place] = True
        return to_device(cls(values_NT=values_NT, targets_NT=targets_NT, mask_NT=mask_NT), device)

    def metrics(self) -> Metrics:
        """Return means, and the share of the targets' variance that the values explain, where they have some."""
        values_S, targets_S = self.values_NT[self.mask_NT].double(), self.targets_NT[self.mask_NT].double()
        if not len(targets_S):
            return {}
        metrics = {"critic/value": values_S.mean().item(), "critic/target": targets_S.mean().item()}
        variance = targets_S.var(correction=0).item()
        if variance > 0:
            metrics["critic/explained_variance"] = 1 - (targets_S - values_S).var(correction=0).item() / variance
        return metrics


class Critic:
    """A value head that learns beside the policy."""

    def __init__(
        self, model: nn.Module, settings: CriticSettings, optim: OptimSettings, *, device: torch.device
    ) -> None:
        """Begin with values of 0.

        Args:
            model: whose hidden states it reads.
            settings: of the critic.
            optim: of the model, whose betas, eps and largest norm hold here too.
            device: where the model is.
        """
        weight_VD = lm_head_of(model).weight_VD
        dtype = torch.promote_types(weight_VD.dtype, torch.float32)
        self.settings = settings
        self.head = ValueHead(weight_VD.shape[1], dtype=dtype, device=device)
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(), lr=settings.lr, betas=optim.betas, eps=optim.eps, weight_decay=0.0
        )
        self._max_norm = optim.grad_clip

    def values(self, states: TokenHiddenStates) -> Float[Tensor, "B T"]:
        """Return the value of the prefix before each trained token, in rows; 0 elsewhere."""
        hidden_SD = states.hidden_SD.detach() if self.settings.detach else states.hidden_SD
        return states.to_rows(self.head(hidden_SD))

    def loss(
        self,
        states: TokenHiddenStates,
        batch: MicroBatch,
        value_targets: PaddedValueTargets,
        *,
        denominator: Denominator,
        metrics: UpdateMetrics,
    ) -> Float[Tensor, ""]:
        """Return a micro-batch's share of coef x the mean of the value loss over the update's supervised tokens.

        Args:
            states: of the micro-batch, with gradient.
            batch: the rows.
            value_targets: of all rows.
            denominator: of the whole update, see `supervised_tokens`.
            metrics: the micro-batch is added to them.
        """
        mask_BT = value_targets.mask_NT[batch.row_slice] & batch.loss_mask_BT
        losses_BT = value_loss(
            self.values(states),
            value_targets.targets_NT[batch.row_slice],
            value_targets.values_NT[batch.row_slice],
            mask_BT,
            clip=self.settings.clip,
        )
        metrics.add_value_loss(losses_BT, mask_BT)
        mean = TokenMean()(losses_BT, mask_BT, batch.weights_BT, denominator=denominator)
        return self.settings.coef * mean

    def clip_gradient(self) -> float:
        """Clip the norm of the critic's gradient, apart from the policy's; return it before clipping."""
        return nn.utils.clip_grad_norm_(self.head.parameters(), self._max_norm).item()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next update depends on."""
        return {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])


def supervised_tokens(rows: Sequence[TrainRow]) -> Denominator:
    """Count what the value loss of an update is divided by: supervised tokens, each with its row weight."""
    return Denominator(
        tokens=math.fsum(row.weights[place] for row in rows for place, _ in row.supervised), sequences=0.0
    )
