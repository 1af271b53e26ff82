"""Metrics of updates: sums while they run, means at the end."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.trainer.methods.corrections import CorrectionStats
from envgym.trainer.methods.losses import LossStats

Metrics = dict[str, float]
"""Flat names such as `loss/entropy`, with their values."""


class _Sum:
    """A sum of numbers that stay on their device until it is read: reading one waits for all work before it."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, number: Float[Tensor, ""]) -> None:
        self._parts.append(number.detach())

    def extend(self, other: "_Sum") -> None:
        """Add the numbers of another sum after these."""
        self._parts += other._parts

    def read(self) -> float:
        """Return the sum, added up in double precision in the order given."""
        total = 0.0
        for part in torch.stack(self._parts).tolist() if self._parts else ():
            total += part
        return total


class UpdateMetrics:
    """Sums over the micro-batches of one train step; read and divided once, at the end."""

    def __init__(self) -> None:
        self._stats: LossStats | None = None
        self.correction: CorrectionStats | None = None
        self._loss, self._entropy, self._tokens = _Sum(), _Sum(), _Sum()
        self._sums: dict[str, _Sum] = defaultdict(_Sum)
        self._counts: dict[str, _Sum] = defaultdict(_Sum)
        """Of what else is measured, by name: its sum, and the tokens that the sum is over."""
        self._coefs: Metrics = {}
        self._value_loss, self._supervised = _Sum(), _Sum()

    def add_policy(
        self,
        stats: LossStats,
        losses_BT: Float[Tensor, "B T"],
        entropies_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
        *,
        coef: float | None = None,
    ) -> None:
        """Add a micro-batch's policy loss, before its coefficient, if it has one."""
        if coef is not None:
            self._coefs["coef/policy"] = coef
        self._stats = stats if self._stats is None else self._stats + stats
        self._loss.add(losses_BT.detach().sum())
        self._entropy.add(torch.where(loss_mask_BT, entropies_BT.detach(), 0.0).sum())
        self._tokens.add(loss_mask_BT.sum())

    def add_term(
        self, name: str, losses_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], *, coef: float
    ) -> None:
        """Add a micro-batch's losses of a further term of the objective, before its coefficient."""
        self._coefs[f"coef/{name}"] = coef
        self._add(f"loss/{name}", losses_BT.detach().sum(), mask_BT)

    def add_sums(self, term: str, sums: Mapping[str, Float[Tensor, ""]], mask_BT: Bool[Tensor, "B T"]) -> None:
        """Add what else a term's loss has measured: sums over its tokens."""
        for name, value in sums.items():
            self._add(f"loss/{term}/{name}", value, mask_BT)

    def _add(self, name: str, value: Float[Tensor, ""], mask_BT: Bool[Tensor, "B T"]) -> None:
        self._sums[name].add(value)
        self._counts[name].add(mask_BT.sum())

    def add_value_loss(self, losses_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> None:
        """Add a micro-batch's losses of the critic."""
        self._value_loss.add(losses_BT.detach().sum())
        self._supervised.add(mask_BT.sum())

    def add_correction(self, stats: CorrectionStats) -> None:
        """Add a micro-batch's correction."""
        self.correction = stats if self.correction is None else self.correction + stats

    def extend(self, other: "UpdateMetrics") -> None:
        """Add the micro-batches that another rank has counted."""
        if other._stats is not None:
            self._stats = other._stats if self._stats is None else self._stats + other._stats
        if other.correction is not None:
            self.add_correction(other.correction)
        for own, added in (
            (self._loss, other._loss),
            (self._entropy, other._entropy),
            (self._tokens, other._tokens),
            (self._value_loss, other._value_loss),
            (self._supervised, other._supervised),
            *((self._sums[name], value) for name, value in other._sums.items()),
            *((self._counts[name], value) for name, value in other._counts.items()),
        ):
            own.extend(added)
        self._coefs |= other._coefs

    def means(self) -> Metrics:
        """Return means over the trained tokens; {} without a token."""
        trained_tokens = self._tokens.read()
        if self._stats is None or not trained_tokens:
            return {}
        stats, tokens = self._stats, max(int(self._stats.tokens), 1)
        means = {
            "loss/policy": self._loss.read() / trained_tokens,
            "loss/entropy": self._entropy.read() / trained_tokens,
            "loss/kl_old": stats.kl_sum.item() / tokens,
            "loss/clip_low": stats.clipped_low.item() / tokens,
            "loss/clip_high": stats.clipped_high.item() / tokens,
            "loss/clip_dual": stats.clipped_dual.item() / tokens,
            "ratio/mean": stats.ratio_sum.item() / tokens,
            "ratio/min": stats.ratio_min.item(),
            "ratio/max": stats.ratio_max.item(),
            "train/trained_tokens": trained_tokens,
        }
        means |= {name: value.read() / max(self._counts[name].read(), 1.0) for name, value in self._sums.items()}
        means |= self._coefs
        return means | self.value_means()

    def value_means(self) -> Metrics:
        """Return the critic's loss per supervised token; {} without one."""
        supervised = self._supervised.read()
        return {"loss/value": self._value_loss.read() / supervised} if supervised else {}


def correction_metrics(stats: CorrectionStats) -> Metrics:
    """Return the log-prob gap between sampler and trainer, and what the correction did about it."""
    tokens = max(int(stats.tokens), 1)
    weight, square = stats.weight_sum.item(), stats.weight_square_sum.item()
    return {
        "logprob_gap/mean_abs": stats.gap_sum.item() / tokens,
        "logprob_gap/max_abs": stats.gap_max.item(),
        "logprob_gap/kl": stats.kl_sum.item() / tokens,
        "logprob_gap/truncated": stats.truncated_tokens.item() / tokens,
        "logprob_gap/rejected": stats.rejected_tokens.item() / tokens,
        "logprob_gap/rejected_rows": stats.rejected_rows.item() / max(int(stats.rows), 1),
        "logprob_gap/effective_samples": weight * weight / (square * tokens) if square else 0.0,
    }
