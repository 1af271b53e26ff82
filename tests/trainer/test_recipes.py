"""Every recipe trains: a few steps of a tiny model on a game of several turns."""

import math
from pathlib import Path
from typing import Any

import pytest

from envgym.runs import RunDirectory
from envgym.trainer.catalog import RECIPE
from envgym.trainer.method import build_method
from envgym.trainer.settings import TrainSettings, recipe_settings, train_settings
from envgym.trainer.train import train
from tests.support.plugins import BATCH_CREDITS, CREDITS, CRITIC_CREDITS, FILTERS, LOSSES, STRATEGIES

TINY = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}


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
