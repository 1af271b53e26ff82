"""The mask audit: what trains is whole turns that the policy sampled, each behind the very context that it stands in.

Token for token, and so byte for byte. That catches a mask that is off or leaves out the end of a turn, tokens of a tool
or a template that train, a turn that was tokenised again, and a context that was rewritten without a row of its own.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from torch import Tensor

from envgym.agents.protocols import GenerateRequest, Generation, Policy
from envgym.errors import RunError, sentence
from envgym.trainer.batch.rows import TrainRow

_EMPTY: Final = 0
_Found = dict[tuple[int, int], set[tuple[int, ...]]]
"""(length, hash) of a context -> what was sampled behind it."""


class _Sampled(NamedTuple):
    """What of a row was sampled where it stands."""

    tokens: list[bool]
    """Whether each token was."""
    begins: set[int]
    """Where something sampled begins."""
    ends: set[int]
    """Where something sampled, and present to its end, has ended."""


class MaskAudit(Policy):
    """A policy that remembers what it sampled behind which context, until that is forgotten."""

    def __init__(self, policy: Policy) -> None:
        """Stand before `policy`."""
        self._policy = policy
        self._found: deque[_Found] = deque([{}])
        """Of each step that is remembered, the newest last."""

    def begin_step(self, *, remembered: int = 0) -> None:
        """Begin anew, as a step does, and forget all but the `remembered` steps before."""
        while len(self._found) > remembered:
            self._found.popleft()
        self._found.append({})

    def check(self, rows: Sequence[TrainRow], *, step: int) -> int:
        """Return how many tokens train. Raises: RunError: one was not sampled where it stands, or a turn is cut."""
        for number, row in enumerate(rows):
            where, do = f"mask audit, step {step}, row {number}", "look at the row with --dry-run"
            sampled, begins, ends = self._sampled(row.token_ids)
            wrong = [place for place, trains in enumerate(row.loss_mask) if trains and not sampled[place]]
            if wrong:
                got = f"{len(wrong)} others, the first (id {row.token_ids[wrong[0]]}) at place {wrong[0]}"
                must = "be sampled by the policy in that context"
                raise RunError(sentence("tokens that train", must, got, where=where, do=do))
            for begin, end in _runs(row.loss_mask):
                if begin not in begins or end not in ends:
                    got = f"a part of one, places {begin} to {end - 1}"
                    raise RunError(sentence("tokens that train", "be whole turns", got, where=where, do=do))
        return sum(sum(row.loss_mask) for row in rows)

    def _sampled(self, token_ids: Sequence[int]) -> _Sampled:
        """Return what of a row was sampled where it stands."""
        tokens, begins, ends = [False] * len(token_ids), set[int](), set[int]()
        code = _EMPTY
        for place, token in enumerate(token_ids):
            # Copied, because a step ahead may sample behind this very context now.
            for found in chain.from_iterable(tuple(step.get((place, code), ())) for step in self._found):
                begins.add(place)
                end = place
                while end < len(token_ids) and end - place < len(found) and token_ids[end] == found[end - place]:
                    tokens[end] = True
                    end += 1
                if end - place == len(found):
                    ends.add(end)
            code = hash((code, token))
        return _Sampled(tokens, begins, ends)

    # ---- as a policy -----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self._policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation, and remember it."""
        generation = await self._policy.generate(request)
        code = _EMPTY
        for token in request.token_ids:
            code = hash((code, token))
        self._found[-1].setdefault((len(request.token_ids), code), set()).add(generation.token_ids)
        return generation

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Pass on."""
        return await self._policy.compute_logprobs(token_ids)

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Pass on."""
        self._policy.update_weights(named_tensors, version)

    def set_version(self, version: int) -> None:
        """Pass on."""
        self._policy.set_version(version)

    def clear_prefix_cache(self) -> None:
        """Pass on."""
        self._policy.clear_prefix_cache()

    def sleep(self) -> None:
        """Pass on."""
        self._policy.sleep()

    def wake(self) -> None:
        """Pass on."""
        self._policy.wake()


def _runs(loss_mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where each run of trained tokens begins and ends."""
    padded = (False, *loss_mask, False)
    begins = [place for place in range(len(loss_mask)) if padded[place + 1] and not padded[place]]
    ends = [place for place in range(1, len(padded) - 1) if padded[place] and not padded[place + 1]]
    return list(zip(begins, ends, strict=True))
