"""In every precision, by one process and by two ranks, weights move as far as in float32."""

from collections.abc import Mapping

import pytest
import torch

from tests.trainer.learner.optimizers.steady import plain_adamw
from tests.trainer.learner.ranks.movement import MOVEMENTS, ON_RANKS, RATES, Movement, distance
from tests.trainer.learner.ranks.test_sharded import finish, start_ranks

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("movement"), pytest.mark.timeout(600)]
SHARE = 0.95
"""Of the distance in float32, at least."""


@pytest.fixture(scope="module")
def alone() -> Mapping[Movement, float]:
    return {movement: distance(movement, None) for movement in MOVEMENTS}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Movement, float]:
    out = tmp_path_factory.mktemp("movement") / "distances.pt"
    ranks = start_ranks(2, "-m", "tests.trainer.learner.ranks.movement", str(out))
    output = finish(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(output)
    return dict(zip(ON_RANKS, torch.load(out), strict=True))


def share(movement: Movement, distances: Mapping[Movement, float], alone: Mapping[Movement, float]) -> float:
    wide = Movement(precision="float32", rate=movement.rate, lora=movement.lora, optimizer=movement.optimizer)
    return distances[movement] / alone[wide]


def test_one_process_moves_weights_as_far_as_in_float32(alone: Mapping[Movement, float]) -> None:
    shares = {movement: share(movement, alone, alone) for movement in MOVEMENTS}
    assert {movement: value for movement, value in shares.items() if not SHARE <= value <= 2 - SHARE} == {}


def test_two_ranks_move_weights_as_one_process_does(
    on_two_ranks: Mapping[Movement, float], alone: Mapping[Movement, float]
) -> None:
    assert len(on_two_ranks) == 2 * (2 * len(RATES) + 1)
    shares = {movement: share(movement, on_two_ranks, alone) for movement in on_two_ranks}
    assert {movement: value for movement, value in shares.items() if not SHARE <= value <= 2 - SHARE} == {}
    gaps = {movement: abs(value / alone[movement] - 1) for movement, value in on_two_ranks.items()}
    assert {movement: gap for movement, gap in gaps.items() if gap > 0.01} == {}


# At 1e-4 and a steady gradient it moves too far by 3 %; in noise not far enough (tests of the optimizers).
@pytest.mark.parametrize("rate", RATES[:-1])
def test_plain_adamw_on_weights_in_bfloat16_fails_the_same_check(rate: float, alone: Mapping[Movement, float]) -> None:
    movement = Movement(precision="bfloat16", rate=rate)
    lossy = {movement: distance(movement, None, plain_adamw)}
    assert not SHARE <= share(movement, lossy, alone) <= 2 - SHARE
