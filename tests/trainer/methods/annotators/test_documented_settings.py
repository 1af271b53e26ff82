"""The settings that docs/annotate.md shows train as they stand there, by the rewards that the page names."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.method import build_method
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train
from tests.support.tiny_runs import TINY
from tests.support.unlabelled import DOUBLES, HERE, PHRASES

PAGE = Path(__file__).resolve().parents[4] / "docs" / "annotate.md"
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)]


def name_of(block: Mapping[str, Any]) -> str:
    first = block["annotate"][0]
    return str(first if isinstance(first, str) else first["name"])


SHOWN = {name_of(block): block for block in BLOCKS}


def one_step(folder: Path, block: Mapping[str, Any], *, env: str = "Unlabelled") -> dict[str, float]:
    """Train one step with the sections of a block as they stand, and doubles of its models; return its metrics."""
    models = {
        name: {"kind": DOUBLES.get(model["kind"]["name"], model["kind"])}
        for name, model in block.get("models", {}).items()
    }
    data: dict[str, Any] = {
        "run": {"directory": str(folder), "steps": 1, "trackers": []},
        "model": {"name": "tiny", "tiny": TINY},
        "engine": {"device": "cpu", "backend": f"{HERE}:PhrasesBackend"},
        "envs": [{"id": f"{HERE}:{env}", "name": "sums"}],
        "agent": {"name": "plain", "max_turn_tokens": 64, "max_context_tokens": 512},
        "optim": {"lr": 0.001},
        "evaluation": {"tasks": 1},
        "canary": {"enabled": False},
        **block,
        "rollout": {"group_size": 8, **block.get("rollout", {}), "groups": 2},
        "models": models,
    }
    train(train_settings(data))
    (row,) = [row for row in RunDirectory.open(folder).metrics() if "train/rows" in row]
    return row


def assert_all_groups_train(row: Mapping[str, float]) -> None:
    assert row["filter/kept"] == 1.0
    assert row["optim/updates"] == 1.0
    assert row["optim/grad_norm"] > 0


def test_the_page_shows_these_annotators() -> None:
    names = {"judge", "tarl", "process_reward", "verifree", "majority_vote", "skill_writer", "rewriter"}
    assert SHOWN.keys() == names
    assert len(BLOCKS) == len(names)


@pytest.mark.parametrize("name, coef", [("judge", 1.0), ("tarl", 10.0), ("verifree", 1.0), ("majority_vote", 1.0)])
def test_unlabelled_groups_train_by_the_annotated_rewards(name: str, coef: float, tmp_path: Path) -> None:
    row = one_step(tmp_path / "run", SHOWN[name])
    assert row["reward/mean"] == 0.0
    assert row["train/success"] == 0.0
    assert row[f"annotate/{name}_failed"] == 0.0
    assert row[f"annotate/{name}_mean"] > 0
    assert math.isclose(row["train/reward"], coef * row[f"annotate/{name}_mean"], rel_tol=1e-9)
    assert_all_groups_train(row)
    assert row["train/rows"] == row["rollout/episodes"]


def test_the_label_of_the_env_does_not_choose_the_groups(tmp_path: Path) -> None:
    """The same groups train, by the same rewards, whether the env pays or not."""
    rows = [one_step(tmp_path / env, SHOWN["majority_vote"], env=env) for env in ("Unlabelled", "Labelled")]
    assert [row["reward/mean"] > 0 for row in rows] == [False, True]
    for key in ("train/reward", "train/rows", "filter/kept", "loss/policy", "optim/grad_norm"):
        assert rows[0][key] == rows[1][key], key


@pytest.mark.parametrize(
    "sections",
    [
        {"resampling": {"rounds": 3}},
        {"rollout": {"stragglers": "window", "staleness": 1, "deterministic": False}, "resampling": {"rounds": 3}},
        {"rollout": {"oversampling": 1.5}},
    ],
)
def test_the_collector_counts_the_groups_that_train(sections: dict[str, Any], tmp_path: Path) -> None:
    """By the env's rewards no group would be kept, and all rounds be sampled."""
    row = one_step(tmp_path / "run", {**SHOWN["tarl"], **sections})
    assert row["optim/updates"] == 1.0
    assert row["rollout/groups"] <= 3.0
    assert row["train/rows"] == 16.0


def test_groups_of_equal_annotated_rewards_are_dropped_whatever_the_env_pays(tmp_path: Path) -> None:
    """No share of 0.99 agrees, so that every value is 0; the env's rewards differ within the groups."""
    assert len({"3" in phrase for phrase in PHRASES}) == 2
    block = {**SHOWN["majority_vote"], "annotate": [{"name": "majority_vote", "min_share": 0.99}]}
    row = one_step(tmp_path / "run", block, env="Labelled")
    assert row["filter/zero_variance"] == 1.0
    assert row["optim/updates"] == 0.0


def test_process_rewards_choose_episodes_and_the_rewards_of_the_env_train(tmp_path: Path) -> None:
    row = one_step(tmp_path / "run", SHOWN["process_reward"], env="Labelled")
    assert row["dropped/process_disagrees"] == 8.0
    assert row["train/rows"] == 8.0
    assert row["optim/grad_norm"] > 0


def test_skills_that_a_model_writes_train_by_the_rewards_of_the_env(tmp_path: Path) -> None:
    row = one_step(tmp_path / "run", SHOWN["skill_writer"], env="Labelled")
    assert row["annotate/skill_failed"] == 0.0
    assert_all_groups_train(row)


def test_rewritten_texts_train_beside_the_rewards_of_the_shaping(tmp_path: Path) -> None:
    row = one_step(tmp_path / "run", SHOWN["rewriter"], env="Labelled")
    assert row["annotate/rewrite_mean"] == 1.0
    assert row["train/rows"] > row["rollout/episodes"]
    assert row["loss/memory"] > 0
    assert_all_groups_train(row)


INSTEAD = {
    "annotate": ["majority_vote"],
    "shaping": {"name": "annotated", "annotation": "majority_vote", "instead": True},
}


@pytest.mark.parametrize(
    "sections, sentence",
    [
        ({"filter": {"name": "zero_variance", "rewards": "env"}}, "filter.rewards must be shaped with shaping.instead"),
        ({"filter": {"name": "top_variance", "rewards": "env"}}, "filter.rewards must be shaped with shaping.instead"),
        ({"recipe": "dapo"}, "filter.rewards must be shaped with shaping.instead"),
        ({"allocator": "reinforce_ada"}, "allocator must be null with shaping.instead=true"),
        ({"replay": "rlep"}, "replay must be null with shaping.instead=true"),
    ],
)
def test_rewards_that_were_replaced_choose_nothing(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build_method(train_settings({"envs": [{"id": "math/arithmetic-v0"}], **sections, **INSTEAD}))
