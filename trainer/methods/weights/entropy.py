"""Entropy weights: at tokens of high entropy, positive advantages are raised and negative ones reduced."""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.scores import ScoreRequest
from envgym.trainer.methods.weights.forking_tokens import ENTROPIES

LEAST_ENTROPY = 1e-6
"""Nats; keeps 1 / H finite where the policy is certain."""


class EntropyWeights(Settings):
    """Weigh tokens by their entropy among their peers: A'_t = A_t (1 - share + share · w_t / mean w of the peers).

    Peers are the tokens at the same place (the t-th sampled one of its row) of the group's rows whose advantage has
    the same sign there; w_t = H_t where A_t > 0, and 1 / H_t where A_t < 0. So the peers' factors have mean 1.

    Source: after 2508.04349 (GTPO), which shapes rewards so, with the lengths of the right and wrong answers that
    reach place t. Deviations: advantages are weighed and not standardised again, peers have the sign of the advantage
    instead of the outcome, the entropy is that of the policy as the step begins.
    """

    share: float = Field(default=0.1, ge=0, le=1)
    """How much of an advantage is dealt out by entropy; 0 changes nothing."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        return (ENTROPIES,)

    def __call__(self, batch: LossBatch) -> Float[Tensor, "N T"]:
        advantages_NT, mask_NT = batch.advantages_BT, batch.loss_mask_BT & (batch.advantages_BT != 0)
        entropies_NT = batch.score(ENTROPIES.name).clamp(min=LEAST_ENTROPY)
        weights_S = torch.where(advantages_NT > 0, entropies_NT, 1.0 / entropies_NT)[mask_NT]
        places_NT = batch.loss_mask_BT.cumsum(dim=1) - 1
        groups_NT = batch.ids.groups_B[:, None].expand_as(places_NT)
        peers = torch.stack([groups_NT, places_NT, (advantages_NT > 0).long()], dim=-1)[mask_NT]
        _, peer_S, counts = torch.unique(peers, dim=0, return_inverse=True, return_counts=True)
        means = torch.zeros(len(counts), dtype=weights_S.dtype).index_add(0, peer_S, weights_S) / counts
        factors_NT = torch.ones_like(advantages_NT)
        factors_NT[mask_NT] = 1.0 - self.share + self.share * weights_S / means[peer_S]
        return advantages_NT * factors_NT
