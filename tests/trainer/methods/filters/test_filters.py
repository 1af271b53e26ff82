"""Filters drop with a reason and lose nothing."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.filters.variance import KeepAll, ZeroVariance
from tests.support.example_trees import outcome_group
from tests.support.plugins import FILTERS

MIXED, FLAT, DEAD = outcome_group(1, 0, None), outcome_group(1, 1, None), outcome_group(None, None)


def test_zero_variance_drops_groups_without_signal() -> None:
    result = ZeroVariance()([FLAT, MIXED, DEAD])
    assert result.kept == (MIXED,)
    assert [(group is FLAT, reason) for group, reason in result.dropped] == [
        (True, "zero_variance"),
        (False, "no_valid_episode"),
    ]


def test_rounding_is_no_variance() -> None:
    assert ZeroVariance()([outcome_group(0.1 + 0.2, 0.3)]).kept == ()


def test_keep_all_drops_only_groups_without_valid_episode() -> None:
    result = KeepAll()([FLAT, MIXED, DEAD])
    assert result.kept == (FLAT, MIXED)
    assert [reason for _, reason in result.dropped] == ["no_valid_episode"]


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=4), max_size=5))
def test_every_group_is_kept_or_dropped(rewards: list[list[float | None]]) -> None:
    groups = [outcome_group(*group) for group in rewards]
    for build in FILTERS.values():
        result = build()(groups)
        assert len(result.kept) + len(result.dropped) == len(groups)
        assert {id(g) for g in result.kept} | {id(g) for g, _ in result.dropped} == {id(g) for g in groups}
