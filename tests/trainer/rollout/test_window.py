"""The window of groups: a step trains the oldest finished ones, none too old; what leaves is replaced one by one."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym import Ending, Invalid, Split, Task
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.core.trajectory import Group, StartState
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.methods.protocols import FilterResult, TaskRequest
from envgym.trainer.rollout.collector import Collected, Collector
from envgym.trainer.rollout.draws import GroupDraw, load_draws, save_draws
from envgym.trainer.rollout.window import TOO_OLD
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings
from tests.trainer.methods.curricula.test_start_state_curricula import four_turns
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
        assert collected.target == GROUPS
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
    told, counts = list[Tree](), list[tuple[int, int]]()

    def count(num_finished: int, num_open: int) -> None:
        counts.append((num_finished, num_open))

    has_told = asyncio.Event()

    def finish(tree: Tree) -> None:
        told.append(tree)
        has_told.set()

    async def work() -> list[list[str]]:
        asked = windowed(1, window=0.0)
        collector = Collector(replace(collect_plan(built, asked), policy=policy, last=2))
        async with collector:
            taking = asyncio.ensure_future(collector.take(0, stats={}, on_finished=finish, on_groups=count))
            await has_told.wait()
            _, pending = await asyncio.wait([taking], timeout=0.3)  # all others end in a fraction of it
            assert pending
            assert policy.num_held == 1
            assert counts[0] == (0, 2 * GROUPS)
            assert 1 <= counts[-1][0] < 2 * GROUPS
            assert {finished + under_way for finished, under_way in counts} == {2 * GROUPS}
            assert {tree.id.rpartition("/")[0] for tree in told} == {"step-000001/001"}, (
                "as it finishes, not at the end"
            )
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
        ({"stragglers": "wait", "window": 0.5}, "rollout.window must be left at 0.3 where stragglers is not window, "),
    ],
)
def test_what_cannot_be_is_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        settings(**{"stragglers": "window", **asked})


def resumed(bench: RunContext, asked: TrainSettings, folder: Path, *, steps: int, stops: set[int]) -> list[Collected]:
    """Collect as `drive` does, but crash once after each of `stops` and a step more, and go on from its checkpoint."""

    async def work() -> list[Collected]:
        found, crashes = list[Collected](), sorted(stops)
        while len(found) < steps:
            policy = Dawdler(bench, len(crashes))
            policy.set_version(len(found))
            async with Collector(replace(collect_plan(bench, asked), policy=policy, last=steps)) as collector:
                if found:
                    collector.parts()["window"].load(folder / str(len(found)))
                for step in range(len(found), steps):
                    collected = await collector.take(step, stats={})
                    if crashes and step == crashes[0]:
                        crashes.pop(0)
                        break  # what was collected is lost
                    found.append(collected)
                    policy.set_version(step + 1)
                    place = folder / str(step + 1)
                    shutil.rmtree(place, ignore_errors=True)
                    place.mkdir()
                    collector.parts()["window"].save(place)
        return found

    return asyncio.run(asyncio.wait_for(work(), 60))


def drawn(found: Sequence[Collected]) -> dict[str, TaskRequest]:
    """Return what was drawn for each group that left the window; no group leaves it twice."""
    pairs = [pair for collected in found for pair in zip(collected.groups, collected.requests, strict=True)]
    assert len({group.key for group, _ in pairs}) == len(pairs)
    return {group.key: request for group, request in pairs}


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("stops", [{1}, {2, 3}, {4}, {1, 2, 3, 4, 5}])
def test_resumed_run_draws_what_a_whole_one(built: RunContext, tmp_path: Path, staleness: int, stops: set[int]) -> None:
    steps, asked = 6, windowed(staleness, window=0.6)
    found = resumed(built, asked, tmp_path, steps=steps, stops=stops)
    again = drawn(found)
    endless = drive(built, windowed(staleness), steps=2 * steps)
    in_order = dict(sorted(drawn(endless).items()))
    assert again == dict(list(in_order.items())[: len(again)]), "nothing twice, and nothing left out"
    assert len(again) == steps * GROUPS + sum(int(collected.metrics["collect/too_old"]) for collected in found)
    for step, collected in enumerate(found):
        assert len(collected.groups[:GROUPS]) == GROUPS
        assert max(ages(collected.groups[:GROUPS], step)) <= staleness


def test_groups_that_were_open_are_begun_again_first_and_as_old_as_they_were(built: RunContext, tmp_path: Path) -> None:
    """The first episode of the second group is late; at the checkpoint of step 1 two groups follow, and it is open."""
    asked = windowed(1)

    async def begun(policy: Guesser, *, loads: bool) -> list[list[str]]:
        async with Collector(replace(collect_plan(built, asked), policy=policy, last=9)) as collector:
            if loads:
                collector.parts()["window"].load(tmp_path)
                policy.set_version(1)
            else:
                await collector.take(0, stats={})
                collector.parts()["window"].save(tmp_path)
                policy.set_version(1)
            policy.going.clear()
            collected = await collector.take(1, stats={})
        lost = int(collected.metrics["collect/too_old"])
        keys = [group.key for group in collected.groups]
        return [keys[: len(keys) - lost], keys[len(keys) - lost :]]

    whole = asyncio.run(begun(holding_first_of(built, 1), loads=False))
    # resumed, its group is the first that is begun: number 0 of the requests
    again = asyncio.run(begun(holding_first_of(built, 0), loads=True))
    assert whole == again == [["step-000002/001", "step-000003/000"], ["step-000001/001"]]


def test_a_group_with_a_replayed_turn_older_than_its_beginning_trains_in_time_or_not_at_all(
    built: RunContext,
) -> None:
    class Replays(Guesser):
        """Has the third step's groups from the weights of version 0."""

        async def generate(self, request: GenerateRequest) -> Generation:
            generation = await super().generate(request)
            return generation if self._version != 1 else replace(generation, policy_version=0)

    async def learn(step: int) -> None:
        for _ in range(200):  # so that what was begun ends meanwhile
            await asyncio.sleep(0)

    found = drive(built, windowed(1), steps=5, policy=Replays(built), learn=learn)
    for step, collected in enumerate(found):
        assert max(ages(collected.groups[:GROUPS], step)) <= 1
    assert [collected.metrics["collect/too_old"] for collected in found] == [0, 0, 2, 0, 0]
    assert drawn(found).keys() >= {"step-000003/000", "step-000003/001"}


def test_draws_come_back_with_all_that_a_request_may_ask_for(tmp_path: Path) -> None:
    task = Task(id="own", prompt="Say 1.", payload={"answer": 1}, split=Split.TRAIN, metadata={"level": 2})
    request = TaskRequest(
        env="games",
        index=7,
        group_size=4,
        start=StartState(tree=four_turns("recorded", 1.0), node=2),
        hint="Think.",
        prompts={"other": "In other words: {task}"},
        sampling=Sampling(temperature=0.5, stop_token_ids=(3, 4)),
        metadata={"from": [1, None]},
        direct=True,
        task=task,
    )
    draws = [GroupDraw(request, 3, 1, 2), GroupDraw(TaskRequest("games", 1, 2), 3, 2)]
    save_draws(tmp_path, draws, next_step=4)
    assert load_draws(tmp_path) == (draws, 4)
