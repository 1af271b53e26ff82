"""Segments: consecutive tokens of one origin and policy version. This module alone decides which tokens train."""

from collections.abc import Sized
from dataclasses import dataclass, replace
from enum import StrEnum

from envgym.core.frozen import quick_init
from envgym.errors import InvalidInput


class Origin(StrEnum):
    """Who wrote the tokens of a segment."""

    PROMPT = "PROMPT"
    """System text, task, and any context that was rendered anew after a rewrite."""
    POLICY = "POLICY"
    """Sampled by the policy being trained."""
    TOOL = "TOOL"
    """A reply of a tool or of the env."""
    TEMPLATE = "TEMPLATE"
    """Chat-template glue that the policy did not sample."""
    INJECTED = "INJECTED"
    """A hint, a guide model's words."""
    DEMONSTRATION = "DEMONSTRATION"
    """A part of an action that a demonstrator wrote. It trains only where a term of the objective asks for it."""


_POLICY = Origin.POLICY  # looked up once: every turn makes several segments

TopLogprobs = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place with their log-probs in nats, the likeliest first."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one origin and policy version, exactly as sampled or rendered; never re-tokenised."""

    origin: Origin
    token_ids: tuple[int, ...]
    """[T] at least one id."""
    token_strings: tuple[str, ...] = ()
    """[T] or empty: the tokens as a person reads them, so that viewing needs no tokenizer."""
    behavior_logprobs: tuple[float, ...] | None = None
    """[T] nats, under the distribution sampled from; for `POLICY` and nothing else."""
    raw_logprobs: tuple[float, ...] | None = None
    """[T] nats, at temperature 1 over the full vocabulary, where the engine gives them; `POLICY` only."""
    policy_version: int | None = None
    """Version of the weights that sampled all of it; for `POLICY` and nothing else. A turn during which the weights
    changed has a segment for each version."""
    top_logprobs: tuple[TopLogprobs, ...] | None = None
    """[T] at each sampled token, under the distribution sampled from, where they were asked for; `POLICY` only."""

    def __post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        if not num_tokens:
            raise _segment_error("token_ids", "hold at least one id", "none", self.origin, "leave the segment out")
        if self.token_strings and len(self.token_strings) != num_tokens:
            raise _segment_error(
                "token_strings", f"be empty or match the {num_tokens} ids", len(self.token_strings), self.origin
            )
        behavior, raw, version = self.behavior_logprobs, self.raw_logprobs, self.policy_version
        if self.origin is _POLICY:
            if behavior is None or version is None:
                raise _segment_error(
                    "POLICY segment", "carry behavior_logprobs and policy_version", "none", self.origin
                )
            self._check_length("behavior_logprobs", behavior)
            if raw is not None:
                self._check_length("raw_logprobs", raw)
            if self.top_logprobs is not None:
                self._check_length("top_logprobs", self.top_logprobs)
        elif behavior is not None or raw is not None or version is not None or self.top_logprobs is not None:
            raise _segment_error("log-probs and policy_version", "belong to POLICY alone", "some", self.origin)

    def _check_length(self, name: str, entries: Sized) -> None:
        if len(entries) != len(self.token_ids):
            raise _segment_error(name, f"match the {len(self.token_ids)} ids", len(entries), self.origin)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trains(self) -> bool:
        """True where the policy gradient may flow: tokens that the policy itself sampled."""
        return self.origin is _POLICY

    def split(self, at: int) -> tuple["Segment", "Segment"]:
        """Cut before token `at`, 0 < at < T. Raises: InvalidInput: outside that range."""
        if not 0 < at < len(self):
            raise _segment_error("split position", f"lie inside 1..{len(self) - 1}", at, self.origin)
        return self._cut(slice(0, at)), self._cut(slice(at, None))

    def _cut(self, part: slice) -> "Segment":
        return replace(
            self,
            token_ids=self.token_ids[part],
            token_strings=self.token_strings[part],
            behavior_logprobs=None if self.behavior_logprobs is None else self.behavior_logprobs[part],
            raw_logprobs=None if self.raw_logprobs is None else self.raw_logprobs[part],
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[part],
        )


def _segment_error(
    what: str, must: str, got: object, origin: Origin, do: str = "build segments from one Generation or rendering"
) -> InvalidInput:
    return InvalidInput.of(what, must, got, where=f"{origin} segment", do=do)
