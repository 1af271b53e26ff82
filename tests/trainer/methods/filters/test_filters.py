"""Filters: what they keep of groups, and the groups of the largest variance."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.filters.variance import KeepAll, TopVariance, ZeroVariance, spread
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


PUBLISHED = (0.5, 0.0, 0.3, 0.45, 0.1, 0.0)
"""Spreads of six groups."""


def of_spread(value: float) -> Group:
    """Build a group of two rewards whose unbiased deviation is `value`: they differ by sqrt(2) times it."""
    return outcome_group(0.0, math.sqrt(2) * value)


GROUPS = [of_spread(value) for value in PUBLISHED]


def kept(by: str, share: float) -> list[int]:
    result = TopVariance.model_validate({"by": by, "share": share})(GROUPS)
    return [number for number, group in enumerate(GROUPS) if any(group is other for other in result.kept)]


@pytest.mark.parametrize(
    "by, share, expected",
    # sums: .9 * 1.35 = 1.215 <= .5 + .45 + .3; .5 * 1.35 = .675 <= .5 + .45; a quarter of four groups is one
    [("mass", 0.9, [0, 2, 3]), ("mass", 0.5, [0, 3]), ("count", 0.25, [0]), ("count", 0.5, [0, 3])],
)
def test_published_choices(by: str, share: float, expected: list[int]) -> None:
    assert kept(by, share) == expected


def test_spread_is_the_unbiased_deviation() -> None:
    assert [spread(group) for group in GROUPS] == pytest.approx(PUBLISHED)
    assert spread(outcome_group(1.0)) == spread(outcome_group(None, None)) == 0.0


def test_every_drop_has_its_reason() -> None:
    result = TopVariance()([of_spread(0.1), of_spread(0.5), of_spread(0.0), outcome_group(None)])
    assert [reason for _, reason in result.dropped] == ["low_variance", "zero_variance", "no_valid_episode"]


@settings(max_examples=20)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.5]), max_size=5), st.sampled_from(["count", "mass"]))
def test_the_whole_share_is_zero_variance(spreads: list[float], by: str) -> None:
    groups = [of_spread(value) for value in spreads]
    found = TopVariance.model_validate({"by": by, "share": 1.0})(groups)
    assert found.kept == ZeroVariance()(groups).kept


@settings(max_examples=20)
@given(st.lists(st.floats(0.01, 2), min_size=1, max_size=6), st.floats(0.01, 1), st.sampled_from(["count", "mass"]))
def test_nothing_dropped_has_more_spread_than_anything_kept(spreads: list[float], share: float, by: str) -> None:
    result = TopVariance.model_validate({"by": by, "share": share})([of_spread(value) for value in spreads])
    assert result.kept
    least = min(spread(group) for group in result.kept)
    assert all(spread(group) <= least for group, _ in result.dropped)


def test_surplus_is_cut_from_the_end_and_named() -> None:
    result = ZeroVariance()([GROUPS[0], GROUPS[1], GROUPS[2]])
    cut = result.at_most(1)
    assert cut.kept == (GROUPS[0],)
    assert [reason for _, reason in cut.dropped] == ["zero_variance", "surplus"]
    assert result.at_most(2) == result
