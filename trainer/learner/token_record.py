"""What the learner computes of every trained token in one train step, kept for people to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from envgym.trainer.batch.rows import MicroBatch, TrainRow

LEARNER_LOGPROBS: Final = "learner_logprobs"
"""Of the policy before the step's first update, at the temperature of sampling, nats."""
ENTROPIES: Final = "entropies"
"""Of the distribution that the token was drawn from, nats, when the learner first computed its gradient."""
RATIOS: Final = "ratios"
"""Probability under the policy of the last update, over that under the old policy of the loss; 1 in a single update."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Of the rows of a micro-batch, as it was first seen; the ratios are those of the last time."""

    rows: tuple[int, ...]
    learner_logprobs_BT: Float[Tensor, "B T"]
    entropies_BT: Float[Tensor, "B T"]
    ratios_BT: Float[Tensor, "B T"]


class TokenRecord:
    """Log-probs, entropies and ratios of the tokens of one train step, on their device until they are read."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, ...], _Part] = {}

    def add(
        self,
        batch: MicroBatch,
        *,
        logprobs_BT: Float[Tensor, "B T"],
        entropies_BT: Float[Tensor, "B T"] | None,
        old_logprobs_BT: Float[Tensor, "B T"],
        learner_logprobs_BT: Float[Tensor, "B T"],
    ) -> None:
        """Add what one pass computed of a micro-batch.

        Args:
            batch: the rows.
            logprobs_BT: of the pass, nats.
            entropies_BT: of the pass, nats; None: not computed.
            old_logprobs_BT: of the old policy, as the loss reads them.
            learner_logprobs_BT: of the learner's policy before the step.
        """
        if not len(batch.scored_S):  # a pass of a rank that has no rows left
            return
        ratios_BT = (logprobs_BT.detach() - old_logprobs_BT.detach()).exp()
        part = self._parts.get(batch.rows)
        if part is None:
            entropies_BT = torch.zeros_like(ratios_BT) if entropies_BT is None else entropies_BT.detach()
            part = _Part(batch.rows, learner_logprobs_BT.detach(), entropies_BT, ratios_BT)
        self._parts[batch.rows] = replace(part, ratios_BT=ratios_BT)

    def extend(self, other: "TokenRecord") -> None:
        """Add the rows of another process."""
        self._parts |= other._parts

    def cpu(self) -> "TokenRecord":
        """Return a copy on the CPU, to be sent."""
        copy = TokenRecord()
        for rows, part in self._parts.items():
            numbers = (part.learner_logprobs_BT, part.entropies_BT, part.ratios_BT)
            copy._parts[rows] = _Part(rows, *(of.cpu() for of in numbers))
        return copy

    def of_rows(self, rows: Sequence[TrainRow]) -> dict[str, list[list[float]]]:
        """Return the columns by name: for each row one number per token, which means nothing outside the loss mask.

        Args:
            rows: the first of those of the step, whose numbers the micro-batches held; one that no update read is of
                zeros.
        """
        by_name: Mapping[str, list[list[float]]] = {
            name: [[0.0] * len(row) for row in rows] for name in (LEARNER_LOGPROBS, ENTROPIES, RATIOS)
        }
        for part in self.cpu()._parts.values():
            columns = (part.learner_logprobs_BT, part.entropies_BT, part.ratios_BT)
            for of_rows, numbers in zip(by_name.values(), columns, strict=True):
                for row, values in zip(part.rows, numbers.tolist(), strict=True):
                    if row < len(rows):
                        of_rows[row] = values[: len(rows[row])]
        return dict(by_name)
