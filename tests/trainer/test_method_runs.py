"""Runs of methods: preferences, planned trees, replay, curricula, allocators, tasks in other words, several envs."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tree import Source
from envgym.errors import SettingsError, UnknownName
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows, trees_of
from envgym.trainer.method import build_method
from envgym.trainer.methods.tree_plans import TreePlan, measure_moments
from envgym.trainer.train import train
from scripts.plan_trees import groups_of, report, settings_of
from tests.support.example_trees import outcome_tree
from tests.support.graded import LUCKY, train_steps
from tests.support.tiny_runs import step_metrics, tiny_settings

TREES = {"name": "random_expand", "nodes": 2, "rounds": 1, "keep": 2}


@pytest.mark.parametrize(
    "loss, sections",
    [
        ({"name": "dpo", "reference": "old"}, {}),
        ({"name": "dpo", "beta": 5.0, "per": "token"}, {"objective": {"aggregation": "token-sum"}}),
        ({"name": "step_dpo", "reference": "behavior"}, {"search": TREES}),
    ],
)
def test_preferences_train(loss: dict[str, Any], sections: dict[str, Any], tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "run", loss=loss, **{"objective": {"aggregation": "token-sum"}, **sections}))
    first, second = step_metrics(tmp_path / "run")
    # nothing has moved away from the reference before the first update: every pair is a guess
    assert first["loss/policy"] * first["train/trained_tokens"] == pytest.approx(math.log(2), rel=1e-3)
    assert first["loss/policy/margin"] == pytest.approx(0, abs=1e-3)
    assert first["optim/grad_norm"] > 0
    assert math.isfinite(second["loss/policy"])


PLANNED: dict[str, Any] = {
    "search": {"name": "planned", "turns": [1]},
    "loss": {"name": "reinforce"},
    "objective": {"aggregation": "seq-mean-token-sum", "shared_tokens": "once"},
}


@pytest.mark.parametrize("credit", [{"name": "planned"}, {"name": "planned_gae", "decay": 1.0, "beta": "fitted"}])
def test_planned_trees_train_every_node_once(credit: dict[str, Any], tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "run", credit=credit, **PLANNED))
    rows = RunDirectory.open(tmp_path / "run").episodes(label="train")
    for metrics in step_metrics(tmp_path / "run"):
        assert metrics["optim/grad_norm"] > 0
        assert math.isfinite(metrics["loss/policy"])
        assert metrics["train/rows"] == 8.0
    groups = groups_of(rows)
    assert [len(group.trees) for group in groups] == [2] * 4
    assert [len(group.valid) for group in groups] == [4] * 4
    for group in groups:
        for tree in group.trees:
            (branching,) = {node.parent for node in tree.nodes if sum(n.parent == node.parent for n in tree.nodes) > 1}
            assert branching is not None
            assert len(tree.path(branching)) == 2  # below the first turn
    moments = measure_moments(groups)
    assert moments.costs.shape == (2,)
    assert report(moments, most_leaves=4).splitlines()[1] in {
        "search.name=chain rollout.group_size=4",
        "search.name=planned search.trees=2 search.turns=[1] search.children=[2] rollout.group_size=4",
    }


def test_plans_are_written_as_settings() -> None:
    expected = "search.name=planned search.trees=3 search.turns=[2,6] search.children=[2,3] rollout.group_size=18"
    assert settings_of(TreePlan(3, (2, 6), (2, 3))) == expected
    assert settings_of(TreePlan(6)) == "search.name=chain rollout.group_size=6"


WORDS = {"xml": "<task>{task}</task>", "prose": "You are asked this.\n{task}\nNow act."}
SECTIONS: dict[str, Any] = {
    "curriculum": {"name": "reworded", "prompts": WORDS},
    "objective": {"terms": [{"name": "states", "loss": {"name": "contrastive", "prompts": ["xml", "prose"]}}]},
    "rollout": {"groups": 3, "group_size": 2},
    "optim": {"lr": 0.01},
    "run": {"steps": 3},
}


def test_states_of_one_task_come_together(tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "run", **SECTIONS))
    steps = step_metrics(tmp_path / "run")
    assert [step["train/rows"] for step in steps] == [6.0] * 3, "rows in other words train nothing"
    assert steps[0]["loss/states"] > 0.5
    same, other = ([step[f"loss/states/distance_{which}"] for step in steps] for which in ("same", "other"))
    assert same[2] < 0.5 * same[0]
    assert other[2] - same[2] > 2 * (other[0] - same[0]) > 0
    trees = [tree for tree in trees_of(RunDirectory.open(tmp_path / "run").episodes([1])) if tree.split == "train"]
    assert len({tree.task_key for tree in trees}) == 3
    for tree in trees:
        own = tuple(token for segment in tree.nodes[0].edge.segments for token in segment.token_ids)
        assert len({own, *tree.prompts.values()}) == 3
    padded = {**SECTIONS, "optim": {"lr": 0.01, "packing": False}, "run": {"steps": 1}}
    train(tiny_settings(tmp_path / "padded", **padded))
    (first,) = step_metrics(tmp_path / "padded")
    for name in ("loss/states", "loss/states/distance_same", "loss/states/distance_other", "optim/grad_norm"):
        assert first[name] == pytest.approx(steps[0][name], rel=1e-4)


RLEP = {"name": "rlep", "draws": 2, "success_at": 0.5}


def test_replayed_episodes_train_and_a_resumed_run_replays_the_same(tmp_path: Path) -> None:
    chosen = tiny_settings(tmp_path / "run", replay=RLEP, run={"steps": 4})
    train(chosen)
    before = step_metrics(tmp_path / "run")
    assert before[0]["replay/episodes"] == 0.0
    assert before[-1]["replay/episodes"] > 0
    assert all(row["train/rows"] == 8 + row["replay/episodes"] for row in before)
    assert all(row["rollout/episodes"] == 8 for row in before)  # what is replayed was not sampled
    assert all(row.get("replay/reward", 1.0) >= 0.5 for row in before)
    shutil.rmtree(RunDirectory.open(tmp_path / "run").checkpoints / "step-000004")
    train(chosen, resume=True)
    assert step_metrics(tmp_path / "run") == before


def test_pool_of_another_tokenizer_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recorded = RunDirectory.create(tmp_path / "other", name="other", config={})
    recorded.write_episodes(1, episode_rows([outcome_tree("t", 1.0)], step=1))  # token 1 is "<1>" there
    chosen = tiny_settings(tmp_path / "run", replay={"name": "rlep", "directory": str(recorded.path)})
    with pytest.raises(SettingsError, match="recorded episodes must hold tokens of this model's vocabulary, got id 1"):
        train(chosen)
    assert not (tmp_path / "run").exists()


def test_deep_search_plays_a_solved_hard_prompt_directly(tmp_path: Path) -> None:
    # success_at .5 and a share of 1/2: of four episodes at most two are right, so half of the prompts are hard
    recipe = {"recipe": "deep_search_replay", "rollout": {"groups": 4, "group_size": 4}, "run": {"steps": 4}}
    replay = {"name": "solutions", "hard_below": 0.75, "success_at": 1.0, "direct_share": 0.5}
    search = {"name": "mcts", "simulations": 4, "rule": "uct", "frontier": True, "backup": "decayed"}
    train(tiny_settings(tmp_path / "run", replay=replay, search=search, **recipe))
    rows = step_metrics(tmp_path / "run")
    assert rows[0]["replay/episodes"] == 0.0
    replayed = [row for row in rows if row["replay/episodes"] > 0]
    assert replayed
    for row in replayed:
        assert row["replay/reward"] == 1.0
        assert row["rollout/episodes"] < 16  # fewer are sampled than the four groups of four that were asked for
        assert row["rollout/episodes"] + row["replay/episodes"] <= 16


def test_unknown_replay_lists_near_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean rlep"):
        build_method(tiny_settings(tmp_path, replay="rlpe"))


def test_envs_share_the_groups_by_weight_and_are_told_apart(tmp_path: Path) -> None:
    envs = [
        {"id": "math/arithmetic-v0", "settings": {"level": 1}, "weight": 0.7},
        {"id": "puzzles/guess_number-v0", "weight": 0.3, "name": "guess"},
    ]
    agent = {"max_context_tokens": 512, "on_length": "truncate"}
    rollout = {"groups": 5, "group_size": 2}
    settings = tiny_settings(tmp_path / "run", envs=envs, agent=agent, rollout=rollout, evaluation={"tasks": 2})
    result = train(settings)
    run = RunDirectory.open(tmp_path / "run")
    shares = [(row["envs/math/arithmetic-v0/groups"], row["envs/guess/groups"]) for row in run.metrics()]
    assert [sum(pair) for pair in shares] == [5.0, 5.0]
    assert [sum(column) for column in zip(*shares, strict=True)] == [7.0, 3.0]  # 70 % and 30 % of ten groups
    for row in run.metrics():
        mean = (row["envs/math/arithmetic-v0/reward"], row["envs/guess/reward"])
        episodes = [2 * groups for groups in (row["envs/math/arithmetic-v0/groups"], row["envs/guess/groups"])]
        assert row["rollout/episodes"] == sum(episodes) == 10.0
        assert abs(row["reward/mean"] * 10 - sum(m * n for m, n in zip(mean, episodes, strict=True))) < 1e-9
    episodes_of = [row["env_id"] for row in run.episodes([1, 2], label="train")]
    assert {env_id: episodes_of.count(env_id) for env_id in set(episodes_of)} == {
        "math/arithmetic-v0": 14,
        "puzzles/guess_number-v0": 6,
    }
    assert [(record.label, record.step, len(record.rewards)) for record in result.evaluations] == [
        ("held-out guess", 0, 2),
        ("held-out math/arithmetic-v0", 0, 2),
        ("held-out guess", 2, 2),
        ("held-out math/arithmetic-v0", 2, 2),
    ]


COUNTER = {"id": "tests.support.toys:Counter", "settings": {"max_turns": 2}}
"""Its episodes take two turns, so that they have a state to go on from."""
RUNS: dict[str, dict[str, Any]] = {
    "dump": {"curriculum": {"name": "dump"}},
    "bots": {"curriculum": {"name": "bots"}},
    "ada_rft": {"curriculum": {"name": "ada_rft"}},
    "sgpo": {"curriculum": {"name": "sgpo", "samples": 2}},
    "no_positive_resampling": {"curriculum": {"name": "no_positive_resampling"}},
    "hinted": {"curriculum": {"name": "hinted", "share": 0.5, "keep_as": "skill"}},
    "sub_goals": {"curriculum": {"name": "sub_goals"}},
    "r3": {"curriculum": {"name": "r3", "success_at": 0.0, "form": "staged"}, "envs": [COUNTER]},
    "ex_it": {"curriculum": {"name": "ex_it", "least": 1, "probability": 1.0}, "envs": [COUNTER]},
    "scaf_grpo": {"allocator": {"name": "scaf_grpo", "warmup_steps": 0}},
    "solved_prefix": {"shaping": {"name": "solved_prefix"}, "credit": {"name": "scrl"}},
}
STATELESS = {"no_positive_resampling", "hinted", "scaf_grpo", "solved_prefix"}


@pytest.mark.parametrize("name", RUNS)
def test_curriculum_trains(name: str, tmp_path: Path) -> None:
    first, second = train_steps(tmp_path, **RUNS[name])
    assert first["optim/updates"] == second["optim/updates"] == 2.0
    assert first["train/rows"] == 4.0
    assert any(key.startswith("curriculum/") for key in second) == (name not in STATELESS)


def test_guide_trains_hinted_episodes_behind_the_plain_context(tmp_path: Path) -> None:
    rows = train_steps(
        tmp_path,
        env=LUCKY,
        allocator={"name": "guide"},
        loss={"name": "guide"},
        rollout={"groups": 8, "group_size": 2},
        filter={"name": "zero_variance"},
    )
    trees = [tree for tree in trees_of(RunDirectory.open(tmp_path).episodes()) if tree.id.startswith("step-")]
    hinted = [tree for tree in trees if tree.source is Source.REPLAY]
    assert hinted  # one answer of four is paid, so that some groups fail, and hinted ones differ
    assert all("hinted" in tree.prompts for tree in hinted)
    assert all(row["optim/updates"] == 2.0 and math.isfinite(row["loss/policy"]) for row in rows)


def test_hinted_episodes_join_trees(tmp_path: Path) -> None:
    trees = {"name": "random_expand", "nodes": 1, "rounds": 1, "keep": 2}
    for name, chosen in {"scaf": {"name": "scaf_grpo", "warmup_steps": 0}, "guide": {"name": "guide"}}.items():
        loss = {"name": "guide" if name == "guide" else "ppo_clip"}
        sections = {"allocator": chosen, "search": trees, "loss": loss, "rollout": {"groups": 8, "group_size": 4}}
        rows = train_steps(tmp_path / name, env=LUCKY, **sections)
        assert all(row["train/rows"] == 8 * 4 and math.isfinite(row["loss/policy"]) for row in rows)


@pytest.mark.parametrize("name", ["r3", "ex_it"])
def test_second_step_goes_on_from_states_of_the_first(name: str, tmp_path: Path) -> None:
    train_steps(tmp_path, **RUNS[name])
    trees = trees_of(RunDirectory.open(tmp_path).episodes())
    assert any(tree.prefix is not None and tree.prefix.tree_id.startswith("step-000001") for tree in trees)
