"""Groups of a train step: who is in them, and that a search changes how they are grown and nothing else."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.search import Chain, Strategy
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from envgym.trainer.batch.rows import train_rows
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings
from tests.support.plugins import CREDITS
from tests.support.tiny_runs import tiny_settings


def settings(directory: Path, group_size: int = 4, **search: Any) -> TrainSettings:
    return tiny_settings(
        directory,
        engine={"concurrency": 3},
        envs=[{"id": "puzzles/guess_number-v0"}],
        agent={"max_context_tokens": 512},
        rollout={"group_size": group_size},  # what a group of one cannot have is for the search to say
        search=search or {"name": "chain"},
    )


def groups(
    bench: RunContext,
    asked: TrainSettings,
    *,
    search: Strategy | None = None,
    on_finished: Callable[[Tree], None] | None = None,
) -> list[Group]:
    plan = collect_plan(bench, asked)
    collector = Collector(plan if search is None else replace(plan, search=search))
    return asyncio.run(collector.take(0, stats={}, on_finished=on_finished)).groups


def rows(group: Group) -> list[tuple[int, ...]]:
    return [row.token_ids for episode in group.trajectories for row in episode.rows]


def test_trees_make_up_the_group_and_train(tmp_path: Path) -> None:
    asked = settings(tmp_path, name="random_expand", nodes=2, rounds=1, keep=2)
    bench, seen = build_run_context(asked), list[Tree]()
    found = groups(bench, asked, on_finished=seen.append)
    assert [len(group.trees) for group in found] == [2, 2]
    assert [len(group.trajectories) for group in found] == [4, 4]
    assert {tree.id for tree in seen} == {f"step-000001/{group:03d}/{tree:02d}" for group in (0, 1) for tree in (0, 1)}
    credits = [credit for group in found for credit in CREDITS["grpo"]()(group)]
    assert len(train_rows(credits, once=True)) == 8
    assert any(weight == 0.5 for row in train_rows(credits, once=True) for weight in row.weights)


def test_a_chain_is_the_first_leaf_of_a_tree(tmp_path: Path) -> None:
    asked = settings(tmp_path, name="random_expand", nodes=1, rounds=1)
    bench = build_run_context(asked)
    trees, chains = groups(bench, asked), groups(bench, asked, search=Chain())
    for grown, plain in zip(trees, chains, strict=True):
        assert len(grown.trajectories) == len(plain.trajectories) == 4
        assert rows(grown)[::2] == rows(plain)[:2]
        assert grown.key == plain.key


def test_concurrency_changes_no_chain(tmp_path: Path) -> None:
    asked = settings(tmp_path)
    bench = build_run_context(asked)
    wide = asked.model_copy(update={"engine": asked.engine.model_copy(update={"concurrency": 64})})
    assert [rows(group) for group in groups(bench, asked)] == [rows(group) for group in groups(bench, wide)]


@pytest.mark.parametrize(
    "group_size, search, sentence",
    [
        (1, {"name": "random_expand"}, "rollout.group_size must be at least 2 for grpo, .*, got 1"),
        (4, {"name": "random_expnd"}, "did you mean random_expand"),
        (4, {"name": "random_expand", "node": 3}, "did you mean nodes"),
        (4, {"name": "random_expand", "rounds": None}, "rounds=None must be used with a budget"),
        (4, {"name": "random_expand", "budget": {"tokens_generated": 7}}, "budget must hold at least one chain"),
    ],
)
def test_what_cannot_be_grown_is_refused_before_anything_is_loaded(
    tmp_path: Path, group_size: int, search: dict[str, Any], sentence: str
) -> None:
    asked = settings(tmp_path, group_size, **search)
    no_model = asked.model_copy(update={"model": asked.model.model_copy(update={"name": "no-such-model"})})
    with pytest.raises((SettingsError, ValueError), match=sentence):
        build_run_context(no_model)
