"""Guide and Scaf-GRPO: who gets a hint, which episodes are kept, and behind which context."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from envgym import Action, Reply, Scored, Split
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.core.trajectory import Group
from envgym.core.tree import Source, Tree
from envgym.errors import InvalidInput
from envgym.trainer.methods.allocators.guide import GuideGrpo, without_hint
from envgym.trainer.methods.allocators.scaf_grpo import ScafGrpo
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.protocols import Allocator, TaskRequest
from tests.support.credit_trees import branched, per_node
from tests.support.graded import GradedTasks
from tests.support.parrots import Parrot, char_agent, parrot_job, run_episodes, said

TASK = GradedTasks().task(Split.TRAIN, 4)
REQUEST = TaskRequest("graded", 4, 8, task=TASK)


class Judge(Parrot):
    """Pays 1 for `bye`, else nothing; every answer ends the episode."""

    def respond(self, action: Action) -> Reply:
        return Reply(observation="", reward=float(action.content == "bye"), terminated=True)


def episode(number: int, *, succeeds: bool, hint: str | None = None) -> Tree:
    job = replace(parrot_job(Judge, tree_id=f"t{number}"), hint=hint)
    policy = ScriptedPolicy(lambda request: said("bye" if succeeds else "no"))
    (tree,) = asyncio.run(run_episodes([job], char_agent(), policy, concurrency=1, clock=lambda: 0.0))
    return tree


def group_of(*plain: int, hinted: str = "", hint: str = "H") -> Group:
    """Return episodes that succeed (1) or fail (0), and hinted ones after them."""
    trees = [episode(number, succeeds=bool(success)) for number, success in enumerate(plain)]
    trees += [episode(100 + number, succeeds=mark == "1", hint=hint) for number, mark in enumerate(hinted)]
    return Group(key="g", trees=tuple(trees))


def extended(method: Allocator, group: Group, *, round: int = 0, step: int = 100, **task: Any) -> TaskRequest | None:
    request = replace(REQUEST, task=replace(TASK, **task))
    return method.extend(request, group, round=round, step=step)


def rewards(group: Group) -> list[float]:
    return [episode.reward.value for episode in group.trajectories if isinstance(episode.reward, Scored)]


def test_guide_samples_a_failed_group_once_more_with_the_hint() -> None:
    hint = str(TASK.metadata["hint"])
    assert extended(GuideGrpo(), group_of(0, 0)) == replace(REQUEST, hint=hint)
    assert extended(GuideGrpo(), group_of(0, 1)) is None
    assert extended(GuideGrpo(), group_of(0, 0, hinted="00"), round=1) is None
    assert extended(GuideGrpo(), group_of(0, 0), metadata={}) is None
    assert GuideGrpo().extend(replace(REQUEST, hint="already"), group_of(0, 0), round=0, step=0) is None
    with pytest.raises(InvalidInput, match="hint must be a text, got 7"):
        extended(GuideGrpo(), group_of(0, 0), metadata={"hint": 7})


def test_guide_keeps_hinted_episodes_that_differ_behind_the_plain_context() -> None:
    group = group_of(0, 0, hinted="010")
    kept = GuideGrpo().finish(REQUEST, group)
    assert rewards(kept) == [0.0, 1.0, 0.0]
    plain = group.trees[0].nodes[0].edge.segments
    for before, after in zip(group.trees[2:], kept.trees, strict=True):
        assert after.source is Source.REPLAY
        assert [part.token_ids for part in after.nodes[0].edge.segments] == [
            part.token_ids for part in _joined(plain, after)
        ]
        assert after.nodes[1:] == before.nodes[1:]
        root = tuple(token for part in before.nodes[0].edge.segments for token in part.token_ids)
        assert after.prompts == {"hinted": root}


def _joined(plain: Any, tree: Tree) -> Any:
    """Return the segments of the plain context, cut where those of `tree` are."""
    tokens = [token for part in plain for token in part.token_ids]
    assert tokens == [token for part in tree.nodes[0].edge.segments for token in part.token_ids]
    return tree.nodes[0].edge.segments


@pytest.mark.parametrize("hinted", ["", "000", "111"])
def test_guide_keeps_the_failed_group_where_the_hint_makes_no_difference(hinted: str) -> None:
    group = group_of(0, 0, hinted=hinted)
    assert GuideGrpo().finish(REQUEST, group).trees == group.trees[:2]


def test_group_that_began_with_a_hint_stays() -> None:
    group = group_of(hinted="01")
    assert GuideGrpo().finish(replace(REQUEST, hint="H"), group) == group


def test_tree_behind_the_plain_context_is_that_of_a_plain_rollout() -> None:
    plain, hinted = episode(0, succeeds=True), episode(0, succeeds=True, hint="H")
    again = without_hint(hinted)
    (row,), (plain_row,) = (Group(key="g", trees=(tree,)).trajectories[0].rows for tree in (again, plain))
    assert (row.token_ids, row.loss_mask) == (plain_row.token_ids, plain_row.loss_mask)


def test_scaf_climbs_from_weak_hints_to_strong_up_to_a_success() -> None:
    tiers: dict[str, Any] = {"knowledge": ["a", "b"], "planning": ["c"], "solution": ["d", "e"]}
    levels = ["a", "a\nb", "c", "d", "d\ne"]
    for round, level in enumerate(levels):
        group = group_of(0, 0, hinted="0" * round)
        assert extended(ScafGrpo(), group, round=round, metadata={"hints": tiers}) == replace(
            REQUEST, group_size=1, hint=level, task=replace(TASK, metadata={"hints": tiers}), direct=True
        )
    assert extended(ScafGrpo(), group_of(0, 0, hinted="00000"), round=5, metadata={"hints": tiers}) is None
    assert extended(ScafGrpo(), group_of(0, 0, hinted="01"), round=2, metadata={"hints": tiers}) is None
    assert extended(ScafGrpo(), group_of(1, 0)) is None


def test_scaf_gives_no_hints_in_the_first_steps_nor_for_tasks_without() -> None:
    assert extended(ScafGrpo(), group_of(0, 0), step=49) is None
    assert extended(ScafGrpo(), group_of(0, 0), step=50) is not None
    assert extended(ScafGrpo(), group_of(0, 0), metadata={}) is None


@pytest.mark.parametrize(
    "hints, sentence", [("a", "hints must be tiers of texts"), ({"knowledge": "a"}, "tier knowledge must be a list")]
)
def test_hints_that_are_no_tiers_are_refused(hints: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        extended(ScafGrpo(), group_of(0, 0), metadata={"hints": hints})


def test_hinted_success_takes_the_place_of_a_failure_with_the_published_advantages() -> None:
    group = group_of(*[0] * 8, hinted="001")
    kept = ScafGrpo().finish(REQUEST, group)
    assert rewards(kept) == [0.0] * 7 + [1.0]
    assert kept.trees[-1] is group.trees[-1]  # behind its own context, hint and all
    assert kept.trees[-1].source is Source.POLICY
    advantages = [value for (value,) in per_node(Grpo()(kept))]
    assert advantages == pytest.approx([-0.353552] * 7 + [2.474867], abs=1e-5)


def test_failed_group_stays_where_no_hint_helps() -> None:
    group = group_of(*[0] * 8, hinted="00")
    assert ScafGrpo().finish(REQUEST, group).trees == group.trees[:8]


@pytest.mark.parametrize("key", ["g", "h", "i", "j"])
def test_hinted_success_takes_the_place_of_one_episode_of_a_tree(key: str) -> None:
    fork = branched("f", (0, None), (1, 0.0), (1, 0.0))
    trees = tuple(replace(tree, nodes=(tree.nodes[0], *fork.nodes[1:])) for tree in group_of(0, 0).trees)
    group = Group(key=key, trees=(*trees, *group_of(hinted="01").trees))
    kept = ScafGrpo().finish(replace(REQUEST, group_size=4), group)
    assert sorted(rewards(kept)) == [0.0, 0.0, 0.0, 1.0]
    assert [len(tree.leaves) for tree in kept.trees] in ([1, 2, 1], [2, 1, 1])
    assert ScafGrpo().finish(REQUEST, replace(group, trees=group.trees[:3])).trees == trees


def test_scaf_leaves_a_group_that_began_with_a_hint() -> None:
    group = group_of(hinted="00")
    assert extended(ScafGrpo(), group) is not None
    assert ScafGrpo().extend(replace(REQUEST, hint="H"), group, round=0, step=100) is None
    assert ScafGrpo().finish(replace(REQUEST, hint="H"), group) == group


def test_guide_keeps_hinted_trees_behind_the_plain_context() -> None:
    hinted = [episode(number, succeeds=False, hint="H") for number in (100, 101)]
    fork = branched("f", (0, None), (1, 1.0), (1, 0.0))
    forked = [replace(tree, nodes=(tree.nodes[0], *fork.nodes[1:])) for tree in hinted]
    group = Group(key="g", trees=(*group_of(0, 0).trees, *forked))
    kept = GuideGrpo().finish(replace(REQUEST, group_size=4), group)
    assert rewards(kept) == [1.0, 0.0, 1.0, 0.0]
    assert [tree.source for tree in kept.trees] == [Source.REPLAY] * 2
