"""The benchmark of updates over one group runs, small."""

import pytest

from benchmarks import group_update


def test_the_ratio_is_the_time_with_most_servers_over_that_with_one() -> None:
    assert group_update.by_count([2.0, 3.0], (1, 8)) == {"1": 2.0, "8": 3.0, "ratio": 1.5}


@pytest.mark.processes
def test_transfers_are_measured() -> None:
    assert 0 < group_update.measure_transfer(2, 0.001, 1, 0) < 60
