"""The contract of a policy loss, what it is given and returns, and the statistics all of them share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envgym.config.plugins import PluginKind
from envgym.errors import InvalidInput, check_known
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.row_ids import RowIds
from envgym.trainer.methods.tensors import LOG_RATIO_BOUND, BatchStats, check_rows, masked_max, masked_min, masked_sum
from envgym.trainer.tables import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStats(BatchStats):
    """How far the policy moved from the one before the update: detached sums and counts over trained tokens.

    The caller divides by `tokens`.
    """

    tokens: Int[Tensor, ""]
    """Trained tokens."""
    ratio_sum: Float[Tensor, ""]
    """Σ π/π_old."""
    ratio_min: Float[Tensor, ""]
    """min π/π_old; +inf without trained tokens."""
    ratio_max: Float[Tensor, ""]
    """max π/π_old; -inf without trained tokens."""
    kl_sum: Float[Tensor, ""]
    """Σ k3 of KL(π_old || π), in nats."""
    clipped_low: Int[Tensor, ""]
    """Tokens with A < 0 whose gradient is cut because the ratio fell below the lower bound."""
    clipped_high: Int[Tensor, ""]
    """Tokens with A > 0 whose gradient is cut because the ratio rose above the upper bound."""
    clipped_dual: Int[Tensor, ""]
    """Tokens with A < 0 whose gradient is cut because the ratio rose above the dual clip's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBatch:
    """What a loss is given: whole rows, of which it reads what it needs. Under a False mask nothing is ever read."""

    logprobs_BT: Float[Tensor, "B T"]
    """Of the policy being trained, with gradient, nats."""
    old_logprobs_BT: Float[Tensor, "B T"]
    """Of the policy before the update, in the same packing and temperature, nats."""
    advantages_BT: Float[Tensor, "B T"]
    """Without gradient."""
    loss_mask_BT: Bool[Tensor, "B T"]
    """True = trains."""
    entropies_BT: Float[Tensor, "B T"] | None = None
    """Of the distribution that each token was drawn from, with gradient, nats."""
    behavior_logprobs_BT: Float[Tensor, "B T"] | None = None
    """As the sampler reported them, nats; 0 where the policy did not sample."""
    values_BT: Float[Tensor, "B T"] | None = None
    """The critic's, before the update, of the prefix before each token; None: there is no critic."""
    weights_BT: Float[Tensor, "B T"] | None = None
    """Share of the row in a token that several rows hold; None: 1."""
    ids: RowIds = field(default_factory=RowIds)
    """Episode, group, task, source and reward of each row; turn, segment, node and origin of each token."""
    scores: Mapping[str, Float[Tensor, "B T"]] = field(default_factory=dict)
    """Named extra numbers per token, without gradient, such as the log-probs of the `reference`."""
    step: int = 0
    """Train steps done before."""
    states_BD: Float[Tensor, "B D"] | None = None
    """For a loss that `ReadsStates`: what the model's head reads before each row's first trained token, with gradient;
    of a row with another first context (`RowId.prompt`), which trains nothing, before its last token."""

    def __post_init__(self) -> None:
        """Refuse tensors that would broadcast against the mask. Raises: InvalidInput."""
        tensors = {
            "logprobs": self.logprobs_BT,
            "old_logprobs": self.old_logprobs_BT,
            "advantages": self.advantages_BT,
            "entropies": self.entropies_BT,
            "behavior_logprobs": self.behavior_logprobs_BT,
            "values": self.values_BT,
            "weights": self.weights_BT,
            **{f"score {name}": values_BT for name, values_BT in self.scores.items()},
        }
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        check_rows(self.loss_mask_BT, present, where="a policy loss")
        states_BD, count = self.states_BD, len(self.loss_mask_BT)
        if states_BD is not None and (states_BD.ndim != 2 or len(states_BD) != count):
            got, do = list(states_BD.shape), "give one hidden state per row"
            raise InvalidInput.of("states", f"be [B, D] of {count} rows", got, where="a policy loss", do=do)

    def score(self, name: str) -> Float[Tensor, "B T"]:
        """Return the extra numbers of this name. Raises: UnknownName: there are none."""
        check_known("score", name, self.scores, where="a policy loss")
        return self.scores[name]

    @property
    def named_rows(self) -> RowIds:
        """The ids of the rows. Raises: InvalidInput: it is not known what the rows are of."""
        if len(self.ids.ids) != len(self.loss_mask_BT):
            do = "build the batch from rows"
            raise InvalidInput.of(
                "ids", f"name all {len(self.loss_mask_BT)} rows", len(self.ids.ids), where="a loss", do=do
            )
        return self.ids

    @property
    def entropies(self) -> Float[Tensor, "B T"]:
        """The entropies. Raises: InvalidInput: there are none."""
        if self.entropies_BT is None:
            raise InvalidInput.of("entropies", "be given", None, where="a policy loss", do="compute them")
        return self.entropies_BT

    @property
    def states(self) -> Float[Tensor, "B D"]:
        """The hidden states. Raises: InvalidInput: there are none."""
        if self.states_BD is None:
            raise InvalidInput.of("states", "be given", None, where="a policy loss", do="compute them")
        return self.states_BD


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The loss of every token, to be weighted and aggregated by the caller."""

    losses_BT: Float[Tensor, "B T"]
    """Exactly 0, with gradient 0, where the mask is False."""
    stats: LossStats | None = None
    """Detached; None: this loss clips nothing, and the caller measures the ratio."""
    sums: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)
    """What else is measured, by name: detached sums over trained tokens, reported as means `loss/<term>/<name>`."""


@runtime_checkable
class PolicyLoss(Protocol):
    """A loss per token from log-probabilities, advantages and whatever else a batch holds.

    A loss whose class says `scope = "update"` couples rows: it is given all rows of an update at once, whole groups
    among them. Any other is given some of them at a time, and may couple the tokens of a row alone. To one whose class
    says `is_corrected = False` no correction for the sampler applies. `aggregations` names the aggregations of ours
    that suit it; any suits a loss without it. `weighs_hints = True` says that it has a ratio for episodes that were
    sampled with a hint and train without it.
    """

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss to be minimised."""
        ...


LOSS: Final[PluginKind[PolicyLoss]] = KINDS["loss"]


@runtime_checkable
class ReadsStates(Protocol):
    """Is given hidden states: `LossBatch.states_BD`."""

    @property
    def state_prompts(self) -> tuple[str, ...]:
        """Names in `Tree.prompts`: under each, a tree's first state is given as a row of its own; () for none."""
        ...


def scope_of(loss: PolicyLoss) -> Literal["row", "update"]:
    """Return how many rows a loss must be given at once."""
    return "update" if getattr(loss, "scope", "row") == "update" else "row"


def is_corrected(loss: PolicyLoss) -> bool:
    """Return whether a correction for the sampler weighs and rejects the tokens of a loss."""
    return bool(getattr(loss, "is_corrected", True))


def log_ratio(
    logprobs_BT: Float[Tensor, "B T"], old_logprobs_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return log(π/π_old) clamped to ±20, and 0 with gradient 0 where the mask is False.

    The difference is masked before anything else is computed from it, so that no NaN enters the backward pass.
    """
    difference_BT = torch.where(loss_mask_BT, logprobs_BT - old_logprobs_BT, 0.0)
    return difference_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def masked_advantages(advantages_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the advantages, 0 where the mask is False."""
    return torch.where(loss_mask_BT, advantages_BT, 0.0)


def weighted_likelihood(
    batch: LossBatch, weights_BT: Float[Tensor, "B T"], advantages_BT: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return -A sg(w) log π: the gradient of a token's log-prob is weighed, and the weight itself has none."""
    return -advantages_BT * weights_BT.detach() * torch.where(batch.loss_mask_BT, batch.logprobs_BT, 0.0)


def loss_stats(
    log_ratio_BT: Float[Tensor, "B T"],
    loss_mask_BT: Bool[Tensor, "B T"],
    *,
    clipped_low_BT: Bool[Tensor, "B T"] | None = None,
    clipped_high_BT: Bool[Tensor, "B T"] | None = None,
    clipped_dual_BT: Bool[Tensor, "B T"] | None = None,
) -> LossStats:
    """Sum up a batch; None = this loss has no such clip."""
    log_ratio_BT = log_ratio_BT.detach()
    ratio_BT = log_ratio_BT.exp()

    def count(clipped_BT: Bool[Tensor, "B T"] | None) -> Int[Tensor, ""]:
        return (
            loss_mask_BT.new_zeros((), dtype=torch.int64) if clipped_BT is None else (clipped_BT & loss_mask_BT).sum()
        )

    return LossStats(
        tokens=loss_mask_BT.sum(),
        ratio_sum=masked_sum(ratio_BT, loss_mask_BT),
        ratio_min=masked_min(ratio_BT, loss_mask_BT),
        ratio_max=masked_max(ratio_BT, loss_mask_BT),
        kl_sum=masked_sum(k3(-log_ratio_BT), loss_mask_BT),
        clipped_low=count(clipped_low_BT),
        clipped_high=count(clipped_high_BT),
        clipped_dual=count(clipped_dual_BT),
    )
