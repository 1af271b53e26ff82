"""What the agent loop asks of a policy, a renderer and a context strategy. No torch, no tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from envgym.core.frozen import quick_init
from envgym.core.messages import Action, Message, Observation
from envgym.core.segments import Segment, TopLogprobs
from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from torch import Tensor


class FinishReason(StrEnum):
    """Why a generation stopped."""

    STOP = "STOP"
    """A stop token was sampled; it is the last of the token ids."""
    LENGTH = "LENGTH"
    """The limit of new tokens was reached."""
    ABORT = "ABORT"
    """The engine or the collector gave the request up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a policy samples; greedy is temperature 0."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    """So many of the most probable tokens are recorded beside each sampled one; 0: none, which costs nothing."""

    def check(self, where: str, *, max_top_logprobs: int | None = None) -> None:
        """See that every setting is in range. Raises: InvalidInput: one is not.

        Args:
            where: the policy.
            max_top_logprobs: most that it can state; None: any number.
        """
        if max_top_logprobs is not None and self.top_logprobs > max_top_logprobs:
            do = "sample with engine.backend=transformers, or set sampling.top_logprobs=0"
            must = f"be at most {max_top_logprobs} for this policy"
            raise InvalidInput.of("top_logprobs", must, self.top_logprobs, where=where, do=do)
        in_range = {
            "temperature": self.temperature >= 0,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k >= 0,
            "max_new_tokens": self.max_new_tokens >= 1,
            "top_logprobs": self.top_logprobs >= 0,
        }
        if wrong := [name for name, is_good in in_range.items() if not is_good]:
            raise InvalidInput.of(wrong[0], "be in range", getattr(self, wrong[0]), where=where, do="see Sampling")

    @property
    def is_raw(self) -> bool:
        """True where the policy samples from its own distribution: at temperature 1, from the whole vocabulary."""
        return self.temperature == 1 and self.top_p == 1 and self.top_k == 0


class EarlierTurn(NamedTuple):
    """A context that was sent to a policy, and what it sampled: the very objects, by which both are found again."""

    context: tuple[int, ...]
    generation: "Generation"
    extended: tuple[int, ...]
    """The next context, which begins with both; a request that has another one does not continue the turn."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One continuation to sample."""

    token_ids: tuple[int, ...]
    """[T] the whole context."""
    sampling: Sampling
    seed: int
    """Derived per run, step, task, sample and node: equal requests with equal seeds give equal tokens."""
    continues: EarlierTurn | None = field(default=None, compare=False, repr=False)
    """The turn whose context and tokens `token_ids` begins with, so that a policy server is sent only the tokens after
    them; None: it is sent all. No result depends on it. A policy that changes contexts passes None on."""


class VersionSpan(NamedTuple):
    """Consecutive sampled tokens of one version of the weights."""

    policy_version: int
    num_tokens: int


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One sampled continuation."""

    has_tokens: ClassVar[bool] = True
    """False where only the text is known."""

    token_ids: tuple[int, ...]
    """[T] as sampled, the stop token included where one was sampled; may be empty only after ABORT."""
    behavior_logprobs: tuple[float, ...]
    """[T] nats under the distribution sampled from (temperature, top-p and top-k applied; greedy: 0.0)."""
    raw_logprobs: tuple[float, ...] | None
    """[T] nats at temperature 1 over the full vocabulary, where the engine gives them."""
    finish_reason: FinishReason
    policy_version: int
    """Of the weights that sampled; the oldest, where they changed meanwhile."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Which version sampled which tokens, in their order, where the weights changed meanwhile; () = they did not."""
    num_prefilled: int = 0
    """Context tokens the engine computed for this request (the rest came from its cache)."""
    context_is_full: bool = False
    """The context is longer than the model takes; nothing was sampled."""
    top_logprobs: tuple[TopLogprobs, ...] | None = None
    """[T] the most probable tokens of each place, at most as many as requested, under the distribution sampled from
    (greedy: at temperature 1); None where none were asked for."""

    @property
    def num_spent(self) -> tuple[int, int]:
        """Tokens that it took: generated, and prefilled."""
        return len(self.token_ids), self.num_prefilled

    @property
    def spans(self) -> tuple[VersionSpan, ...]:
        """`version_spans`, or the one of all tokens."""
        return self.version_spans or (VersionSpan(self.policy_version, len(self.token_ids)),)

    def to_data(self) -> dict[str, Any]:
        """Return its fields as JSON takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the generation that `to_data` wrote. Raises: KeyError, TypeError, ValueError: it is none."""
        raw, tops = data["raw_logprobs"], data["top_logprobs"]
        read = {
            "token_ids": tuple(data["token_ids"]),
            "behavior_logprobs": tuple(data["behavior_logprobs"]),
            "raw_logprobs": None if raw is None else tuple(raw),
            "finish_reason": FinishReason(data["finish_reason"]),
            "version_spans": tuple(VersionSpan(*span) for span in data["version_spans"]),
            "top_logprobs": None if tops is None else tuple(tuple(map(tuple, top)) for top in tops),
        }
        return cls(**{**data, **read})


def join_spans(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Return the spans with neighbours of one version as one, and without empty ones."""
    joined: list[VersionSpan] = []
    for span in spans:
        if joined and joined[-1].policy_version == span.policy_version:
            span = VersionSpan(span.policy_version, joined.pop().num_tokens + span.num_tokens)
        if span.num_tokens:
            joined.append(span)
    return tuple(joined)


def first_spans(spans: Sequence[VersionSpan], num_tokens: int) -> tuple[VersionSpan, ...]:
    """Return the spans of the first `num_tokens` tokens."""
    ends = accumulate(span.num_tokens for span in spans)
    return join_spans(
        VersionSpan(span.policy_version, max(0, min(span.num_tokens, num_tokens - end + span.num_tokens)))
        for span, end in zip(spans, ends, strict=True)
    )


class PolicyLifecycle(Protocol):
    """What a policy of tokens and one of messages share: how they are opened and closed.

    A policy is an async context manager: what belongs to one event loop, such as connections, is opened and closed with
    it. `close` ends what outlives an event loop.
    """

    def close(self) -> None:
        """End what was started; may be called twice. Default: nothing was."""
        return

    async def __aenter__(self) -> Self:
        """Open what belongs to this event loop, and return the policy. Default: nothing."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close what belongs to this event loop. Default: nothing."""
        return


class Policy(PolicyLifecycle, Protocol):
    """Samples continuations of token ids.

    A class that derives from it must define `generate`, `compute_logprobs` and `update_weights`; everything else has a
    default.
    """

    unit: Literal["tokens"] = "tokens"
    """What it takes and returns; a `MessagePolicy` takes messages."""
    shares_weights: bool = False
    """Whether it samples from the very module that a learner trains. Then nothing is copied: the module changes within
    `pause(version)`, which must be defined, and after a change that nobody samples beside `set_version` will do."""
    accepts_weights: bool = True
    """Whether `update_weights` can change the weights; False: they belong to a server."""
    max_top_logprobs: int | None = 0
    """Most of the most probable tokens that it can state beside a sampled one; None: any number."""

    _version: int = 0

    @property
    def version(self) -> int:
        """Version of the weights that sample now. Default: the one that was set last."""
        return self._version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation. Raises: PolicyFailure: the engine broke."""
        ...

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return for each sequence the raw log-prob of every token given those before it; 0.0 for the first."""
        ...

    def update_weights(self, named_tensors: Iterable[tuple[str, "Tensor"]], version: int) -> None:
        """Put new weights in place; every later generation carries `version`."""
        ...

    def set_version(self, version: int) -> None:
        """Name the weights that are in place, which may have changed, and clear the prefix cache, if there is one."""
        self._version = version

    def check_sampling(self, sampling: Sampling) -> None:
        """Refuse sampling that is out of range, or whose log-probs cannot be stated.

        Raises: InvalidInput: a setting out of range. PolicyFailure: the log-probs cannot be stated.
        """
        sampling.check(type(self).__name__, max_top_logprobs=self.max_top_logprobs)

    def clear_prefix_cache(self) -> None:
        """Compute every context anew from now on. Default: there is no cache."""
        return

    def pause(self, version: int | None = None) -> AbstractContextManager[None]:
        """Hold sampling off while a learner uses shared weights.

        Default: nothing is shared, so sampling goes on as it was, and `update_weights` brings a version later.

        Args:
            version: of the weights that the block leaves. What is sampled after it carries this version and reuses
                nothing that other weights computed: sampling goes on only when all three have changed. None: the
                weights stay as they are.
        """
        return nullcontext()

    def take_metrics(self) -> Mapping[str, float]:
        """Return metrics of the engine since the last call, named `engine/...`. Default: there are none."""
        return {}

    def sleep(self) -> None:
        """Give memory back until `wake`. Default: none is held."""
        return

    def wake(self) -> None:
        """Get ready to sample again. Default: always ready."""
        return


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """Tokens to put behind the context, or instead of it."""

    segments: tuple[Segment, ...]
    rewrite: Rewrite | None = None
    """None: append. Else: the segments are the whole new context, all PROMPT, and a new row begins."""


class Renderer(Protocol):
    """Turns messages into tokens for one model family, and sampled tokens into an action."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids at which the policy's turn ends."""
        ...

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        """Render the first context, up to where the policy begins to speak."""
        ...

    def extend(
        self,
        history: Sequence[Message],
        generation: Generation,
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> Rendering:
        """Render what follows a sampled turn: closing glue, observation, and the opening of the next turn.

        `history` are the messages up to and without the sampled turn. Append-only work is independent of its length.
        """
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        """Read sampled tokens (stop token included) as an action; what cannot be read is listed in `malformed`.

        `tools` are the tools of the episode: some formats write arguments without quotes, and only the schema of the
        episode's own tool tells text from numbers.
        """
        ...

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Return the ids the policy would have to sample to say `action`, stop token included."""
        ...

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return each token as a person reads it."""
        ...
