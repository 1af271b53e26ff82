"""The mask audit: tokens that train are whole turns that the policy sampled, each after the very context of its row.

Token for token, and so byte for byte. That catches a mask that is shifted or leaves out the end of a turn, tokens of a
tool or a template that train, a turn that was tokenised again, and a context that was rewritten without a new row.

Rows of another source than the policy of this step (demonstrations, replayed episodes, a teacher's) must have been
declared by whoever brought them, token for token.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Final, NamedTuple, Self

from envgym.agents.policies.wrapped import WrappedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Policy
from envgym.core.trajectory import trajectories
from envgym.core.tree import Source, Tree
from envgym.errors import InvalidInput, RunError
from envgym.trainer.batch.rows import TrainRow

_EMPTY: Final = 0
_Continuations = dict[tuple[int, int], set[tuple[int, ...]]]
"""(length, hash) of a context -> what was sampled after it."""


class SampledTurn(NamedTuple):
    """What was sampled after a context."""

    context_length: int
    context_hash: int
    """Chained over the tokens of the context; equal in all processes."""
    token_ids: tuple[int, ...]

    @classmethod
    def of(cls, request: GenerateRequest, generation: Generation) -> Self:
        code = _EMPTY
        for token in request.token_ids:
            code = hash((code, token))
        return cls(len(request.token_ids), code, generation.token_ids)


class _SampledSpans(NamedTuple):
    """What of a row was sampled after the context that it has there."""

    is_sampled: list[bool]
    """One entry a token."""
    starts: set[int]
    """Where a generation begins."""
    ends: set[int]
    """Where a generation that is present to its end has ended."""


class _DeclaredRow(NamedTuple):
    source: Source
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


class MaskAudit:
    """A record of what the policy sampled after which context, with which the rows that train are compared."""

    def __init__(self) -> None:
        self._steps: deque[_Continuations] = deque([{}])
        """Of each step that is remembered, the newest last."""
        self._declared: set[_DeclaredRow] = set()
        """Of this step."""

    def begin_step(self, *, remembered: int = 0) -> None:
        """Begin a step's record, and forget all but those of the `remembered` steps before."""
        while len(self._steps) > remembered:
            self._steps.popleft()
        self._steps.append({})
        self._declared.clear()

    def declare(self, tree: Tree) -> None:
        """Say that the episodes of a tree may train in this step, though the policy does not sample them in it.

        Raises: InvalidInput: it is of the policy, whose samples are recorded instead.
        """
        if tree.source is Source.POLICY:
            do = "mark the tree with its source"
            raise InvalidInput.of("source of a declared tree", "not be POLICY", tree.source, where=tree.id, do=do)
        for episode in trajectories(tree):
            for row in episode.rows:
                self._declared.add(_DeclaredRow(tree.source, row.token_ids, (False, *row.loss_mask[1:])))

    def record(self, turn: SampledTurn) -> None:
        """Remember what was sampled after a context."""
        self._steps[-1].setdefault(turn[:2], set()).add(turn.token_ids)

    def check(self, rows: Sequence[TrainRow], *, step: int) -> int:
        """Return how many tokens train.

        Raises: RunError: one was not sampled in its context, a turn is cut, or a row of another source is not declared.
        """
        for number, row in enumerate(rows):
            where, do = f"mask audit, step {step}, row {number}", "inspect the row with --dry-run"
            if row.id.source is not Source.POLICY:
                self._check_declared(row, where)
                continue
            is_sampled, starts, ends = self._sampled_spans(row.token_ids)
            wrong = [index for index, trains in enumerate(row.loss_mask) if trains and not is_sampled[index]]
            if wrong:
                got = f"{len(wrong)} others, the first (id {row.token_ids[wrong[0]]}) at position {wrong[0]}"
                must = "be sampled by the policy in that context"
                raise RunError.of("tokens that train", must, got, where=where, do=do)
            for trains, run in groupby(range(len(row)), key=row.loss_mask.__getitem__):
                places = list(run)
                if trains and (places[0] not in starts or places[-1] + 1 not in ends):
                    got = f"a part of one, positions {places[0]} to {places[-1]}"
                    raise RunError.of("tokens that train", "be whole turns", got, where=where, do=do)
        return sum(sum(row.loss_mask) for row in rows)

    def _check_declared(self, row: TrainRow, where: str) -> None:
        if _DeclaredRow(row.id.source, row.token_ids, row.loss_mask) not in self._declared:
            got, do = f"another of {len(row)} tokens", "declare the tree that it is of, unchanged"
            raise RunError.of(f"a row of source {row.id.source}", "be one that was declared", got, where=where, do=do)

    def _sampled_spans(self, token_ids: Sequence[int]) -> _SampledSpans:
        """Return which tokens of a row were sampled after the tokens before them."""
        is_sampled, starts, ends = [False] * len(token_ids), set[int](), set[int]()
        code = _EMPTY
        for index, token in enumerate(token_ids):
            # Copied, because a later step may sample after this very context now.
            for sampled in chain.from_iterable(tuple(step.get((index, code), ())) for step in self._steps):
                starts.add(index)
                end = index
                while end < len(token_ids) and end - index < len(sampled) and token_ids[end] == sampled[end - index]:
                    is_sampled[end] = True
                    end += 1
                if end - index == len(sampled):
                    ends.add(end)
            code = hash((code, token))
        return _SampledSpans(is_sampled, starts, ends)


class AuditedPolicy(WrappedPolicy):
    """A policy whose samples are recorded for the audit."""

    def __init__(self, policy: Policy, record: Callable[[SampledTurn], None]) -> None:
        super().__init__(policy)
        self._record = record

    async def generate(self, request: GenerateRequest) -> Generation:
        generation = await self._policy.generate(request)
        self._record(SampledTurn.of(request, generation))
        return generation
