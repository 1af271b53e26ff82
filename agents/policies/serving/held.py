"""The contexts that a policy server holds, so that a request sends only the tokens after one of them.

Both sides keep a bounded number, the latest used. What one side has forgotten costs the sending of a whole context, and
nothing else: the server answers that it does not have it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from secrets import token_bytes
from typing import Final

from envgym.agents.policies.serving.frames import FramedRequest, RequestKey, write_tokens
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.errors import EnvgymError, InvalidInput

MAX_SENT_TOKENS: Final = 1 << 22
"""Tokens of the contexts that a client remembers."""
MAX_HELD_BYTES: Final = 64 << 20
"""Of the contexts that a server holds, 4 for a token."""
_ENTRY_BYTES = 512
"""What an entry of the table takes beside its tokens, counted so that many short contexts are bounded too."""


class UnknownContext(EnvgymError):
    """The server does not have the context that a request continues."""


@dataclass(frozen=True, slots=True, eq=False)
class SentContext:
    """A context that a server was sent, with the answer that it gave."""

    key: RequestKey
    server: int
    """Number of its link."""
    context: tuple[int, ...]
    generation: Generation

    @property
    def num_tokens(self) -> int:
        return len(self.context) + len(self.generation.token_ids)


class SentContexts:
    """What a client knows of the contexts that servers hold."""

    def __init__(self, max_tokens: int = MAX_SENT_TOKENS) -> None:
        self._client, self._numbers, self._max_tokens = token_bytes(16), count(1), max_tokens
        self._contexts: OrderedDict[int, SentContext] = OrderedDict()
        """By the identity of the generation, which the entry keeps alive."""
        self._num_tokens = 0

    def next_key(self) -> RequestKey:
        """Return the name of a new request."""
        return RequestKey(self._client, next(self._numbers))

    def find(self, request: GenerateRequest) -> SentContext | None:
        """Return the context that a request continues, if a server was sent it.

        The agent loop names the objects of which it made the request's context, so nothing is searched or compared. A
        policy between the two that changes a context makes another object.
        """
        earlier = request.continues
        sent = None if earlier is None else self._contexts.get(id(earlier.generation))
        if earlier is None or sent is None or sent.context is not earlier.context:
            return None
        is_extended = request.token_ids is earlier.extended and len(request.token_ids) > sent.num_tokens
        return sent if is_extended else None

    def add(self, sent: SentContext) -> None:
        """Remember a context that a server holds now."""
        self._contexts[id(sent.generation)] = sent
        self._num_tokens += sent.num_tokens
        while self._num_tokens > self._max_tokens:
            self._num_tokens -= self._contexts.popitem(last=False)[1].num_tokens

    def retire(self, sent: SentContext) -> None:
        """Forget a context before others: it was continued, and mostly once."""
        if id(sent.generation) in self._contexts:
            self._contexts.move_to_end(id(sent.generation), last=False)


class HeldContexts:
    """The contexts that a server holds, for all of its clients together."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._contexts: OrderedDict[RequestKey, bytes] = OrderedDict()

    def context(self, framed: FramedRequest) -> bytes:
        """Return the whole context of a request, int32.

        Raises: UnknownContext: the one that it continues is not here. InvalidInput: that has fewer tokens.
        """
        if not framed.num_kept:
            return framed.new_tokens
        earlier = RequestKey(framed.key.client, framed.continues)
        tokens = self._contexts.get(earlier)
        if tokens is None:
            raise UnknownContext("the context that the request continues must be held, got none; send all of it.")
        must, do = f"be at most the {len(tokens) // 4} tokens that are held", "send the whole context"
        is_whole = 4 * framed.num_kept <= len(tokens)
        InvalidInput.unless(is_whole, "kept tokens", must, framed.num_kept, where="context", do=do)
        self._contexts.move_to_end(earlier, last=False)  # it is continued, and mostly once
        return tokens[: 4 * framed.num_kept] + framed.new_tokens

    def keep(self, key: RequestKey, context: bytes, sampled: Sequence[int]) -> None:
        """Hold a context with the tokens sampled after it, unless it is larger than all that may be held."""
        self._forget(key)
        whole = context + write_tokens(sampled)
        if len(whole) + _ENTRY_BYTES > self._max_bytes:
            return
        self._contexts[key] = whole
        self._num_bytes += len(whole) + _ENTRY_BYTES
        while self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._contexts)))

    def _forget(self, key: RequestKey) -> None:
        tokens = self._contexts.pop(key, None)
        if tokens is not None:
            self._num_bytes -= len(tokens) + _ENTRY_BYTES
