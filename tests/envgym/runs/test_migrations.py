"""Run directories of schema 1, as the code of then wrote them, are read as those of today."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from envgym.runs import migrations as run_migrations
from envgym.agents.settings import EvalSettings
from envgym.config.plugins import Choice
from envgym.runs.migrations import migrate_config, migrate_metrics
from envgym.runs.directory import SCHEMA_VERSION, RunDirectory
from envgym.config.settings import build_settings
from envgym.trainer.settings import train_settings

OLD = Path(__file__).parent / "schema_1"


def test_settings_of_an_old_training_run_are_todays() -> None:
    settings = train_settings(RunDirectory.open(OLD / "train").config)
    assert (settings.engine.threads, settings.engine.concurrency, settings.engine.max_batch) == (1, 128, 128)
    assert settings.engine.backend == Choice(name="transformers")
    assert (settings.rollout.groups, settings.rollout.staleness, settings.rollout.min_finished_share) == (24, 2, 1.0)
    assert settings.sampling.temperature == 0.9
    assert settings.objective.aggregation == choice(name="seq-mean-token-sum-norm", max_tokens=512)
    assert settings.objective.kl_estimator == Choice(name="k3")
    assert settings.search.settings["select"] == {"name": "reward"}


def choice(**fields: object) -> Choice:
    return Choice.model_validate(fields)


def test_phases_of_an_old_warm_start_are_todays() -> None:
    sft = train_settings(RunDirectory.open(OLD / "train").config).sft
    assert sft is not None
    first, second = sft.phases
    assert (first.source, first.episodes, first.batch_size) == (Choice(name="oracle"), 9000, 8)
    assert second.source == choice(name="examples/giving_up.py:GivingUp", share=0.75, text="I do not know.")
    assert (second.episodes, second.epochs, second.batch_size, second.lr) == (640, 1, 8, 0.003)
    recorded = migrate_config({"rollout": {}, "sft": {"recorded": "runs/teacher"}}, schema=1)["sft"]
    assert recorded == {"source": {"name": "recorded", "directory": "runs/teacher"}}


def test_settings_of_an_old_evaluation_are_todays() -> None:
    settings = build_settings(EvalSettings, RunDirectory.open(OLD / "eval").config, where="old")
    assert settings.engine.backend == Choice(name="vllm_server")
    assert settings.engine.endpoint is not None
    assert (settings.engine.endpoint.base_url, settings.engine.threads) == ("http://localhost:8000/v1", 2)
    assert (settings.model.tokenizer, settings.model.train_steps) == ("tiny", 7)
    assert settings.evaluation.search == choice(name="best_of", n=4, select={"name": "likelihood"})
    asked = {"model": {"endpoint": {"base_url": "u", "model": "m"}}, "policy": {"backend": "transformers"}}
    assert migrate_config(asked, schema=1)["engine"]["backend"] == "openai"


def test_critic_of_an_old_search_is_a_choice() -> None:
    value = "envgym.trainer.value_fn:critic:runs/demo-value"
    search = migrate_config({"rollout": {}, "search": {"name": "mcts", "value": value}}, schema=1)["search"]
    assert search["value"] == {"name": "critic", "run": "runs/demo-value"}
    search = migrate_config({"rollout": {}, "search": {"name": "best_of", "select": value}}, schema=1)["search"]
    assert search == {
        "name": "best_of",
        "select": {"name": "value"},
        "value": {"name": "critic", "run": "runs/demo-value"},
    }


def test_trackers_of_an_old_run_are_choices() -> None:
    run = {"tensorboard": False, "wandb": "cats"}
    trackers = migrate_config({"rollout": {}, "run": run}, schema=1)["run"]["trackers"]
    assert trackers == [{"name": "progress"}, {"name": "wandb", "project": "cats"}]


@pytest.mark.parametrize(
    "model, precision",
    [
        ({"dtype": "float32", "autocast": "none"}, "float32"),
        ({"dtype": "float32", "autocast": "bfloat16"}, "mixed"),
        ({"dtype": "bfloat16", "autocast": "none"}, "bfloat16"),
        ({"autocast": "bfloat16"}, "mixed"),
        ({}, "float32"),
    ],
)
def test_number_types_of_an_old_run_are_its_precision(model: dict[str, str], precision: str) -> None:
    config = {"rollout": {}, "model": {"name": "tiny", **model}}
    assert migrate_config(config, schema=3)["model"] == {"name": "tiny", "precision": precision}
    assert migrate_config(config, schema=4) == config


def test_settings_of_today_are_left_as_they_are() -> None:
    config = json.loads((OLD / "train" / "config.json").read_text())
    assert migrate_config(config, schema=SCHEMA_VERSION) == config
    assert migrate_config(migrate_config(config, schema=1), schema=SCHEMA_VERSION) == migrate_config(config, schema=1)


def test_metrics_of_an_old_run_have_todays_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes: Mapping[str, str] = {"drift/": "context/", "drift/rewritten_turns": "context/turns"}
    monkeypatch.setattr(run_migrations, "METRIC_PREFIXES", prefixes)
    assert migrate_metrics({"drift/rewritten_turns": 1.0, "drift/tail": 2.0, "loss": 3.0}, schema=1) == {
        "context/turns": 1.0,  # the longest prefix counts
        "context/tail": 2.0,
        "loss": 3.0,
    }
    assert migrate_metrics({"drift/tail": 2.0}, schema=2) == {"drift/tail": 2.0}
    run = RunDirectory.open(Path(shutil.copytree(OLD / "train", tmp_path / "run")))
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert all(math.isfinite(row["context/turns"]) for row in run.metrics()[1:])
