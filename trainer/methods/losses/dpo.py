"""DPO and step-DPO: the log-ratio of preferred siblings above that of the others."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from envgym.config.settings import Settings
from envgym.core.pairs import Pair, Which, child_pairs, preference_pairs, sibling_pairs
from envgym.errors import InvalidInput
from envgym.trainer.methods.losses.aggregate import Aggregation, TokenSum
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.methods.scores import ScoreRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """What is compared of a batch: K siblings, each the owner of some tokens, and which of them are pairs."""

    owners_BT: Int[Tensor, "B T"]
    """The sibling that a token belongs to, from 0; -1: none."""
    weights_BT: Float[Tensor, "B T"]
    """Weight of a token in the log-ratio of its sibling."""
    pairs: Sequence[Pair[int]]
    """Of siblings that own trained tokens."""


class PairLoss(Settings, ABC):
    """-log sigmoid(m) over pairs of siblings, m = beta ((l_c - ref_c) - (l_r - ref_r)), meaned over the pairs.

    l is the log-prob of a sibling's tokens under the policy, ref the same under the reference. Each pair's share of the
    mean is laid on the tokens of its preferred sibling, by their row weights, so that with the aggregation `token-sum`
    the objective is the mean over the pairs of the update; without a pair it is 0, and so is the gradient. A pair
    compares whole siblings, whoever sampled them: a correction for the sampler does not apply.
    """

    scope: ClassVar[str] = "update"
    is_corrected: ClassVar[bool] = False
    aggregations: ClassVar[tuple[type[Aggregation], ...]] = (TokenSum,)

    beta: float = Field(default=0.1, gt=0)
    """How far the policy may leave the reference: the larger, the less."""
    reference: Literal["reference", "old", "behavior"] = "reference"
    """Whose log-probs are subtracted: those of the model called `reference` (the policy as the run began, unless
    `models` has another), of the policy before the update, or of the
    policy that sampled."""
    pairs: Which = "all"
    """Every two siblings of different reward, or the best against the worst."""
    min_margin: float = Field(default=0.0, ge=0)
    """Two siblings whose rewards differ by no more are no pair."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        """The log-probs of the model called `reference`, where they are subtracted."""
        return (ScoreRequest(name=REFERENCE, model=REFERENCE),) if self.reference == "reference" else ()

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        siblings = self.siblings(batch) if mask_BT.any() else None
        if siblings is None or not siblings.pairs:
            return TokenLoss(losses_BT=torch.where(mask_BT, batch.logprobs_BT, 0.0) * 0.0)
        is_owned_BT = mask_BT & (siblings.owners_BT >= 0)
        owners = siblings.owners_BT[is_owned_BT]
        row_weights_BT = torch.ones_like(batch.logprobs_BT) if batch.weights_BT is None else batch.weights_BT
        weights = batch.logprobs_BT.new_zeros(int(owners.max()) + 1)
        weights = weights.index_add(0, owners, row_weights_BT[is_owned_BT].to(weights.dtype))
        ratios_BT = (batch.logprobs_BT - self._reference(batch)) * siblings.weights_BT
        ratios = ratios_BT.new_zeros(len(weights)).index_add(0, owners, ratios_BT[is_owned_BT])
        chosen, rejected = (
            torch.tensor([getattr(pair, name) for pair in siblings.pairs], device=owners.device)
            for name in ("chosen", "rejected")
        )
        margins = self.beta * (ratios[chosen] - ratios[rejected])
        shares = ratios.new_zeros(len(weights)).index_add(0, chosen, -logsigmoid(margins) / len(siblings.pairs))
        of_tokens = shares / torch.where(weights > 0, weights, 1.0)
        losses_BT = torch.zeros_like(ratios_BT).masked_scatter(is_owned_BT, of_tokens[owners])
        measured = {"margin": margins.detach(), "accuracy": (margins.detach() > 0).to(margins.dtype)}
        sums = {name: values.mean() * mask_BT.sum() for name, values in measured.items()}
        return TokenLoss(losses_BT=losses_BT, sums=sums)

    def _reference(self, batch: LossBatch) -> Float[Tensor, "B T"]:
        if self.reference == "reference":
            return batch.score(REFERENCE)
        if self.reference == "old":
            return batch.old_logprobs_BT
        if batch.behavior_logprobs_BT is None:
            do = "choose another loss.reference"
            raise InvalidInput.of("behavior_logprobs", "be given", None, where="DPO", do=do)
        return batch.behavior_logprobs_BT

    @abstractmethod
    def siblings(self, batch: LossBatch) -> Siblings:
        """Return the siblings of a batch and their pairs."""


class Dpo(PairLoss):
    """Compare the episodes of a group: m = beta (sum of log-ratios of the better one - that of the worse one).

    `per="token"` divides each sum by the episode's trained tokens, as TÜLU 3 does (`dpo_norm`, beta 5); `per="turn"` by
    its turns, as iStar does. Source: 2305.18290, with pairs from the rewards of a group; 2411.15124; 2509.19199.
    """

    per: Literal["episode", "token", "turn"] = "episode"
    """What the sum of an episode's log-ratios is divided by: 1, its trained tokens, or its turns that have some."""

    def siblings(self, batch: LossBatch) -> Siblings:
        """Return the episodes."""
        ids, mask_BT = batch.ids, batch.loss_mask_BT
        rewards: dict[int, dict[int, float]] = {}
        for row_id, trains in zip(ids.ids, mask_BT.any(1).tolist(), strict=True):
            if trains:
                rewards.setdefault(row_id.group, {})[row_id.episode] = row_id.reward
        owners_BT = torch.where(mask_BT, ids.episodes_B[:, None], -1)
        weights_BT = torch.ones_like(batch.logprobs_BT)
        if self.per != "episode":
            counts = self._counts(owners_BT, ids.turns_BT)
            weights_BT = weights_BT / counts[owners_BT.clamp(min=0)].clamp(min=1)
        by_group = [preference_pairs(group, which=self.pairs, min_margin=self.min_margin) for group in rewards.values()]
        return Siblings(owners_BT=owners_BT, weights_BT=weights_BT, pairs=[p for pairs in by_group for p in pairs])

    def _counts(self, owners_BT: Int[Tensor, "B T"], turns_BT: Int[Tensor, "B T"]) -> Int[Tensor, " K"]:
        """Return the trained tokens, or the turns that have some, of every episode."""
        is_owned_BT = owners_BT >= 0
        owners = owners_BT[is_owned_BT]
        if self.per == "turn":
            owners = torch.stack([owners, turns_BT[is_owned_BT]]).unique(dim=1)[0]
        return torch.bincount(owners)


class StepDpo(PairLoss):
    """Compare the branches below one node: the tokens of two children of it, after the context that they share.

    A child is worth the mean reward of the group's episodes through it, or with `by="advantage"` what the credit gave
    it, such as a process-reward model's value of it (`credit=annotated_turns`): online DPO. A step whose tokens are in
    several rows counts in each with its share. The children of the prompt are the first nodes of the group's trees,
    so chains of one turn give DPO's pairs. Source: 2406.18629 (Step-DPO), with branches of a search in place of
    corrected steps; 2502.10325 (AgentPRM), with siblings ranked by a process-reward model.
    """

    by: Literal["reward", "advantage"] = "reward"
    """What a child is worth."""

    def siblings(self, batch: LossBatch) -> Siblings:
        """Return the nodes."""
        nodes_BT, mask_BT = batch.ids.nodes_BT, batch.loss_mask_BT
        names, owners = nodes_BT[mask_BT].unique(return_inverse=True)
        owners_BT = torch.full_like(nodes_BT, -1).masked_scatter(mask_BT, owners)
        rows_BT = torch.arange(len(nodes_BT), device=nodes_BT.device)[:, None].expand_as(nodes_BT)
        num_rows = torch.bincount(torch.stack([owners, rows_BT[mask_BT]]).unique(dim=1)[0], minlength=len(names))
        weights_BT = 1.0 / num_rows[owners_BT.clamp(min=0)].to(batch.logprobs_BT.dtype)
        place = {name: number for number, name in enumerate(names.tolist())}
        paths, rewards = _paths(batch.ids.ids, nodes_BT)
        if self.by == "reward":
            preferences = sibling_pairs(paths, rewards, which=self.pairs, min_margin=self.min_margin)
        else:
            advantages = batch.advantages_BT.new_zeros(len(names)).index_add(0, owners, batch.advantages_BT[mask_BT])
            values = dict(zip(names.tolist(), (advantages / torch.bincount(owners)).tolist(), strict=True))
            preferences = child_pairs(paths, values, which=self.pairs, min_margin=self.min_margin)
        pairs = [
            Pair(place[chosen], place[rejected], margin)
            for chosen, rejected, margin in preferences
            if chosen in place and rejected in place
        ]
        return Siblings(owners_BT=owners_BT, weights_BT=weights_BT, pairs=pairs)


def _paths(ids: Sequence[RowId], nodes_BT: Int[Tensor, "B T"]) -> tuple[list[list[Hashable]], list[float]]:
    """Return the nodes of every episode below its group's prompt, as they are numbered in the batch, and its reward."""
    paths: dict[int, list[Hashable]] = {}
    rewards: dict[int, float] = {}
    for row_id, nodes in zip(ids, nodes_BT.tolist(), strict=True):
        if row_id.row is not None:
            path = paths.setdefault(row_id.episode, [("prompt", row_id.group)])
            pairs = zip(row_id.row.nodes, nodes, strict=False)  # the row, without its padding
            path += dict.fromkeys(name for node, name in pairs if node)
            rewards[row_id.episode] = row_id.reward
    return list(paths.values()), list(rewards.values())
