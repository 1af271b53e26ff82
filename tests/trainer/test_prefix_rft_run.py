"""Prefix-RFT by settings: prefixes of demonstrations train, with the advantage of the episodes that go on from them."""

import math
from pathlib import Path
from typing import Any

import pytest

from envgym.config.plugins import Choice
from envgym.core.segments import Origin
from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.method import build_method
from envgym.trainer.methods.allocators.prefix_rft import PrefixRftAllocator, num_prefix_turns
from envgym.trainer.methods.protocols import ALLOCATOR
from envgym.trainer.train import train
from tests.support.tiny_runs import step_metrics, tiny_settings

TERM = {"name": "prefix", "loss": {"name": "prefix_rft", "share": 0.5}, "origins": ["DEMONSTRATION"]}
SILENT = """
from envgym.trainer.methods.curricula.uniform import Uniform


class Silent:
    def choose(self, context):
        return Uniform().choose(context)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train(tiny_settings(folder, run={"steps": 1}, rollout={"groups": 6}))
    return str(folder)


def prefix_steps(
    folder: Path, recorded: str, *, optim: dict[str, Any] | None = None, **objective: Any
) -> list[dict[str, float]]:
    allocator = {"name": "prefix_rft", "run": recorded, "threshold": 0.1}
    sections = {"allocator": allocator, "objective": {"terms": [TERM], **objective}}
    train(tiny_settings(folder, rollout={"groups": 6}, optim=optim or {}, **sections))
    return step_metrics(folder)


def test_prefixes_of_demonstrations_train(recorded: str, tmp_path: Path) -> None:
    steps = prefix_steps(tmp_path / "run", recorded)
    assert all(row["loss/prefix/kept"] > 0 for row in steps)
    assert any(row["loss/prefix"] != 0 for row in steps)
    trees = [tree for tree in trees_of(RunDirectory.open(tmp_path / "run").episodes()) if tree.id.startswith("step-")]
    prefixed = [tree for tree in trees if tree.prefix is not None]
    assert prefixed
    for tree in prefixed:
        origins = {segment.origin for node in tree.nodes for segment in node.edge.segments}
        assert {Origin.DEMONSTRATION, Origin.POLICY} <= origins


@pytest.mark.parametrize("minibatches", [1, 2])
def test_ratio_of_a_prefix_is_to_the_policy_before_the_step(minibatches: int, recorded: str, tmp_path: Path) -> None:
    """No policy sampled the prefix, so that `old_policy` makes no difference to its loss."""
    losses = []
    for name in ("recomputed", "rollout"):
        optim = {"lr": 0.001, "minibatches": minibatches}
        losses.append(prefix_steps(tmp_path / name, recorded, optim=optim, old_policy=name)[0]["loss/prefix"])
    assert math.isclose(*losses, rel_tol=1e-4)
    assert losses[0] != 0


def test_the_published_least_shares(recorded: str) -> None:
    allocator = PrefixRftAllocator(run=recorded, threshold=0.1)
    shares = [allocator.least_share(step) for step in (0, 100, 250, 500, 900)]
    assert shares == pytest.approx([0.95, 0.864058, 0.5, 0.05, 0.05], abs=1e-6)


def test_a_prefix_has_a_turn_and_leaves_one_to_play() -> None:
    assert [num_prefix_turns(share, 4) for share in (0.05, 0.3, 0.5, 0.7, 0.95, 1.0)] == [1, 1, 2, 3, 3, 3]
    assert [num_prefix_turns(share, 2) for share in (0.05, 0.95)] == [1, 1]


def test_a_prefix_that_no_term_reads_is_refused(recorded: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="allocator prefix_rft must be used with a term of origins"):
        build_method(
            tiny_settings(tmp_path / "run", allocator={"name": "prefix_rft", "run": recorded, "threshold": 0.1})
        )


def test_a_run_without_successes_of_several_turns_is_refused(recorded: str) -> None:
    with pytest.raises(SettingsError, match="run must hold successes of at least two turns, got none"):
        ALLOCATOR.build(Choice.model_validate({"name": "prefix_rft", "run": recorded, "threshold": 1.0}))


def test_a_run_of_other_tasks_is_refused_before_it_starts(recorded: str, tmp_path: Path) -> None:
    allocator = {"name": "prefix_rft", "run": recorded, "threshold": 0.1}
    envs = [{"id": "tests.support.toys:Counter", "settings": {"max_turns": 2}}]
    with pytest.raises(SettingsError, match=r"demonstration must exist for some tasks, got none in \d+ tasks of tests"):
        train(tiny_settings(tmp_path / "run", allocator=allocator, objective={"terms": [TERM]}, envs=envs))
    assert not (tmp_path / "run").exists()


def test_a_term_that_reads_no_token_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    """A curriculum that does not declare where its episodes begin starts none inside a demonstration."""
    (tmp_path / "silent.py").write_text(SILENT)
    sections = {"curriculum": {"name": f"{tmp_path}/silent.py:Silent"}, "objective": {"terms": [TERM]}}
    sentence = "objective term prefix must read some token of the first rows of POLICY, REPLAY, got none of origin"
    with pytest.raises(RunError, match=sentence):
        train(tiny_settings(tmp_path / "run", **sections))
