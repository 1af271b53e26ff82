"""SIREN: the entropy of a response's highest-entropy tokens is kept at its initial value."""

import json
from pathlib import Path
from typing import ClassVar, Final

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from envgym.config.settings import Settings
from envgym.runs.files import write_json
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss

_FILE: Final = "target.json"


class Siren(Settings):
    """Return (H̄ - H₀)² at every trained token of an update: entropy above H₀ is lowered, below it raised.

    H̄ is the mean over responses of the mean entropy of their peaks: the tokens above the `quantile` of the response's
    own entropies. A row is a response; one without a peak is left out, and where none has any the loss is 0. H₀ is H̄
    of the first update that has one, or `target`. Measured: `peak_entropy`, H̄.

    Source: 2509.25133, a term beside Dr. GRPO's with a coefficient of 0.005. There H is of the most probable tokens
    that hold 0.8 of the mass, here that of the whole distribution.
    """

    scope: ClassVar[str] = "update"

    quantile: float = Field(default=0.8, gt=0, lt=1)
    """Share of a response's tokens below which none counts."""
    target: float | None = Field(default=None, ge=0)
    """H₀, nats; null: that of the first update."""
    _first: float | None = PrivateAttr(default=None)

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token. Raises: InvalidInput: the batch holds no entropies."""
        mask_BT, entropies_BT = batch.loss_mask_BT, batch.entropies
        rows = [entropies[mask] for entropies, mask in zip(entropies_BT, mask_BT, strict=True)]
        means = [peaks.mean() for row in rows if len(peaks := self._peaks(row))]
        if not means:
            return TokenLoss(losses_BT=torch.where(mask_BT, entropies_BT, 0.0) * 0.0)
        entropy = torch.stack(means).mean()
        target = self._first if self.target is None else self.target
        if target is None:
            target = self._first = entropy.item()
        losses_BT = torch.where(mask_BT, (entropy - target).square(), 0.0)
        return TokenLoss(losses_BT=losses_BT, sums={"peak_entropy": entropy.detach() * mask_BT.sum()})

    def _peaks(self, entropies_T: Tensor) -> Tensor:
        if not len(entropies_T):
            return entropies_T
        return entropies_T[entropies_T > entropies_T.detach().quantile(self.quantile)]

    def save(self, folder: Path) -> None:
        """Write H₀ of the first update."""
        write_json(folder / _FILE, {"first": self._first})

    def load(self, folder: Path) -> None:
        self._first = json.loads((folder / _FILE).read_text())["first"]
