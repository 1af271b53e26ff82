"""Sample one token for every row of a batch, each row by its own rules and from its own random number.

What a row gets depends on its logits, its rules and its number alone, never on the other rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from envgym.agents.protocols import Sampling

_BELOW_ONE = 1.0 - 1e-12
"""Keeps `number * total` below `total` in floating point."""
_BLOCK = 256
"""Tokens whose probabilities are summed before they are searched: of a large vocabulary one block is, not all of it."""


class SampledTokens(NamedTuple):
    """One token per row, on the device."""

    tokens: Tensor
    """[B] int64."""
    behavior_logprobs: Tensor
    """[B] nats under the distribution sampled from."""
    raw_logprobs: Tensor
    """[B] nats at temperature 1 over the whole vocabulary; not finite where the logits were not."""
    top: torch.return_types.topk | None
    """[B, k] the most probable tokens (`indices`) and their log-probs (`values`); None where no row asks for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """How the rows of a batch sample, on the device; made when the batch changes, not for every token."""

    temperatures: Tensor
    """[B, 1]; 1 where the row is greedy."""
    greedy: Tensor | None
    """[B] bool; None: no row is."""
    truncated: Tensor | None
    """Rows that use top-p or top-k; None: no row does."""
    top_p: Tensor
    """[rows of `truncated`, 1]."""
    top_k: Tensor
    """[rows of `truncated`, 1]."""
    has_temperature: bool
    """Whether any temperature differs from 1."""
    num_top: int
    """Most of the most probable tokens that a row asks for."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocabulary: int, device: torch.device) -> Self:
        """Collect the rules of a batch's requests."""
        temperatures = [item.temperature if item.temperature > 0 else 1.0 for item in samplings]
        greedy = [item.temperature == 0 for item in samplings]
        cut = [
            row
            for row, item in enumerate(samplings)
            if item.temperature > 0 and (item.top_p < 1 or 0 < item.top_k < vocabulary)
        ]
        return cls(
            temperatures=torch.tensor(temperatures, device=device)[:, None],
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
            truncated=torch.tensor(cut, device=device) if cut else None,
            top_p=torch.tensor([samplings[row].top_p for row in cut], device=device)[:, None],
            top_k=torch.tensor([samplings[row].top_k or vocabulary for row in cut], device=device)[:, None],
            has_temperature=any(value != 1.0 for value in temperatures),
            num_top=min(max((item.top_logprobs for item in samplings), default=0), vocabulary),
        )


def sample(logits_BV: Tensor, rules: SamplingRules, numbers_B: Tensor) -> SampledTokens:
    """Sample by inversion: the first token, in vocabulary order, whose cumulative probability exceeds the number.

    Temperature first, then top-k, then top-p over what top-k left, renormalised; greedy rows take the largest logit.

    Args:
        logits_BV: [B, V] float32, at temperature 1.
        rules: of the B rows.
        numbers_B: [B] float64 in [0, 1).
    """
    scores_BV = logits_BV / rules.temperatures if rules.has_temperature else logits_BV
    if rules.truncated is not None:
        if scores_BV is logits_BV:
            scores_BV = scores_BV.clone()
        truncated_scores = _truncated(scores_BV[rules.truncated], rules.top_p, rules.top_k)
        scores_BV[rules.truncated] = truncated_scores
    shares_BV, norms_B = _normalized(scores_BV)
    raw_norms_B = norms_B if scores_BV is logits_BV else _normalized(logits_BV)[1]
    tokens_B1 = _invert(shares_BV, numbers_B)
    if rules.greedy is not None:
        tokens_B1 = torch.where(rules.greedy[:, None], logits_BV.argmax(dim=-1, keepdim=True), tokens_B1)
    behavior_B = scores_BV.gather(-1, tokens_B1)[:, 0] - norms_B
    if rules.greedy is not None:
        behavior_B = torch.where(rules.greedy, torch.zeros_like(behavior_B), behavior_B)
    raw_B = logits_BV.gather(-1, tokens_B1)[:, 0] - raw_norms_B
    top = torch.topk(scores_BV - norms_B[:, None], rules.num_top, dim=-1) if rules.num_top else None
    return SampledTokens(tokens_B1[:, 0], behavior_B, raw_B, top)


def _normalized(scores_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities [B, V] and the log-sum-exp [B], which is the largest score less its log-probability."""
    shares_BV = torch.softmax(scores_BV, dim=-1)
    return shares_BV, scores_BV.amax(dim=-1) - shares_BV.amax(dim=-1).log()


def _invert(shares_BV: Tensor, numbers_B: Tensor) -> Tensor:
    """Return [B, 1] the first tokens whose cumulative share exceeds that part of the total; never one without a share.

    Of shares that are not finite, some token.
    """
    vocabulary = shares_BV.shape[-1]
    if missing := -vocabulary % _BLOCK:
        shares_BV = functional.pad(shares_BV, (0, missing))
    blocks_BNK = shares_BV.unflatten(-1, (-1, _BLOCK))
    sums_BN = blocks_BNK.sum(dim=-1, dtype=torch.float64)
    cumulative_BN = sums_BN.cumsum(dim=-1)
    thresholds_B1 = numbers_B[:, None].clamp(max=_BELOW_ONE) * cumulative_BN[:, -1:]
    places_B1 = torch.searchsorted(cumulative_BN, thresholds_B1, right=True).clamp_(max=sums_BN.shape[-1] - 1)
    rest_B1 = thresholds_B1 - (cumulative_BN - sums_BN).gather(-1, places_B1)
    block_BK = blocks_BNK.take_along_dim(places_B1[..., None], dim=1)[:, 0].cumsum(dim=-1, dtype=torch.float64)
    rest_B1 = rest_B1.clamp_(min=0.0).minimum(block_BK[:, -1:] * _BELOW_ONE)  # rounding leaves the block at neither end
    tokens_B1 = torch.searchsorted(block_BK, rest_B1, right=True) + places_B1 * _BLOCK
    return tokens_B1.clamp_(max=vocabulary - 1)


def _truncated(scores_BV: Tensor, top_p_B1: Tensor, top_k_B1: Tensor) -> Tensor:
    """Return the scores with -inf outside the top k and, of those, outside the smallest set of mass >= top p.

    Of equal scores the smaller token id counts as the larger score; the largest score is always kept.
    """
    ordered_BV, tokens_BV = torch.sort(scores_BV, dim=-1, descending=True, stable=True)
    ranks = torch.arange(scores_BV.shape[-1], device=scores_BV.device)
    ordered_BV = ordered_BV.masked_fill(ranks >= top_k_B1, -torch.inf)
    mass_BV = torch.softmax(ordered_BV, dim=-1)
    before_BV = torch.cumsum(mass_BV, dim=-1, dtype=torch.float64) - mass_BV
    kept_BV = (ordered_BV > -torch.inf) & ((before_BV < top_p_B1) | (ranks == 0))
    ordered_BV = ordered_BV.masked_fill(~kept_BV, -torch.inf)
    return torch.empty_like(scores_BV).scatter_(-1, tokens_BV, ordered_BV)
