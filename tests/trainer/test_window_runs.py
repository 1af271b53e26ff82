"""A run with a window of groups that crashes and is resumed trains the groups of a run that did not, each once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.core.segments import Origin
from envgym.core.tree import Tree
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings

GROUPS, STALENESS, STEPS = 2, 2, 6
ROLLOUT = {
    "groups": GROUPS,
    "group_size": 2,
    "staleness": STALENESS,
    "deterministic": False,
    "stragglers": "window",
}


def settings(directory: Path) -> TrainSettings:
    """Return a run whose every second step has a checkpoint and, after it, an evaluation."""
    return tiny_settings(
        directory,
        run={"steps": STEPS, "checkpoint_every": 2},
        rollout=ROLLOUT,
        evaluation={"tasks": 2, "every": 2, "tasks_during": 2},
        correction={"name": "tis"},
    )


class CrashError(Exception):
    """What ends a run in the middle."""


class Crash(Callback):
    """Ends the run as a phase begins after so many steps."""

    def __init__(self, phase: str, *, after: int) -> None:
        self._phase, self._after, self._step = phase, after, 0

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        self._step = first_step

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._step = step

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        if self._step == self._after and phase.startswith(self._phase):
            raise CrashError


def trees_of_step(run: RunDirectory, step: int) -> list[Tree]:
    return trees_of(run.episodes([step], label="train"))


def tasks_of(run: RunDirectory) -> dict[str, str]:
    """Return the task of each group that left the window; none does so twice."""
    found = dict[str, str]()
    for step in range(1, STEPS + 1):
        of_step = {tree.id.rpartition("/")[0]: tree.task_id for tree in trees_of_step(run, step)}
        assert not found.keys() & of_step.keys()
        found |= of_step
    return found


def num_turns(trees: list[Tree], *, since: int) -> int:
    turns = [node.edge.segments for tree in trees for node in tree.nodes]
    newest = [[part.policy_version or 0 for part in turn if part.origin is Origin.POLICY] for turn in turns]
    return sum(max(versions) >= since for versions in newest if versions)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    place = tmp_path_factory.mktemp("window") / "whole"
    train(settings(place))
    return RunDirectory.open(place)


@pytest.mark.parametrize(
    "phase, after, going_on",
    [
        ("evaluate", 2, 2),  # the checkpoint is written, its evaluation is not
        ("collect", 2, 2),  # both are written
        ("learn", 3, 2),  # two steps were sampled after the checkpoint, and one has trained
        ("evaluate", 4, 4),
    ],
)
def test_a_resumed_run_trains_the_groups_of_an_uninterrupted_one(
    whole: RunDirectory, tmp_path: Path, phase: str, after: int, going_on: int
) -> None:
    with pytest.raises(CrashError):
        train(settings(tmp_path / "run"), callbacks=[Crash(phase, after=after)])
    run = RunDirectory.open(tmp_path / "run")
    draws = json.loads((run.checkpoints / f"step-{going_on:06d}" / "parts" / "window" / "draws.json").read_text())
    trained = [tree for step in range(1, going_on + 1) for tree in trees_of_step(run, step)]
    open_keys = {f"step-{draw['step'] + 1:06d}/{draw['number']:03d}" for draw in draws["draws"]}
    assert open_keys.isdisjoint(tree.id.rpartition("/")[0] for tree in trained)
    evaluated = {place.name: place.read_bytes() for place in (run.path / "evals").iterdir()}
    num_lines = sum(
        len(file.read_text().splitlines())
        for file in (run.path / "journal").glob("turns-*")
        if int(file.stem.removeprefix("turns-")) <= going_on
    )

    train(settings(tmp_path / "run"), resume=True)
    in_order = [f"step-{step + 1:06d}/{number:03d}" for step in range(2 * STEPS) for number in range(GROUPS)]
    tasks, expected = tasks_of(run), tasks_of(whole)
    assert sorted(tasks) == in_order[: len(tasks)], "nothing is left out"
    assert len(tasks) >= STEPS * GROUPS
    assert all(tasks[key] == expected[key] for key in tasks.keys() & expected.keys())
    rows = [row for row in run.metrics() if row["step"] > 0]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in rows) <= STALENESS
    reused = sum(row.get("journal/turns", 0.0) for row in rows)
    assert reused == num_lines - num_turns(trained, since=going_on - STALENESS) > 0, "no turn is sampled again"

    evaluations = [(data["label"], data["step"]) for data in run.evals()]
    assert evaluations == [("held-out", 0), ("during", 2), ("during", 4), ("held-out", STEPS)]
    for name, data in evaluated.items():
        assert (run.path / "evals" / name).read_bytes() == data
