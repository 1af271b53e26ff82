"""Groups that are extended while under way: the same episodes as a larger group's, bounds, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.methods.protocols import Allocator, TaskRequest
from envgym.trainer.rollout.collector import Collected
from envgym.trainer.run import RunContext
from envgym.trainer.train import train
from tests.trainer.rollout.test_collector import FREE, GROUPS, SIZE, Guesser, drive, settings
from tests.trainer.test_critic_run import settings as run_settings


@pytest.fixture(scope="module")
def built() -> RunContext:
    return build_run_context(settings())


class Rounds:
    """Extends every group by the sizes that it is given, and keeps all episodes."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.seen: list[tuple[int, int, int]] = []

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        self.seen.append((step, round, len(group.trajectories)))
        return replace(request, group_size=self.sizes[round]) if round < len(self.sizes) else None

    def finish(self, request: TaskRequest, group: Group) -> Group:
        return group


class Elsewhere(Rounds):
    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        return replace(request, index=request.index + 1)


def collect(bench: RunContext, allocator: Allocator, *, steps: int = 1, **asked: Any) -> list[Collected]:
    return drive(replace(bench, method=replace(bench.method, allocator=allocator)), settings(**asked), steps=steps)


def tokens(groups: Sequence[Group]) -> list[list[tuple[str, list[tuple[int, ...]]]]]:
    return [[(tree.id, _said(tree)) for tree in group.trees] for group in groups]


def _said(tree: Tree) -> list[tuple[int, ...]]:
    return [part.token_ids for node in tree.nodes for part in node.edge.segments]


def test_extended_group_has_the_episodes_of_one_that_began_as_large(built: RunContext) -> None:
    allocator = Rounds(1, 3)
    (extended,) = collect(built, allocator)
    (whole,) = drive(built, settings(group_size=SIZE + 4), steps=1)
    assert tokens(extended.groups) == tokens(whole.groups)
    sizes = [(0, 0, SIZE), (0, 1, SIZE + 1), (0, 2, SIZE + 4)]
    assert sorted(allocator.seen) == sorted(sizes * GROUPS)
    assert [request.group_size for request in extended.requests] == [SIZE, SIZE]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_extension_does_not_depend_on_timing(built: RunContext, concurrency: int) -> None:
    first, again = collect(built, Rounds(2, 2)), collect(built, Rounds(2, 2), concurrency=concurrency)
    assert tokens(first[0].groups) == tokens(again[0].groups)


def test_group_is_extended_up_to_the_bound_of_the_settings(built: RunContext) -> None:
    (collected,) = collect(built, Rounds(*[3] * 100), max_group_size=SIZE + 5)
    assert [len(group.trajectories) for group in collected.groups] == [SIZE + 5] * GROUPS


def test_groups_of_steps_ahead_are_extended_too(built: RunContext) -> None:
    found = collect(built, Rounds(1), steps=3, staleness=1, **FREE)
    assert [len(group.trajectories) for step in found for group in step.groups] == [SIZE + 1] * 6


def test_every_tree_of_an_extension_is_told(built: RunContext) -> None:
    told: list[str] = []
    extending = replace(built, method=replace(built.method, allocator=Rounds(2)))
    drive(extending, settings(), steps=1, policy=Guesser(built), on_finished=lambda tree: told.append(tree.id))
    assert len(told) == len(set(told)) == GROUPS * (SIZE + 2)


def test_extension_by_another_task_is_refused(built: RunContext) -> None:
    with pytest.raises(InvalidInput, match="extension must request episodes of puzzles/guess_number-v0, task"):
        collect(built, Elsewhere(1))


def test_no_allocator_beside_stragglers() -> None:
    with pytest.raises(SettingsError, match=r"rollout\.stragglers must be wait beside an allocator, got abort"):
        settings(stragglers="abort", **FREE, sections={"allocator": {"name": "reinforce_ada"}})


def test_reinforce_ada_trains(tmp_path: Path) -> None:
    chosen = {
        "allocator": {"name": "reinforce_ada", "keep": 2, "rounds": 3},
        "credit": {"name": "reinforce_ada"},
    }
    result = train(run_settings(tmp_path, **chosen))
    rows = [row for row in RunDirectory.open(tmp_path).metrics() if "collect/draws" in row]
    assert result.steps == len(rows) == 2
    # an untrained model never wins: three rounds of two episodes, of which two are kept, for each of two groups
    assert [(row["collect/draws"], row["rollout/episodes"], row["optim/updates"]) for row in rows] == [(12, 4, 2)] * 2
