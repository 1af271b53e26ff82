"""The replay buffer: who leaves, what is drawn, and that a checkpoint brings all of it back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import trajectories
from envgym.errors import InvalidInput, RunError
from envgym.seeds import generator
from envgym.trainer.methods.replay.buffer import ReplayBuffer, ReplayEntry, keep_leaves
from tests.support.credit_trees import BRANCH, branched, chain
from tests.support.example_trees import start


def entry(name: str, *, step: int = 1, priority: float = 1.0, task_key: str | None = None) -> ReplayEntry:
    tree = chain(name, [1.0])
    return ReplayEntry(
        tree=tree if task_key is None else replace(tree, task_key=task_key), step=step, priority=priority
    )


def names(buffer: ReplayBuffer) -> list[str]:
    return [item.tree.id for item in buffer.entries]


def test_beyond_capacity_the_least_priority_leaves_and_of_equal_ones_the_oldest() -> None:
    buffer = ReplayBuffer().add([entry("a", priority=2.0), entry("b"), entry("c")], capacity=3)
    assert names(buffer.add([entry("d")], capacity=3)) == ["a", "c", "d"]
    assert names(buffer.add([entry("d", priority=0.5)], capacity=3)) == ["a", "b", "c"]
    assert names(buffer.add([entry("b", priority=3.0)], capacity=2)) == ["a", "b"]  # once, with its new priority


def test_entries_older_than_the_limit_are_not_replayed() -> None:
    buffer = ReplayBuffer().add([entry("a", step=1), entry("b", step=3)], capacity=9)
    assert names(buffer.younger(step=5, max_age=2)) == ["b"]  # 5 - 3 = 2, 5 - 1 = 4
    assert names(buffer.younger(step=5, max_age=None)) == ["a", "b"]


def test_only_entries_of_the_task_are_its_own() -> None:
    buffer = ReplayBuffer().add([entry("a"), entry("b", task_key="other")], capacity=9)
    assert names(buffer.of_task("other")) == ["b"]
    assert names(buffer.of_task("none")) == []


def test_draws_go_by_priority() -> None:
    buffer = ReplayBuffer().add([entry("a", priority=3.0), entry("b"), entry("c", priority=0.0)], capacity=9)
    drawn = [buffer.draw(1, generator("test", number))[0].tree.id for number in range(4000)]
    assert drawn.count("c") == 0
    # 3/4, with a standard error of sqrt(3/16/4000) = 0.007
    assert drawn.count("a") / 4000 == pytest.approx(0.75, abs=0.03)


@given(count=st.integers(0, 6), seed=st.integers(0, 2**32), weights=st.lists(st.floats(0.1, 9.0), max_size=5))
def test_draws_never_repeat_and_follow_the_seed(count: int, seed: int, weights: list[float]) -> None:
    buffer = ReplayBuffer().add([entry(f"e{n}", priority=w) for n, w in enumerate(weights)], capacity=9)
    drawn = [item.tree.id for item in buffer.draw(count, np.random.default_rng(seed))]
    assert len(set(drawn)) == len(drawn) == min(count, len(weights))
    assert drawn == [item.tree.id for item in buffer.draw(count, np.random.default_rng(seed))]


def test_checkpoint_brings_trees_steps_and_priorities_back(tmp_path: Path) -> None:
    forked = branched("forked", (0, BRANCH), (1, 1.0), (1, 0.0))  # two episodes, so two rows and one tree
    buffer = ReplayBuffer().add(
        [ReplayEntry(tree=forked, step=4, priority=0.25), entry("a", step=2, task_key="other")], capacity=9
    )
    buffer.save(tmp_path)
    assert ReplayBuffer.load(tmp_path) == buffer
    empty = tmp_path / "empty"
    ReplayBuffer().save(empty)
    assert ReplayBuffer.load(empty) == ReplayBuffer()


def test_checkpoint_whose_files_do_not_belong_together_is_refused(tmp_path: Path) -> None:
    ReplayBuffer().add([entry("a")], capacity=9).save(tmp_path)
    ReplayBuffer().add([entry("b")], capacity=9).save(tmp_path / "other")
    (tmp_path / "other" / "entries.json").rename(tmp_path / "entries.json")
    with pytest.raises(ValueError, match="1 trees beside 1 entries"):
        ReplayBuffer.load(tmp_path)
    (tmp_path / "trees.parquet").write_bytes(b"nothing")
    with pytest.raises(RunError):
        ReplayBuffer.load(tmp_path)


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_priorities_are_weights(priority: float) -> None:
    with pytest.raises(InvalidInput, match="priority must be finite and at least 0"):
        entry("a", priority=priority)


def test_tree_without_an_episode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tree must hold an ended episode, got none"):
        ReplayEntry(tree=start("cut").freeze(), step=1)


def test_leaves_keep_their_paths_and_nothing_else() -> None:
    # 1 -> (2 -> (3, 4), 5): the episode of leaf 4 is 1, 2, 4; the branch below 2 is 1, 2, 3, 4
    tree = branched("A", (0, 0.0), (1, 0.0), (2, 1.0), (2, 0.5), (1, 0.25))
    episode = keep_leaves(tree, [4], id="e")
    assert [segment.token_ids for node in episode.nodes[1:] for segment in node.edge.segments] == [(10,), (11,), (13,)]
    assert [node.parent for node in episode.nodes] == [None, 0, 1, 2]
    branch = keep_leaves(tree, [3, 4], id="b")
    assert [item.rows[0].token_ids for item in trajectories(branch)] == [
        item.rows[0].token_ids for item in trajectories(tree)[:2]
    ]
    assert keep_leaves(tree, tree.leaves, id="A") == tree
    for leaves in ([], [2], [9]):
        with pytest.raises(InvalidInput, match=r"leaves must be some of \(3, 4, 5\)"):
            keep_leaves(tree, leaves, id="x")
