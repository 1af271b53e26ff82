"""The annotate stage: when it runs, what it may change, and what becomes of annotators that fail."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.search.protocol import SEARCH
from envgym.config.plugins import Choice
from envgym.core.messages import Message
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation, Tree
from envgym.errors import InvalidInput, PartyFailure, RunError, SettingsError, UnknownName
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.checks.preflight import check_annotations
from envgym.trainer.methods.annotators.base import AnnotateContext, annotate_trees, episode_value
from envgym.trainer.metrics.rollout import annotation_metrics
from envgym.trainer.rollout.collector import Collected, Collector
from envgym.trainer.run import RunContext
from envgym.trainer.train import train
from tests.support.example_trees import outcome_group
from tests.support.tiny_runs import tiny_settings

GROUPS, SIZE = 2, 3
HERE = f"{Path(__file__).resolve()}"


class LengthJudge:
    """A named model of this test: it says how long the prompt is."""

    def __init__(self, context: object, *, broken: bool = False) -> None:
        self.broken, self.closed = broken, 0

    def check(self) -> None:
        """Always there."""

    def begin(self, folder: Path) -> None:
        """Need nothing."""

    async def close(self) -> None:
        self.closed += 1

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        """Answer by the length of the prompt."""
        await asyncio.sleep(0)
        if self.broken:
            raise PartyFailure("the service is gone")
        return "YES" if len(messages[-1].content) % 2 else "NO"


settings = partial(
    tiny_settings,
    envs=[{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
    agent={"max_context_tokens": 512},
    rollout={"groups": GROUPS, "group_size": SIZE},
    evaluation={"tasks": 2},
)


def with_judge(**fields: Any) -> dict[str, Any]:
    return {"annotate": ["judge"], "models": {"judge": {"kind": {"name": f"{HERE}:LengthJudge", **fields}}}}


def leaf_annotations(group: Group, name: str, value: float = 1.0) -> Group:
    return annotate_trees(
        group,
        {
            tree.id: [Annotation(name=name, level="episode", node=leaf, value=value) for leaf in tree.leaves]
            for tree in group.trees
        },
    )


# ---- when it runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built() -> RunContext:
    return build_run_context(settings())


def collect(context: RunContext, policy: ScriptedPolicy, annotators: dict[str, Any], **asked: Any) -> Collected:
    method = replace(context.method, annotators=annotators)

    async def work() -> Collected:
        collector = Collector(collect_plan(replace(context, method=method, policy=policy), settings(**asked)))
        async with collector:
            return await collector.take(0, stats={})

    return asyncio.run(asyncio.wait_for(work(), 60))


class HoldsLastGroup(ScriptedPolicy):
    """Answers the second group when the first has been annotated."""

    def __init__(self) -> None:
        super().__init__(lambda request: (5,))
        self.annotated, self.num_asked, self.events = asyncio.Event(), 0, list[str]()

    async def generate(self, request: GenerateRequest) -> Generation:
        number, self.num_asked = self.num_asked, self.num_asked + 1
        if number >= SIZE:
            await self.annotated.wait()
        self.events.append("sampled")
        return await super().generate(request)


def test_a_group_is_annotated_while_others_are_sampled(built: RunContext) -> None:
    policy = HoldsLastGroup()

    async def annotate(group: Group, context: AnnotateContext) -> Group:
        policy.events.append("annotated")
        policy.annotated.set()
        return leaf_annotations(group, "first", float(context.step))

    collected = collect(built, policy, {"first": annotate})
    assert policy.events == [*["sampled"] * SIZE, "annotated", *["sampled"] * SIZE, "annotated"]
    values = [item.value for group in collected.groups for tree in group.trees for item in tree.annotations]
    assert values == [0.0] * GROUPS * SIZE
    assert collected.metrics["annotate/seconds"] >= 0


def test_annotators_run_in_order_and_see_the_task_and_what_was_written(built: RunContext) -> None:
    async def count(group: Group, context: AnnotateContext) -> Group:
        assert context.task.key == group.trees[0].task_key
        assert context.models["policy"] is context.policy
        return leaf_annotations(group, "count", float(sum(len(tree.annotations) for tree in group.trees)))

    async def first(group: Group, context: AnnotateContext) -> Group:
        return leaf_annotations(group, "first")

    collected = collect(built, ScriptedPolicy(lambda request: (5,)), {"first": first, "count": count})
    assert all(
        [(item.name, item.value) for item in tree.annotations] == [("first", 1.0), ("count", float(SIZE))]
        for group in collected.groups
        for tree in group.trees
    )


def test_without_annotators_there_is_neither_task_nor_metric(built: RunContext) -> None:
    collected = collect(built, ScriptedPolicy(lambda request: (5,)), {})
    assert "annotate/seconds" not in collected.metrics
    assert all(tree.annotations == () for group in collected.groups for tree in group.trees)


class Patient:
    """Annotates every group but those whose key ends so; those wait until they are let go."""

    def __init__(self, slow: str) -> None:
        self.slow, self.going, self.steps = slow, asyncio.Event(), list[int]()

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        self.steps.append(context.step)
        if group.key.endswith(self.slow):
            await self.going.wait()
        return leaf_annotations(group, "slow")


def drive(context: RunContext, annotator: Patient, steps: int, **rollout: Any) -> list[Collected]:
    """Collect some steps, and let the slow groups go after the first."""
    asked = settings(rollout={"groups": GROUPS, "group_size": SIZE, **rollout})
    method = replace(context.method, annotators={"slow": annotator})
    policy = ScriptedPolicy(lambda request: (5,))

    async def work() -> list[Collected]:
        found: list[Collected] = []
        plan = collect_plan(replace(context, method=method, policy=policy), asked)
        async with Collector(replace(plan, last=steps)) as collector:
            for step in range(steps):
                found.append(await collector.take(step, stats={}))
                annotator.going.set()
        return found

    return asyncio.run(asyncio.wait_for(work(), 60))


def test_a_step_that_has_enough_leaves_a_group_whose_judge_is_slow_to_the_next(built: RunContext) -> None:
    carry = {"deterministic": False, "staleness": 1, "stragglers": "carry", "groups": 1, "oversampling": 2.0}
    first, second = drive(built, Patient("step-000001/001"), 2, **carry)
    assert [group.key for group in first.groups] == ["step-000001/000"]
    assert "step-000001/001" in [group.key for group in second.groups]
    assert all(tree.annotations for collected in (first, second) for group in collected.groups for tree in group.trees)


@pytest.mark.parametrize("stragglers", ["abort", "carry"])
def test_a_step_waits_for_the_judges_of_groups_that_have_ended(built: RunContext, stragglers: str) -> None:
    annotator = Patient("step-000001/001")

    async def let_go() -> None:
        await asyncio.sleep(0.2)
        annotator.going.set()

    async def work() -> Collected:
        rollout = {"deterministic": False, "staleness": 1, "stragglers": stragglers, "min_finished_share": 0.5}
        asked = settings(rollout={"groups": GROUPS, "group_size": SIZE, **rollout})
        method = replace(built.method, annotators={"slow": annotator})
        policy = ScriptedPolicy(lambda request: (5,))
        plan = collect_plan(replace(built, method=method, policy=policy), asked)
        async with Collector(replace(plan, last=1)) as collector:
            waiting = asyncio.ensure_future(let_go())
            collected = await collector.take(0, stats={})
            await waiting
            return collected

    collected = asyncio.run(asyncio.wait_for(work(), 60))
    assert len(collected.groups) == GROUPS
    assert all(tree.annotations for group in collected.groups for tree in group.trees)


def test_groups_of_steps_ahead_are_annotated_for_their_own_step(built: RunContext) -> None:
    annotator = Patient("none")
    found = drive(built, annotator, 3, staleness=2)
    assert sorted(annotator.steps) == sorted([0, 1, 2] * GROUPS)
    assert [len(collected.groups) for collected in found] == [GROUPS] * 3


def test_every_branch_of_a_tree_is_annotated(built: RunContext) -> None:
    searching = replace(built, method=replace(built.method, search=SEARCH.build(Choice(name="random_expand"))))
    (collected,) = drive(searching, Patient("none"), 1, group_size=4)
    episodes = [episode for group in collected.groups for episode in group.trajectories]
    assert len(episodes) == GROUPS * 4
    assert all(episode_value(episode, "slow") == 1.0 for episode in episodes)


def test_annotating_is_cancelled_with_the_collector(built: RunContext) -> None:
    annotator = Patient("001")
    method = replace(built.method, annotators={"slow": annotator})

    async def work() -> int:
        policy = ScriptedPolicy(lambda request: (5,))
        collector = Collector(collect_plan(replace(built, method=method, policy=policy), settings()))
        taking = asyncio.ensure_future(collector.take(0, stats={}))
        await asyncio.sleep(0.2)
        taking.cancel()
        await collector.close()
        return len(asyncio.all_tasks()) - 2  # this one, and the one that is cancelled

    assert asyncio.run(work()) <= 0


# ---- what it may change, and failures --------------------------------------------------------------------------------


def test_a_failure_of_others_is_an_error_of_every_episode(built: RunContext) -> None:
    async def fail(group: Group, context: AnnotateContext) -> Group:
        raise PartyFailure("gone\x1b[2J")

    collected = collect(built, ScriptedPolicy(lambda request: (5,)), {"scorer": fail})
    found = [item for group in collected.groups for tree in group.trees for item in tree.annotations]
    assert len(found) == GROUPS * SIZE
    assert {(item.name, item.value, item.error) for item in found} == {("scorer", None, "gone\\u001b[2J")}
    with pytest.raises(RunError, match=r"failed annotations of scorer must stay below 50%, got 6 of 6, such as: gone"):
        check_annotations(collected.groups, limit=0.5, step=1)


def without_last_tree(group: Group) -> Group:
    return replace(group, trees=group.trees[:-1])


def with_other_nodes(group: Group) -> Group:
    def changed(tree: Tree) -> Tree:
        return replace(tree, nodes=(*tree.nodes[:-1], replace(tree.nodes[-1], stats=None)))

    return replace(group, trees=tuple(map(changed, group.trees)))


@pytest.mark.parametrize("change", [without_last_tree, with_other_nodes])
def test_an_annotator_that_changes_more_than_annotations_stops_the_run(built: RunContext, change: Any) -> None:
    async def meddle(group: Group, context: AnnotateContext) -> Group:
        changed: Group = change(group)
        return changed

    with pytest.raises(InvalidInput, match="annotator meddle must add annotations to the trees and change nothing"):
        collect(built, ScriptedPolicy(lambda request: (5,)), {"meddle": meddle})


def test_a_few_failures_are_let_pass_and_counted_by_name() -> None:
    group = leaf_annotations(outcome_group(1, 0, 1, 0), "judge", 0.5)
    lost = Annotation(name="judge", level="turn", node=1, value=None, error="slow")
    group = annotate_trees(group, {"t0": [lost]})
    check_annotations([group], limit=0.2, step=1)  # 1 of 5
    assert annotation_metrics([group]) == {
        "annotate/judge_count": 5.0,
        "annotate/judge_failed": 1.0,
        "annotate/judge_mean": 0.5,
    }
    with pytest.raises(RunError, match="got 1 of 5, such as: slow"):
        check_annotations([group], limit=0.1, step=1)


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_a_run_records_annotations_and_repeats(tmp_path: Path) -> None:
    def values(name: str) -> tuple[list[dict[str, float]], list[Tree]]:
        train(settings(tmp_path / name, **with_judge()))
        run = RunDirectory.open(tmp_path / name)
        clocks = ("time/", "speed/", "annotate/seconds")
        metrics = [{key: v for key, v in row.items() if not key.startswith(clocks)} for row in run.metrics()]
        return metrics, trees_of(run.episodes([1], label="train"))

    (metrics, trees), (again, trees_again) = values("one"), values("two")
    assert metrics == again
    assert [tree.annotations for tree in trees] == [tree.annotations for tree in trees_again]
    assert all(tree.annotated("judge", "episode") for tree in trees)
    assert metrics[-1]["annotate/judge_count"] == GROUPS * SIZE
    assert metrics[-1]["annotate/judge_failed"] == 0.0


def test_a_run_whose_judge_is_gone_stops_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"got 6 of 6, such as: the service is gone \(step 1\)"):
        train(settings(tmp_path / "run", **with_judge(broken=True)))


@pytest.mark.parametrize(
    "sections, kind, sentence",
    [
        (
            {"annotate": ["judge"], "models": {"jugde": with_judge()["models"]["judge"]}},
            UnknownName,
            "model must be a known name, got 'judge' (annotate judge); did you mean jugde?",
        ),
        (
            {"annotate": ["judge"]},
            UnknownName,
            "model must be a known name, got 'judge' (annotate judge); add models.judge to the settings.",
        ),
        (
            {"annotate": [{"name": "judge", "model": "policy"}]},
            SettingsError,
            "model policy must have reply, got policy (annotate judge); name a model that is a ChatModel",
        ),
        (
            {"annotate": ["judge"], "models": {"judge": {"kind": "snapshot"}}},
            SettingsError,
            "model judge must have reply, got snapshot",
        ),
        ({"annotate": ["judge", "judge"]}, SettingsError, "name of an annotator must be unique, got judge"),
        (
            {"models": {"policy": {"kind": "snapshot"}}},
            SettingsError,
            "name of a model must be another than the policy's",
        ),
        ({"annotate": ["jugde"]}, UnknownName, "did you mean judge"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    sections: dict[str, Any], kind: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        train(settings(tmp_path / "run", **sections))
    assert sentence in str(caught.value)
    assert not (tmp_path / "run").exists()
