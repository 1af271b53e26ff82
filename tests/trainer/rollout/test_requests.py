"""Requests with a hint or a start state, in a whole run: what trains, what is kept, and what is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.core.segments import Origin
from envgym.core.trajectory import Group, start_states, trajectories
from envgym.core.tree import Tree
from envgym.env import ForkCapability
from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.batch.rows import TrainRow, train_row
from envgym.trainer.checks.mask_audit import MaskAudit, SampledTurn
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest
from envgym.trainer.train import train
from tests.support.generations import generated
from tests.support.toys import Sums
from tests.trainer.test_critic_run import settings

HINT = "Add half of it twice."
COUNTER = {"id": "tests.support.toys:Counter", "settings": {"max_turns": 2}}
"""An untrained model says nothing that it understands, so that its episodes take two turns."""


def run(folder: Path, curriculum: str, **sections: Any) -> None:
    chosen = {"curriculum": {"name": f"{__name__}:{curriculum}"}, "credit": {"name": "grpo"}, "envs": [COUNTER]}
    train(settings(folder, **{**chosen, **sections}))


class Guided:
    """One group with a hint, and from the second step on one that goes on from a recorded state."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, Tree]] = []

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        (supply,) = context.supplies
        hinted = TaskRequest(
            supply.name, context.step, context.group_size, hint=HINT, prompts={"skill": "Halve what is left."}
        )
        if not self.recorded:
            return [hinted]
        index, tree = self.recorded[-1]
        return [hinted, TaskRequest(supply.name, index, context.group_size, start=start_states(tree)[0])]

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        trees = [(request.index, group.trees[0]) for request, group in outcome.pairs]
        self.recorded += [(index, tree) for index, tree in trees if start_states(tree)]
        return {"recorded": float(len(self.recorded))}


class NeedsStates(Guided):
    needs_start_states = True


class Elsewhere(Guided):
    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        return [replace(request, index=request.index + 1) for request in super().choose(context)]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Tree]:
    folder = tmp_path_factory.mktemp("guided")
    # the mask audit sees every row of this run
    run(folder, "Guided")
    return [tree for tree in trees_of(RunDirectory.open(folder).episodes()) if tree.id.startswith("step-")]


def test_hint_is_in_the_context_and_both_other_contexts_are_kept(trees: list[Tree]) -> None:
    hinted = [tree for tree in trees if tree.prefix is None]
    assert len(hinted) == 4
    for tree in hinted:
        injected = [part for part in tree.nodes[0].edge.segments if part.origin is Origin.INJECTED]
        assert HINT in "".join("".join(part.token_strings) for part in injected)
        root = tuple(token for part in tree.nodes[0].edge.segments for token in part.token_ids)
        assert set(tree.prompts) == {"plain", "skill"}
        assert len(tree.prompts["plain"]) == len(root) - sum(map(len, injected))
        assert len({root, *tree.prompts.values()}) == 3


def test_group_goes_on_from_the_state_and_trains_what_follows(trees: list[Tree]) -> None:
    onward = [tree for tree in trees if tree.prefix is not None]
    assert [tree.prefix.num_turns for tree in onward if tree.prefix] == [1, 1]
    recorded = next(tree for tree in trees if onward[0].prefix and tree.id == onward[0].prefix.tree_id)
    for tree in onward:
        assert (tree.seed, tree.task_key) == (recorded.seed, recorded.task_key)
        assert tree.nodes[1].outcome == recorded.nodes[1].outcome
        (row,) = trajectories(tree)[0].rows
        assert {turn for turn, trains in zip(row.turns, row.loss_mask, strict=True) if trains} == {1}


def test_mask_audit_refuses_a_hint_that_trains(trees: list[Tree]) -> None:
    tree = next(tree for tree in trees if tree.prompts)
    (row,) = trajectories(tree)[0].rows
    train_on = train_row(row, (1.0,) * len(row))
    audit = MaskAudit()
    _remember(audit, train_on)
    audit.check([train_on], step=1)
    hint = [place for place, origin in enumerate(_origins(tree)) if origin is Origin.INJECTED]
    mask = tuple(trains or place in hint for place, trains in enumerate(train_on.loss_mask))
    with pytest.raises(RunError, match=f"tokens that train must be sampled by the policy .* {len(hint)} others"):
        audit.check([replace(train_on, loss_mask=mask)], step=1)


def _origins(tree: Tree) -> list[Origin]:
    return [part.origin for node in tree.nodes for part in node.edge.segments for _ in part.token_ids]


def _remember(audit: MaskAudit, row: TrainRow) -> None:
    places = [place for place, trains in enumerate(row.loss_mask) if trains]
    starts = [place for place in places if place - 1 not in places]
    for start in starts:
        end = next(place for place in range(start, len(row) + 1) if place not in places)
        sampled = row.token_ids[start:end]
        request = GenerateRequest(token_ids=row.token_ids[:start], sampling=Sampling(), seed=0)
        audit.record(SampledTurn.of(request, generated(sampled, 0.0, version=0)))


def test_state_of_another_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"start state must be recorded of .*Counter, task train/2, got one of"):
        run(tmp_path, "Elsewhere")


class Unrepeatable(Sums):
    fork_capability = ForkCapability.NONE


def test_env_without_a_way_back_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="env must declare fork capability state or replay"):
        run(tmp_path, "NeedsStates", envs=[{"id": f"{__name__}:Unrepeatable"}])


class Hot:
    sampling = Sampling(temperature=3.0)

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        (supply,) = context.supplies
        return [TaskRequest(supply.name, 0, context.group_size, sampling=self.sampling)]


class Greedy(Hot):
    sampling = Sampling(temperature=0.0)


class Cut(Hot):
    sampling = Sampling(top_p=0.5)


class Shorter(Hot):
    """Asks for samples of the run's temperature."""

    sampling = Sampling(temperature=1.0, max_new_tokens=4)


class Hotter:
    """Extends every group once, by samples of another temperature."""

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        return None if round else replace(request, sampling=Sampling(temperature=3.0))

    def finish(self, request: TaskRequest, group: Group) -> Group:
        return group


@pytest.mark.parametrize(
    "curriculum,sections,message",
    [
        (
            "Hot",
            {},
            r"sampling.temperature must be the run's 1 without an off-policy correction, got 3.0 "
            r"\(request of task 0 of .*Counter\); set correction.name=tis, or objective.old_policy=rollout",
        ),
        (
            "Shorter",
            {"allocator": {"name": f"{__name__}:Hotter"}},
            r"sampling.temperature must be the run's 1 without",
        ),
        ("Greedy", {}, r"sampling.temperature must be above 0 in training, got 0 "),
        ("Cut", {}, r"sampling.top_p must be 1 in training, got 0.5 \(request of "),
    ],
)
def test_samples_that_the_objective_would_take_for_the_runs_own_are_refused(
    curriculum: str, sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        run(tmp_path, curriculum, **sections)


def test_samples_of_another_temperature_weigh_by_how_probable_they_were(tmp_path: Path) -> None:
    found: list[tuple[float, float]] = []
    for name, correction in (("Hot", "tis"), ("Shorter", "none")):
        run(tmp_path / name, name, correction={"name": correction}, filter={"name": "keep_all"})
        first = next(row for row in RunDirectory.open(tmp_path / name).metrics() if "train/rows" in row)
        found.append((first["logprob_gap/mean_abs"], first["logprob_gap/effective_samples"]))
    (hot_gap, hot_samples), usual = found
    assert usual == pytest.approx((0.0, 1.0), abs=1e-5)
    assert hot_gap > 0.1
    assert hot_samples < 0.95
