"""Selection and backup by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.search.mcts_scores import (
    FrontierWeights,
    decayed_backup,
    frontier_score,
    num_children,
    puct,
    roll_forward_value,
    uct,
)


def test_uct_by_hand() -> None:
    # 0.5 + 2 sqrt(ln 9 / 4) = 0.5 + 2 sqrt(0.549306) = 0.5 + 2 * 0.741152
    assert uct(0.5, 4, 9, c=2.0) == pytest.approx(1.982304, abs=1e-6)
    # C sqrt(2 ln N_p / N) is c = C sqrt 2: 0.7 sqrt(2 * 2.197225 / 4) = 0.733703
    assert uct(0.0, 4, 9, c=0.7 * math.sqrt(2)) == pytest.approx(0.733703, abs=1e-6)
    assert uct(-9.0, 0, 9, c=2.0) == math.inf


def test_puct_by_hand() -> None:
    # 0.25 + 1.5 * 0.4 * sqrt(16) / (1 + 3) = 0.25 + 0.6
    assert puct(0.25, 3, 16, prior=0.4, c=1.5) == pytest.approx(0.85)


def test_score_of_the_frontier_by_hand() -> None:
    weights = FrontierWeights(parent=0.4, own=0.1, surprisal=0.2, depth=0.01)
    # 0.4 tanh(0.5) + 0.1 tanh(-1) + 0.2 * 1.5 + 0.01 sqrt(4 / 16) = 0.184847 - 0.076159 + 0.3 + 0.005
    found = frontier_score(value=-1.0, parent_value=0.5, surprisal=1.5, depth=4, max_depth=16, weights=weights)
    assert found == pytest.approx(0.413687, abs=1e-6)
    assert frontier_score(value=0, parent_value=0, surprisal=0, depth=0, max_depth=0, weights=weights) == 0


def test_decayed_backup_by_hand() -> None:
    # Four nodes: gamma = 1/4, 2/4, 3/4, 1.
    assert decayed_backup([0.0, 0.0, 0.0, 0.0], 1.0) == [0.25, 0.5, 0.75, 1.0]
    # A failure later leaves what is positive, and lowers the rest.
    assert decayed_backup([0.25, 0.5, 0.0, -0.75], -1.0) == [0.25, 0.5, -0.75, -1.75]
    # A success overwrites what is negative, and raises the rest.
    assert decayed_backup([0.25, -0.5, 0.0, -1.0], 1.0) == [0.5, 0.5, 0.75, 1.0]
    # Twenty nodes: gamma of the first is 1/20, but at least 0.1.
    assert decayed_backup([0.0] * 20, -1.0)[:3] == [-0.1, -0.1, -0.15]


@given(st.lists(st.lists(st.sampled_from([1.0, -1.0]), min_size=1, max_size=6), min_size=1, max_size=1))
def test_nodes_of_a_path_to_a_success_stay_positive(outcomes: list[list[float]]) -> None:
    values = decayed_backup([0.0] * 5, 1.0)
    for outcome in outcomes[0]:
        values = decayed_backup(values, outcome)
    assert min(values) > 0


def test_value_ahead_is_mixed_in_by_its_best() -> None:
    assert roll_forward_value(0.2, [0.1, 0.8], mix=0.5) == pytest.approx(0.5)
    assert roll_forward_value(0.2, [], mix=0.5) == 0.2


@pytest.mark.parametrize("visits, count", [(0, 1), (1, 1), (2, 2), (4, 2), (5, 3), (100, 8)])
def test_children_widen_with_the_root_of_the_visits(visits: int, count: int) -> None:
    assert num_children(visits, width=8, widening=0.5) == count
