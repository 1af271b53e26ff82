"""The window of groups: a step trains the oldest finished ones, none too old; what leaves is replaced one by one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.core.turns import Ending, Invalid
from envgym.errors import SettingsError
from envgym.trainer.build import RunContext, build_run_context
from envgym.trainer.methods.protocols import FilterResult
from envgym.trainer.rollout.window import TOO_OLD
from envgym.trainer.settings import TrainSettings
from tests.trainer.rollout.test_collector import GROUPS, SIZE, Dawdler, Guesser, ages, drive, settings


@pytest.fixture(scope="module")
def built() -> RunContext:
    return build_run_context(settings())


def windowed(staleness: int, *, sections: dict[str, Any] | None = None, **asked: Any) -> TrainSettings:
    return settings(staleness=staleness, stragglers="window", deterministic=False, sections=sections, **asked)


def holding_first_of(bench: RunContext, number: int) -> Guesser:
    """Return a policy that lets one episode of the group of this number wait."""
    return Guesser(bench, holds=lambda asked: asked == number * SIZE)


@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize("shift", range(3))
def test_no_token_is_too_old_and_no_group_trains_twice(built: RunContext, staleness: int, shift: int) -> None:
    steps, policy = 9, Dawdler(built, shift)

    async def learn(step: int) -> None:
        for _ in range(5 * (step % 3)):
            await asyncio.sleep(0)

    found = drive(built, windowed(staleness, window=0.6), steps=steps, policy=policy, learn=learn)
    keys = [group.key for collected in found for group in collected.groups]
    assert len(keys) == len(set(keys))
    for step, collected in enumerate(found):
        lost = int(collected.metrics["collect/too_old"])
        assert len(collected.groups) == GROUPS + lost
        assert collected.wanted == GROUPS
        assert max(ages(collected.groups, step)) <= staleness
        assert all(len(group.valid) == SIZE for group in collected.groups[:GROUPS])
        left = min(staleness, steps - 1 - step)  # steps whose groups are begun
        assert collected.metrics["collect/steps_ahead"] * GROUPS == left * GROUPS + GROUPS - GROUPS - lost
    # one for each that trained or was lost, but for those lost in the last steps, whose place nobody needs
    assert steps * GROUPS <= len(keys)
    assert len(policy.requests) >= steps * GROUPS * SIZE


def test_a_straggler_is_passed_over_until_it_is_too_old_and_then_replaced_by_one(built: RunContext) -> None:
    policy = holding_first_of(built, 1)
    first, second, third, fourth = drive(built, windowed(2, window=0.5), steps=4, policy=policy)
    keys = [[group.key for group in collected.groups] for collected in (first, second, third, fourth)]
    assert keys == [
        ["step-000001/000", "step-000002/000"],
        ["step-000002/001", "step-000003/000"],
        ["step-000003/001", "step-000004/000", "step-000001/001"],
        ["step-000004/001", "step-000005/000"],
    ]
    assert [collected.metrics["collect/too_old"] for collected in (first, second, third, fourth)] == [0, 0, 1, 0]
    (lost,) = [episode for episode in third.groups[2].trajectories if isinstance(episode.reward, Invalid)]
    assert isinstance(lost.reward, Invalid)
    assert (lost.ending, lost.reward.reason) == (Ending.ERROR_ABORTED, TOO_OLD)
    assert max(ages(third.groups[:2], 2)) <= 2


def test_beyond_the_window_nothing_is_taken_in_a_stragglers_place(built: RunContext) -> None:
    """The first group's straggler goes on when every other episode that was begun has ended."""
    policy = holding_first_of(built, 0)
    told = list[Tree]()

    async def work() -> list[list[str]]:
        asked = windowed(1, window=0.0)
        collector = replace(built, policy=policy).make_collector(asked, last=2)
        async with collector:
            taking = asyncio.ensure_future(collector.take(0, stats={}, on_finished=told.append))
            _, pending = await asyncio.wait([taking], timeout=0.3)  # all others end in a fraction of it
            assert pending
            assert policy.num_held == 1
            policy.going.set()
            first = await taking
            policy.set_version(1)
            second = await collector.take(1, stats={}, on_finished=told.append)
        return [[group.key for group in collected.groups] for collected in (first, second)]

    assert asyncio.run(asyncio.wait_for(work(), 60)) == [
        ["step-000001/000", "step-000001/001"],
        ["step-000002/000", "step-000002/001"],
    ]
    assert len(told) == 2 * GROUPS * SIZE


class SecondOnly:
    """A filter that keeps every second group of the curriculum's order."""

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        return FilterResult.split(groups, ["odd" if int(group.key[-1]) % 2 else None for group in groups])


def test_what_the_filter_drops_is_replaced_by_as_many_and_recorded(built: RunContext) -> None:
    bench = replace(built, method=replace(built.method, filter=SecondOnly()))
    asked = windowed(1, sections={"resampling": {"rounds": 3}}, window=1.0)
    found = drive(bench, asked, steps=3)
    for collected in found:
        lost = [int(group.key[-1]) % 2 for group in collected.groups]
        assert lost == [0] * GROUPS + [1] * int(collected.metrics["collect/replaced"])
        assert collected.metrics["collect/too_old"] == 0
    keys = [group.key for collected in found for group in collected.groups]
    assert len(keys) == len(set(keys))
    assert sum(collected.metrics["collect/replaced"] for collected in found) >= 2 * GROUPS


def test_a_step_makes_do_with_fewer_when_the_filter_keeps_none(built: RunContext) -> None:
    class KeepsNone:
        def __call__(self, groups: Sequence[Group]) -> FilterResult:
            return FilterResult.split(groups, ["all"] * len(groups))

    bench = replace(built, method=replace(built.method, filter=KeepsNone()))
    for rounds in (1, 2):
        found = drive(bench, windowed(1, sections={"resampling": {"rounds": rounds}}), steps=2)
        replaced = [int(collected.metrics["collect/replaced"]) for collected in found]
        assert [len(collected.groups) for collected in found] == replaced
        assert min(replaced) >= rounds * GROUPS


def test_a_run_begins_no_group_that_it_does_not_need(built: RunContext) -> None:
    policy = Guesser(built)
    drive(built, windowed(3), steps=3, policy=policy)
    assert len({request.seed for request in policy.requests}) == len(policy.requests)
    found = drive(built, windowed(3), steps=3)
    assert [collected.metrics["collect/steps_ahead"] for collected in found] == [2, 1, 0]


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({"staleness": 0, "deterministic": False}, "rollout.staleness must be at least 1 to carry over, got 0"),
        ({"staleness": 1}, "rollout.deterministic must be false where stragglers are not waited for, got True"),
        (
            {"staleness": 1, "deterministic": False, "oversampling": 1.5},
            "rollout.oversampling must be 1 where stragglers is window, got 1.5",
        ),
        (
            {"staleness": 1, "deterministic": False, "min_finished_share": 0.5},
            "rollout.min_finished_share must be 1 where all are waited for, got 0.5",
        ),
        ({"staleness": 1, "deterministic": False, "window": 2}, "rollout.window must be less than or equal to 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        settings(stragglers="window", **asked)


def test_a_resumed_run_replays_no_turn_that_would_be_too_old_in_a_window() -> None:
    assert [windowed(2).rollout.replayed_staleness, settings(staleness=2).rollout.replayed_staleness] == [0, 2]
