"""Token weights by hand: which tokens keep their advantage, and what their peers get."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.errors import InvalidInput
from envgym.trainer.batch.build import reweighted
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.methods.weights.entropy import EntropyWeights
from envgym.trainer.methods.weights.forking_tokens import ForkingTokens
from envgym.trainer.methods.weights.position import PositionWeights


def row(
    advantages: list[float], entropies: list[float], *, group: int = 0, logprobs: list[float] | None = None
) -> TrainRow:
    count = len(advantages)
    return TrainRow(
        token_ids=(1,) * (count + 1),
        loss_mask=(False, *[True] * count),
        advantages=(0.0, *advantages),
        behavior_logprobs=(0.0, *(logprobs or [-1.0] * count)),
        weights=(1.0,) * (count + 1),
        id=RowId(group=group),
        scores={"entropies": (9.0, *entropies)},
    )


def after(weights: object, *rows: TrainRow) -> list[list[float]]:
    return [list(found.advantages[1:]) for found in reweighted(rows, weights, step=0)]  # type: ignore[arg-type]


def test_fork_is_a_token_of_high_entropy() -> None:
    # 5 tokens, share .4: the two of entropy 2 and 3; the entropy 9 before them is no trained token's
    rows = row([1, 1, 1], [0.1, 2.0, 0.3]), row([-1, -1], [3.0, 0.5])
    assert after(ForkingTokens(share=0.4), *rows) == [[0, 1, 0], [-1, 0]]
    assert after(ForkingTokens(share=0.41), *rows) == [[0, 1, 0], [-1, -1]]  # of 2.05 tokens the third counts
    assert after(ForkingTokens(share=1.0), *rows) == [[1, 1, 1], [-1, -1]]


def test_fork_by_surprisal_needs_no_scores() -> None:
    weights = ForkingTokens(share=0.5, by="surprisal")
    assert weights.scores == ()
    assert [request.quantity for request in ForkingTokens().scores] == ["entropies"]
    assert after(weights, row([1, 1], [0, 0], logprobs=[-0.1, -2.0])) == [[0, 1]]


def test_peers_share_their_advantages_by_entropy() -> None:
    # right ones at place 0: entropies 1 and 3, mean 2: factors 1/2 and 3/2; at place 1 the longer one is alone
    right = row([1, 1], [1.0, 0.4]), row([1], [3.0])
    assert after(EntropyWeights(share=1.0), *right) == [pytest.approx([0.5, 1]), pytest.approx([1.5])]
    assert after(EntropyWeights(share=0.1), *right) == [pytest.approx([0.95, 1]), pytest.approx([1.05])]
    # wrong ones: 1/1 and 1/3, mean 2/3: factors 3/2 and 1/2
    wrong = row([-1], [1.0]), row([-1], [3.0])
    assert after(EntropyWeights(share=1.0), *wrong) == [pytest.approx([-1.5]), pytest.approx([-0.5])]
    # other groups and other signs are no peers
    apart = row([1], [1.0]), row([-1], [3.0]), row([1], [5.0], group=1)
    assert after(EntropyWeights(share=1.0), *apart) == [[1], [-1], [1]]


@given(st.lists(st.tuples(st.sampled_from([-2.0, 1.0]), st.floats(0, 4)), min_size=1, max_size=6), st.floats(0, 1))
def test_entropy_weights_keep_what_peers_get_together(tokens: list[tuple[float, float]], share: float) -> None:
    rows = [row([advantage], [entropy]) for advantage, entropy in tokens]
    found = [advantage for (advantage,) in after(EntropyWeights(share=share), *rows)]
    for sign in (-2.0, 1.0):
        peers = [new for new, (old, _) in zip(found, tokens, strict=True) if old == sign]
        assert sum(peers) == pytest.approx(sign * len(peers), rel=1e-4)
    if share == 0:
        assert found == pytest.approx([old for old, _ in tokens])


def test_entropy_weights_leave_an_advantage_of_zero() -> None:
    assert after(EntropyWeights(share=1.0), row([0, 1], [1.0, 2.0]), row([0, 0], [5.0, 2.0])) == [[0, 1], [0, 0]]


def test_position_weights_go_from_first_to_last() -> None:
    rows = row([2, 2, 2], [0, 0, 0]), row([-1], [0])
    assert after(PositionWeights(first=1, last=0), *rows) == [[2, 1, 0], [-1]]
    assert after(PositionWeights(), *rows) == [[2, 2, 2], [-1]]


def test_no_rows_of_trained_tokens_are_no_fault() -> None:
    empty = row([], [])
    assert after(ForkingTokens(), empty) == [[]]
    assert after(EntropyWeights(), empty) == [[]]


def test_advantages_that_are_no_numbers_or_of_another_shape_are_refused() -> None:
    def broken(batch: LossBatch) -> Tensor:
        return batch.advantages_BT / 0.0

    def cut(batch: LossBatch) -> Tensor:
        return batch.advantages_BT[:, 1:]

    with pytest.raises(InvalidInput, match="advantages must be finite, got some that are not"):
        after(broken, row([1], [0]))
    with pytest.raises(InvalidInput, match=r"advantages must match loss_mask \[1, 2\], got \[1, 1\]"):
        after(cut, row([1], [0]))
    assert torch.tensor(after(lambda batch: torch.full_like(batch.advantages_BT, 3.0), row([1], [0]))).item() == 3.0
