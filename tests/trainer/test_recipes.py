"""Every recipe trains: a few steps of a tiny model on a game of several turns, with scores and likeliest tokens."""

import math
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.core.segments import Origin, Segment
from envgym.errors import InvalidInput
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.method import build_method
from envgym.trainer.phases import dry_runs
from envgym.trainer.recipes import RECIPE
from envgym.trainer.settings import TrainSettings, recipe_settings, train_settings
from envgym.trainer.train import train
from tests.support.plugins import BATCH_CREDITS, CREDITS, CRITIC_CREDITS, FILTERS, LOSSES, STRATEGIES
from tests.support.tiny_runs import TINY


def settings(recipe: str, directory: Path, **sections: Any) -> TrainSettings:
    """Return a run of seconds on a game of up to three turns."""
    data: dict[str, Any] = {
        "recipe": recipe,
        "run": {"name": recipe, "directory": str(directory), "steps": 3, "trackers": []},
        "model": {"name": "tiny", "tiny": TINY},
        "engine": {"device": "cpu"},
        "envs": [{"id": "puzzles/guess_number-v0", "settings": {"size": 4, "max_turns": 3}}],
        "agent": {"name": "plain", "max_turn_tokens": 4, "max_context_tokens": 512, "on_length": "close"},
        "rollout": {"groups": 2, "group_size": 4},
        "optim": {"lr": 0.001},
        "evaluation": {"tasks": 2},
    }
    return train_settings({**data, **sections})


@pytest.mark.parametrize("recipe", RECIPE.table)
def test_recipe_chooses_the_method_that_it_names_at_every_point(recipe: str, tmp_path: Path) -> None:
    named, method = recipe_settings(recipe), build_method(settings(recipe, tmp_path))
    assert type(method.credit) is {**CREDITS, **BATCH_CREDITS, **CRITIC_CREDITS}[named.credit.name]
    assert type(method.filter) is FILTERS[named.filter.name]
    assert type(method.objective.loss) is LOSSES[named.loss.name]
    assert type(method.search) is STRATEGIES[named.search.name]


@pytest.mark.parametrize("recipe", RECIPE.table)
def test_recipe_trains(recipe: str, tmp_path: Path) -> None:
    # an untrained model never wins, so that groups without any spread must train as well
    directory = tmp_path / "run"
    chosen = settings(recipe, directory, filter={"name": "keep_all"})
    result = train(chosen)
    rows = RunDirectory.open(directory).metrics()
    assert result.steps == 3
    steps = [row for row in rows if row.get("step", 0) > 0 and "train/rows" in row]
    assert [row["optim/updates"] for row in steps] == [1.0] * 3
    assert [row["train/rows"] for row in steps] == [8.0] * 3
    assert all(math.isfinite(row["loss/policy"]) for row in steps)


@pytest.mark.parametrize("recipe", ["clip_cov", "kl_cov", "real", "siren"])
def test_losses_that_couple_rows_train_in_several_updates(recipe: str, tmp_path: Path) -> None:
    directory, optim = tmp_path / "run", {"lr": 0.001, "minibatches": 2, "epochs": 2}
    pushed = {"name": "psr_nsr"}  # wrong episodes have an advantage although there are no right ones
    train(settings(recipe, directory, filter={"name": "keep_all"}, credit=pushed, optim=optim))
    steps = [row for row in RunDirectory.open(directory).metrics() if row.get("step", 0) > 0 and "train/rows" in row]
    # two groups, each a minibatch of its own, twice
    assert [row["optim/updates"] for row in steps] == [4.0] * 3
    has_moved = [row["ratio/max"] > 1.0 for row in steps]
    assert has_moved == [recipe != "real"] * 3, "labels of one class alone move nothing"
    assert all(math.isfinite(row["loss/policy"]) for row in steps)


def test_dynamic_sampling_collects_until_the_filter_has_kept_enough(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = {"name": "dapo", "directory": str(directory), "steps": 1, "trackers": []}
    train(settings("dapo", directory, run=run))
    (step,) = [row for row in RunDirectory.open(directory).metrics() if "filter/kept" in row]
    # nothing is kept of a model that never wins, so all three rounds of two groups were collected
    assert step["rollout/groups"] == 6.0
    assert step["filter/zero_variance"] == 1.0
    assert step["optim/updates"] == 0.0


def test_teacher_reads_the_skill_that_the_policy_never_saw(tmp_path: Path) -> None:
    run = {"name": "skill", "directory": str(tmp_path / "run"), "steps": 1, "trackers": []}
    train(settings("skill_sd", tmp_path, run=run))
    directory = RunDirectory.open(tmp_path / "run")
    (step,) = [row for row in directory.metrics() if "loss/distillation" in row]
    assert step["loss/distillation"] > 1e-6, "the skill changes what the policy would say"
    assert step["coef/distillation"] == 0.001
    trees = [tree for tree in trees_of(directory.episodes([1])) if tree.split == "train"]
    assert len(trees) == 8
    for tree in trees:
        sampled = tuple(token for segment in tree.nodes[0].edge.segments for token in segment.token_ids)
        assert len(tree.prompts["skill"]) > len(sampled)


def test_reference_is_kept_for_a_score_alone(tmp_path: Path) -> None:
    chosen = settings(
        "reinforce_pp",
        tmp_path / "run",
        filter={"name": "keep_all"},
        credit={"name": "reinforce_pp", "baseline": "none", "kl_coef": 0.5},
    )
    assert all(row.train.scores["policy"] == row.train.scores["reference"] for row in dry_runs([chosen])[0].rows)
    train(chosen)
    assert (tmp_path / "run" / "reference").is_dir()
    steps = [row for row in RunDirectory.open(tmp_path / "run").metrics() if "optim/grad_norm" in row]
    # no episode is paid and nothing has moved in the first step; in the second the KL term alone has a gradient
    assert steps[0]["optim/grad_norm"] == 0.0
    assert steps[1]["optim/grad_norm"] >= 0.0
    assert all(math.isfinite(row["loss/policy"]) for row in steps)


def sampled_segments(directory: Path) -> list[Segment]:
    """Return the segments that the policy sampled to train on, as version 0; evaluations ask for nothing."""
    nodes = [node for tree in trees_of(RunDirectory.open(directory).episodes([1])) for node in tree.nodes]
    return [s for node in nodes for s in node.edge.segments if s.origin is Origin.POLICY and s.policy_version == 0]


def test_run_records_what_it_asks_for_also_where_a_search_forks_inside_a_turn(tmp_path: Path) -> None:
    run = {"name": "top", "directory": str(tmp_path / "run"), "steps": 1, "trackers": []}
    train(settings("tree_rl", tmp_path, run=run, sampling={"top_logprobs": 3}))
    found = sampled_segments(tmp_path / "run")
    assert len(found) > 8
    for segment in found:
        assert segment.behavior_logprobs is not None
        assert segment.top_logprobs is not None
        for token, logprob, place in zip(
            segment.token_ids, segment.behavior_logprobs, segment.top_logprobs, strict=True
        ):
            assert len(place) == 3
            values = [value for _, value in place]
            assert values == sorted(values, reverse=True)
            # the sampled token is one of the likeliest, or less likely than all of them
            assert dict(place).get(token, logprob) == pytest.approx(logprob, abs=1e-6)
            assert token in dict(place) or logprob <= values[-1] + 1e-6


def test_policy_without_them_refuses_before_it_samples() -> None:
    with pytest.raises(InvalidInput, match=r"top_logprobs must be at most 0 for this policy, got 2 \(ScriptedPolicy\)"):
        ScriptedPolicy([]).check_sampling(Sampling(top_logprobs=2))
    with pytest.raises(InvalidInput, match="top_logprobs must be in range, got -1"):
        ScriptedPolicy([]).check_sampling(Sampling(top_logprobs=-1))
