"""The page on training: its file is every setting with its default, its programs run, its metrics are the trainer's."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from envgym.runs.directory import RunDirectory
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "train.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHAPE = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}


def blocks(language: str) -> list[tuple[str | None, str]]:
    found = re.findall(rf'^```{language}(?: title="([^"]*)")?\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE)
    return [(title or None, text) for title, text in found]


def test_first_file_is_a_run() -> None:
    (text,) = [text for title, text in blocks("yaml") if title == "first.yaml"]
    assert train_settings(yaml.safe_load(text)).run.name == "first"


def test_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = dict(blocks("python"))
    assert list(programs) == ["my_credit.py", "run.py"]
    for name, text in programs.items():
        assert name is not None
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_credit", raising=False)
    runpy.run_path("run.py", run_name="__main__")
    assert RunDirectory.open(tmp_path / "runs/from_python").config["credit"]["bonus"] == 0.5
    assert (tmp_path / "runs/from_python/report.html").exists()


def test_every_metric_of_a_run_is_explained_and_every_file_too(tmp_path: Path) -> None:
    settings = train_settings(
        {
            "run": {"directory": str(tmp_path / "run"), "steps": 1},
            "model": {"name": "tiny", "tiny": SHAPE},
            "agent": {"max_turn_tokens": 48, "max_context_tokens": 512},
            "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
            "sft": {"episodes": 8, "batch_size": 4, "until_success": 1.0, "check_every": 1, "check_tasks": 2},
            "rollout": {"groups": 2, "group_size": 2},
            "filter": {"name": "keep_all"},
            "credit": {"name": "gae_turn"},
            "critic": {"model": "value"},
            "models": {"value": {"kind": "token_critic"}},
            "correction": {"name": "tis"},
            "objective": {"kl_coef": 0.1},
            "evaluation": {"tasks": 2},
            "controllers": [{"name": "weight_average", "last": 1}],
        }
    )
    train(settings)
    rows = RunDirectory.open(tmp_path / "run").metrics()
    names = {name for row in rows for name in row if name != "step"}
    told = re.findall(r"`([a-z_]+/[A-Za-z_]+)`", TEXT.partition("## Metrics")[2])
    patterns = [re.sub("NAME|REASON", r"\\w+", name) for name in told]
    assert sorted(name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)) == []
    plain = {name for name in told if name.islower()}
    absent = {"filter/kept", "train/success_low", "train/success_high", "critic/explained_variance"}
    absent |= {"rollout/short_trees", "annotate/seconds", "loss/exploration", "coef/exploration"}
    absent |= {"replay/episodes", "replay/reward", "memory/peak_gib", "journal/turns", "journal/tokens"}
    absent |= {"collect/replaced", "collect/too_old"}
    absent |= {"processes/restarts", "requests/retried", "rollout/reissued", "train/reward"}
    absent |= {"conversations/mean", "conversations/max", "program/crashes", "program/malformed_calls"}
    absent |= {"program/ignored_options", "program/rows_per_turn"}
    absent |= {"engine/recorded_steps", "engine/recordings", "time/sleep_s", "time/wake_s"}
    assert plain - names <= absent, "no metric is made up"
    table = re.findall(r"^\| `([\w./-]+?)(?:step-N)?/?` \|", PAGE.with_name("runs.md").read_text(), re.MULTILINE)
    made = {path.relative_to(tmp_path / "run").parts[0] for path in (tmp_path / "run").rglob("*")}
    assert made <= {name.rstrip("/") for name in table}
