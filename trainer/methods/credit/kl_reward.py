"""The KL term in the reward: what a sampled token costs by how far the policy has moved from the reference there."""

from collections.abc import Sequence
from typing import Final

from envgym.core.trajectory import Group
from envgym.trainer.methods.protocols import CreditContext
from envgym.trainer.methods.scores import ScoreRequest

_POLICY: Final = ScoreRequest(name="policy")
_REFERENCE: Final = ScoreRequest(name="reference", model="reference")
KL_SCORES: Final = (_POLICY, _REFERENCE)
"""Log-probs of policy and reference as the step begins, which a credit with such a term asks for."""
TokenCosts = tuple[tuple[float, ...], ...]
"""Along an episode's path: one number per sampled token of the node's edge."""


def kl_costs(groups: Sequence[Group], context: CreditContext, coef: float) -> list[TokenCosts]:
    """Return coef (log π - log π_ref) of every sampled token of the groups' valid episodes, in order.

    Its mean over the policy's samples is coef · KL(π || π_ref), the estimator k1. Source: 1909.08593.
    """
    pairs = zip(context.scores_of(_POLICY.name, groups), context.scores_of(_REFERENCE.name, groups), strict=True)
    return [
        tuple(
            tuple(coef * (now - then) for now, then in zip(of_policy, of_reference, strict=True))
            for of_policy, of_reference in zip(policy.values, reference.values, strict=True)
        )
        for of_groups in pairs
        for policy, reference in zip(*of_groups, strict=True)
    ]
