"""Steps ahead, stragglers and over-sampling: how old samples get, who is missing, and that nothing is lost."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.search.protocol import SEARCH
from envgym.config.plugins import Choice
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.core.turns import Ending, Invalid
from envgym.errors import SettingsError
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.checks.preflight import check_invalid
from envgym.trainer.methods.corrections import Tis
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, TaskRequest
from envgym.trainer.rollout.collector import Collected, Collector
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings
from tests.support.tiny_runs import tiny_settings

GROUPS, SIZE = 2, 4
FREE: dict[str, Any] = {"deterministic": False}


def settings(*, concurrency: int = 64, sections: dict[str, Any] | None = None, **asked: Any) -> TrainSettings:
    return tiny_settings(
        engine={"concurrency": concurrency},
        envs=[{"id": "puzzles/guess_number-v0"}],
        agent={"max_context_tokens": 512},
        rollout={"groups": GROUPS, "group_size": SIZE, **asked},
        **(sections or {}),
    )


@pytest.fixture(scope="module")
def built() -> RunContext:
    return build_run_context(settings())


class Guesser(ScriptedPolicy):
    """Guesses by the seed; those whom `holds` names wait until they are let go."""

    def __init__(self, bench: RunContext, holds: Callable[[int], bool] = lambda number: False) -> None:
        words = [
            bench.agent.renderer.encode_action(bench.agent.renderer.parse(bench.tokenizer.encode(str(n))))
            for n in range(9)
        ]
        super().__init__(lambda request: words[request.seed % 9])
        self.holds, self.num_asked, self.num_held, self.going = holds, 0, 0, asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Generation:
        number, self.num_asked = self.num_asked, self.num_asked + 1
        await asyncio.sleep(0)
        if self.holds(number):
            self.num_held += 1
            await self.going.wait()
        return await super().generate(request)


def ages(groups: list[Group], step: int) -> list[int]:
    """Return how old the samples are, in the order of the groups."""
    nodes = [node for group in groups for tree in group.trees for node in tree.nodes]
    versions = [part.policy_version for node in nodes for part in node.edge.segments]
    return [step - version for version in versions if version is not None]


def drive(
    bench: RunContext,
    asked: TrainSettings,
    *,
    steps: int,
    policy: Guesser | None = None,
    learn: Callable[[int], Awaitable[None]] | None = None,
    on_finished: Callable[[Tree], None] | None = None,
) -> list[Collected]:
    """Collect and learn in turns, where learning makes the next version."""

    async def work() -> list[Collected]:
        acts = policy or Guesser(bench)
        rounds = asked.resampling.rounds
        collector = Collector(replace(collect_plan(bench, asked), policy=acts, rounds=rounds, last=steps))
        found: list[Collected] = []
        try:
            for step in range(steps):
                found.append(await collector.take(step, stats={}, on_finished=on_finished))
                if learn is not None:
                    await learn(step)
                acts.set_version(step + 1)
        finally:
            await collector.close()
        return found

    return asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_samples_are_exactly_as_old_as_asked_once_the_run_is_so_far(built: RunContext, staleness: int) -> None:
    found = drive(built, settings(staleness=staleness), steps=6)
    for step, collected in enumerate(found):
        assert set(ages(collected.groups, step)) == {min(step, staleness)}


@pytest.mark.parametrize("staleness", [1, 2])
def test_samples_that_overlap_with_learning_are_never_older(built: RunContext, staleness: int) -> None:
    async def learn(step: int) -> None:
        for _ in range(7 * (step % 3)):
            await asyncio.sleep(0)

    found = drive(built, settings(staleness=staleness, **FREE), steps=8, learn=learn)
    seen = [age for step, collected in enumerate(found) for age in ages(collected.groups, step)]
    assert 0 < max(seen) <= staleness
    assert min(seen) >= 0


def test_the_next_step_grows_while_one_learns(built: RunContext) -> None:
    policy = Guesser(built, holds=lambda number: number >= GROUPS * SIZE)
    under_way = list[int]()

    async def learn(step: int) -> None:
        await asyncio.sleep(0.05)
        under_way.append(policy.num_held)
        policy.going.set()

    drive(built, settings(staleness=1, **FREE), steps=2, policy=policy, learn=learn)
    assert under_way[0] == GROUPS * SIZE
    assert under_way[1] == policy.num_held  # nothing was begun for a third step


def test_a_request_samples_as_it_says(built: RunContext) -> None:
    class Cooled(Uniform):
        def choose(self, context: CurriculumContext) -> list[TaskRequest]:
            first, *others = super().choose(context)
            return [replace(first, sampling=Sampling(temperature=0.5)), *others]

    temperatures = list[float]()

    class Listening(Guesser):
        async def generate(self, request: GenerateRequest) -> Generation:
            temperatures.append(request.sampling.temperature)
            return await super().generate(request)

    corrected = replace(built.method.objective, correction=Tis())
    cooled = replace(built, method=replace(built.method, curriculum=Cooled(), objective=corrected))
    drive(cooled, settings(concurrency=1), steps=1, policy=Listening(built))
    assert temperatures == sorted(temperatures)
    assert set(temperatures) == {0.5, 1.0}


def test_age_changes_neither_tasks_nor_seeds(built: RunContext) -> None:
    """A policy that ignores its version says the same, so every step's groups are those of a step on its own."""
    alone = [
        asyncio.run(Collector(replace(collect_plan(built, settings()), policy=Guesser(built))).take(n, stats={}))
        for n in range(3)
    ]
    for asked in (settings(staleness=2), settings(staleness=2, **FREE), settings(concurrency=1)):
        for step, collected in enumerate(drive(built, asked, steps=3)):
            assert collected.requests == alone[step].requests
            assert [group.key for group in collected.groups] == [group.key for group in alone[step].groups]
            for mine, its in zip(collected.groups, alone[step].groups, strict=True):
                assert [tree.seed for tree in mine.trees] == [tree.seed for tree in its.trees]
                assert [_said(tree) for tree in mine.trees] == [_said(tree) for tree in its.trees]


def _said(tree: Tree) -> list[tuple[int, ...]]:
    return [part.token_ids for node in tree.nodes for part in node.edge.segments]


def test_a_straggler_is_aborted_and_recorded_and_its_group_trains_without_it(built: RunContext) -> None:
    policy = Guesser(built, holds=lambda number: number == 2)
    asked = settings(min_finished_share=7 / 8, stragglers="abort", **FREE)
    (collected,) = drive(built, asked, steps=1, policy=policy)
    assert [len(group.trajectories) for group in collected.groups] == [SIZE, SIZE]
    assert [len(group.valid) for group in collected.groups] == [SIZE - 1, SIZE]
    (lost,) = [episode for episode in collected.groups[0].trajectories if isinstance(episode.reward, Invalid)]
    assert (lost.ending, lost.reward.reason) == (Ending.ERROR_ABORTED, "a straggler: the step went on without it")  # type: ignore[union-attr]  # chosen so
    check_invalid(collected.groups, limit=0.0, step=1)  # it did not fail


def test_a_straggler_is_carried_to_the_next_step_and_no_further(built: RunContext) -> None:
    policy = Guesser(built, holds=lambda number: number == 2)

    async def learn(step: int) -> None:
        if step == 0:
            asyncio.get_running_loop().call_later(0.2, policy.going.set)

    asked = settings(staleness=1, min_finished_share=7 / 8, stragglers="carry", **FREE)
    first, second = drive(built, asked, steps=2, policy=policy, learn=learn)
    assert [group.key for group in first.groups] == ["step-000001/001"]
    assert (first.target, first.metrics["collect/carried"]) == (GROUPS, 1.0)
    assert [group.key for group in second.groups] == ["step-000001/000", "step-000002/000", "step-000002/001"]
    assert second.target == GROUPS + 1
    assert max(ages(second.groups, 1)) == 1
    episodes = [episode for group in (*first.groups, *second.groups) for episode in group.trajectories]
    assert len(episodes) == 4 * SIZE
    assert not any(isinstance(episode.reward, Invalid) for episode in episodes)


def test_a_step_goes_on_when_over_sampling_has_found_enough(built: RunContext) -> None:
    policy = Guesser(built, holds=lambda number: number in (0, SIZE))  # one episode of the first two groups each
    (collected,) = drive(built, settings(oversampling=2.0, stragglers="abort", **FREE), steps=1, policy=policy)
    assert len(collected.requests) == len(collected.groups) == 2 * GROUPS
    assert [len(group.valid) for group in collected.groups] == [SIZE - 1, SIZE - 1, SIZE, SIZE]
    assert collected.target == GROUPS


class Dawdler(Guesser):
    """Guesses after a number of passes of the event loop that differs from request to request."""

    def __init__(self, bench: RunContext, shift: int) -> None:
        super().__init__(bench)
        self._shift = shift

    async def generate(self, request: GenerateRequest) -> Generation:
        for _ in range((request.seed + self._shift) % 11):
            await asyncio.sleep(0)
        return await super().generate(request)


@pytest.mark.parametrize("asked", [{"stragglers": "abort"}, {"stragglers": "carry", "staleness": 1}])
def test_groups_may_end_in_any_pass_of_the_event_loop(built: RunContext, asked: dict[str, Any]) -> None:
    leaves_some = settings(min_finished_share=0.6, oversampling=1.5, **FREE, **asked)
    for shift in range(4):
        carried = 0.0
        for collected in drive(built, leaves_some, steps=4, policy=Dawdler(built, shift)):
            left = collected.metrics["collect/carried"]
            assert len(collected.groups) == len(collected.requests) == 3 + carried - left
            assert all(len(group.trajectories) == SIZE for group in collected.groups)
            carried = left


@pytest.mark.parametrize("oversampling", [1.0, 1.2, 2.5])
def test_who_waits_for_all_has_all(built: RunContext, oversampling: float) -> None:
    (collected,) = drive(built, settings(oversampling=oversampling), steps=1)
    assert len(collected.groups) == math.ceil(GROUPS * oversampling)
    assert all(len(group.valid) == SIZE for group in collected.groups)


def test_every_tree_is_told_once(built: RunContext) -> None:
    told: list[str] = []
    drive(built, settings(staleness=1), steps=3, on_finished=lambda tree: told.append(tree.id))
    assert len(told) == len(set(told)) == 3 * GROUPS * SIZE


def test_no_more_groups_are_begun_than_the_settings_say(built: RunContext) -> None:
    """While the first step waits for one episode, those behind it are begun as far as asked, and no further."""
    policy = Guesser(built, holds=lambda number: True)

    async def work() -> None:
        asked = settings(staleness=2, **FREE)
        collector = Collector(replace(collect_plan(built, asked), policy=policy))
        taking = asyncio.ensure_future(collector.take(0, stats={}))
        await asyncio.sleep(0.2)
        taking.cancel()
        await collector.close()

    asyncio.run(work())
    assert policy.num_held == 3 * GROUPS * SIZE


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({"stragglers": "abort"}, "rollout.deterministic must be false where stragglers are not waited for"),
        ({"min_finished_share": 0.5}, "rollout.min_finished_share must be 1 where all are waited for, got 0.5"),
        ({"stragglers": "carry", **FREE}, "rollout.staleness must be at least 1 to carry over, got 0"),
        ({"staleness": -1}, "rollout.staleness must be greater than or equal to 0"),
        ({"oversampling": 0.5}, "rollout.oversampling must be greater than or equal to 1"),
        ({"stalenes": 1}, "did you mean staleness"),
    ],
)
def test_what_cannot_be_is_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        settings(**asked)


@pytest.mark.parametrize(
    "name, fields, min_finished_share",
    [
        ("random_expand", {"trees": 2, "nodes": 1}, 3 / 4),  # two trees a group
        ("best_of", {"n": SIZE}, 1 / 2),  # one tree a group
        ("mcts", {"simulations": SIZE}, 1 / 2),
    ],
)
def test_stragglers_of_a_tree_are_aborted_and_counted_invalid(
    built: RunContext, name: str, fields: dict[str, Any], min_finished_share: float
) -> None:
    policy = Guesser(built, holds=lambda number: number == 5)
    asked = settings(min_finished_share=min_finished_share, stragglers="abort", **FREE)
    search = SEARCH.build(Choice.model_validate({**fields, "name": name}))
    searching = replace(built, method=replace(built.method, search=search))
    (collected,) = drive(searching, asked, steps=1, policy=policy)
    episodes = [episode for group in collected.groups for episode in group.trajectories]
    aborted = [episode for episode in episodes if isinstance(episode.reward, Invalid)]
    assert 0 < len(aborted) < len(episodes)
    reason = "a straggler: the step went on without it"
    assert {episode.reward for episode in aborted} == {Invalid(cause=Ending.ERROR_ABORTED, reason=reason)}
    assert len(collected.groups) == GROUPS
    check_invalid(collected.groups, limit=0.0, step=1)  # they did not fail


def test_every_search_may_abort_its_stragglers() -> None:
    asked = settings(stragglers="abort", **FREE, sections={"search": {"name": "random_expand"}})
    assert build_run_context(asked).method.search == SEARCH.build(Choice(name="random_expand"))
