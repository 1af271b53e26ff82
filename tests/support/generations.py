"""Answers of a policy, made by hand."""

from collections.abc import Sequence
from typing import Any

from envgym.agents.protocols import FinishReason, Generation


def generated(
    token_ids: Sequence[int],
    logprobs: Sequence[float] | float,
    *,
    raw: tuple[float, ...] | None = None,
    reason: FinishReason = FinishReason.STOP,
    version: int = 1,
    **fields: Any,
) -> Generation:
    """Return a generation; a log-prob may be one number for all tokens."""
    behavior = (logprobs,) * len(token_ids) if isinstance(logprobs, float) else tuple(logprobs)
    return Generation(
        token_ids=tuple(token_ids),
        behavior_logprobs=behavior,
        raw_logprobs=raw,
        finish_reason=reason,
        policy_version=version,
        **fields,
    )
