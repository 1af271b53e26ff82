"""Equal runs give equal numbers, whatever the threads' timing: also those of searches, whose branches begin late."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from envgym import Action, Env, Reply, Task
from envgym.core.tree import Tree
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.seeds import derive_seed
from envgym.trainer.train import train
from tests.support.parrots import ParrotTasks
from tests.support.tiny_runs import comparable
from tests.trainer.test_critic_run import settings


@dataclass(slots=True)
class Talk:
    """Nothing but that an episode is under way."""


class Fickle(Env[Talk]):
    """Answers, pays and leaves by what it hears, so that episodes of a tree end at different turns."""

    tasks = ParrotTasks()

    def __init__(self, *, blocking: bool = False) -> None:
        super().__init__(max_turns=6)
        self.blocking = blocking

    def begin(self, task: Task) -> str:
        self.state = Talk()
        return task.prompt

    def respond(self, action: Action) -> Reply:
        heard = derive_seed("fickle", action.content) % 100
        return Reply(observation="ok" * (1 + heard % 3), reward=heard / 100, terminated=heard < 25)


@contextmanager
def hurried_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(folder: Path, recipe: str, *, blocking: bool = False) -> RunDirectory:
    sections = {
        "recipe": recipe,
        "run": {"name": "test", "directory": str(folder), "steps": 1, "trackers": []},
        "envs": [{"id": f"{__name__}:Fickle", "settings": {"blocking": blocking}}],
        "rollout": {"groups": 4, "group_size": 4},
        "credit": {"name": "grpo"},
        "shaping": {"name": "none"},
    }
    train(settings(folder, **sections))
    return RunDirectory.open(folder)


def shape(tree: Tree) -> list[object]:
    """Return all of a tree but log-probs and costs: ids, tokens, rewards and endings."""
    return [
        (
            node.parent,
            [part.token_ids for part in node.edge.segments],
            node.outcome and node.outcome.reward,
            node.ending,
        )
        for node in tree.nodes
    ]


@pytest.mark.parametrize("recipe", ["tree_rl", "deep_search"])
def test_searches_repeat_bit_by_bit(recipe: str, tmp_path: Path) -> None:
    expected = comparable(run(tmp_path / "first", recipe))
    with hurried_threads():
        assert comparable(run(tmp_path / "again", recipe)) == expected


def test_envs_in_threads_change_the_rounding_alone(tmp_path: Path) -> None:
    first = run(tmp_path / "first", "tree_rl", blocking=True)
    with hurried_threads():
        again = run(tmp_path / "again", "tree_rl", blocking=True)
    trees, repeated = (list(trees_of(directory.episodes())) for directory in (first, again))
    assert [shape(tree) for tree in repeated] == [shape(tree) for tree in trees]
    logprobs, repeated_logprobs = (
        [part.behavior_logprobs or () for tree in found for node in tree.nodes for part in node.edge.segments]
        for found in (trees, repeated)
    )
    for expected, found in zip(logprobs, repeated_logprobs, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
