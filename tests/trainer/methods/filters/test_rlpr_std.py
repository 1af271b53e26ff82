"""RLPR's filter: published numbers, when it begins, and its state."""

import math
from pathlib import Path

import pytest

from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.trainer.methods.annotators.base import annotate_trees
from envgym.trainer.methods.filters.rlpr_std import RlprStd
from envgym.trainer.methods.protocols import Checkpointed, ObservingFilter
from tests.support.example_trees import outcome_group


def of_deviation(value: float) -> Group:
    """Return a group of two values whose unbiased deviation is `value`."""
    group = outcome_group(0.0, 0.0)
    values = {"t0": 0.0, "t1": math.sqrt(2) * value}
    return annotate_trees(
        group, {tree: [Annotation(name="rlpr", level="episode", node=1, value=v)] for tree, v in values.items()}
    )


def seen(*deviations: float, **fields: int) -> RlprStd:
    made = RlprStd.model_validate(fields)
    for step, deviation in enumerate(deviations, start=1):
        made.observe([of_deviation(deviation)], step=step)
    return made


def test_published_numbers() -> None:
    # The mean begins as that of steps 6 to 10, here .2; then .99 · .2 + .01 · .1 = .199, and half of it is .0995.
    assert seen(*[9.0] * 5, *[0.2] * 5).threshold == pytest.approx(0.1)
    assert seen(*[9.0] * 5, *[0.2] * 5, 0.1).threshold == pytest.approx(0.0995)


def test_the_running_mean_begins_as_the_mean_of_the_counted_steps() -> None:
    assert seen(*[0.0] * 5, 0.1, 0.2, 0.3, 0.4, 0.5).threshold == pytest.approx(0.5 * 0.3)


def test_nothing_is_dropped_before_it_is_active() -> None:
    groups = [of_deviation(0.0), of_deviation(1.0)]
    assert RlprStd()(groups).kept == tuple(groups)
    assert seen(*[1.0] * 9)(groups).kept == tuple(groups)
    assert [reason for _, reason in seen(*[1.0] * 10)(groups).dropped] == ["low_deviation"]


def test_groups_without_values_or_episodes_have_their_own_reasons() -> None:
    result = RlprStd()([outcome_group(1.0), outcome_group(None)])
    assert [reason for _, reason in result.dropped] == ["not_annotated", "no_valid_episode"]


def test_a_resumed_filter_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    for number in (7, 12):
        whole = seen(*[0.1 * step for step in range(1, 15)])
        first = seen(*[0.1 * step for step in range(1, number)])
        assert isinstance(first, Checkpointed)
        assert isinstance(first, ObservingFilter)
        folder = tmp_path / str(number)
        folder.mkdir()
        first.save(folder)
        resumed = RlprStd()
        resumed.load(folder)
        for step in range(number, 15):
            resumed.observe([of_deviation(0.1 * step)], step=step)
        assert resumed.threshold == whole.threshold
