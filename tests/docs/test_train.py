"""The page on training: its file is every setting with its default, its programs run, its metrics are the trainer's."""

import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from envgym.plugins import Choice
from envgym.runs import RunDirectory
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "train.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHAPE = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}


def blocks(language: str) -> list[tuple[str | None, str]]:
    """Return (title, text) of every block of a language."""
    found = re.findall(rf'^```{language}(?: title="([^"]*)")?\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE)
    return [(title or None, text) for title, text in found]


def reference() -> dict[str, Any]:
    """Return the settings that the page spells out, block by block."""
    merged: dict[str, Any] = {}  # a YAML tree
    for title, text in blocks("yaml"):
        if title is None:
            part = yaml.safe_load(text)
            assert merged.keys().isdisjoint(part)
            merged |= part
    return merged


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every settings key as a dotted path; a list's entries are written as 0."""
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        is_mapping = "Mapping" in str(field.annotation)  # its keys are the user's
        if inner is None or is_mapping or issubclass(inner, (Choice, model)):  # a section in itself stands once
            yield f"{prefix}{name}"
        else:
            repeated = "0." if "tuple" in str(field.annotation) else ""
            yield from keys(inner, f"{prefix}{name}.{repeated}")


def _model_in(annotation: Any) -> type[BaseModel] | None:  # any type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def leaves(value: Any, prefix: str = "") -> Iterator[str]:  # a YAML tree
    """Yield every dotted path of a tree, those of sections too."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield f"{prefix}{key}"
        yield from leaves(item, f"{prefix}{key}.")


def test_page_spells_out_every_setting() -> None:
    assert sorted(set(keys(TrainSettings)) - set(leaves(reference()))) == []


def test_values_of_the_page_are_the_defaults() -> None:
    data = reference()
    endpoint = {name: data["engine"]["endpoint"][name] for name in ("base_url", "model")}
    least = {
        "envs": [{"id": data["envs"][0]["id"]}],
        "sft": {},
        "critic": {},
        "objective": {"terms": [{"name": "exploration", "loss": "entropy", "sources": ["POLICY", "DEMONSTRATION"]}]},
        "decontamination": {},
        "demonstrations": {},
        "model": {"lora": {}},
        "engine": {"endpoint": endpoint},
    }
    assert train_settings(data).model_dump() == train_settings(least).model_dump()


def test_every_key_of_the_page_has_a_comment_or_speaks_for_itself() -> None:
    lines = [line for title, text in blocks("yaml") if title is None for line in text.splitlines() if ":" in line]
    assert sum("#" in line for line in lines) > len(lines) / 2


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
            "agent": {"max_turn_tokens": 24, "max_context_tokens": 512},
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
    absent |= {"replay/episodes", "replay/reward"}
    assert plain - names <= absent, "no metric is made up"
    table = re.findall(r"^\| `([\w./-]+?)(?:step-N)?/?` \|", PAGE.with_name("runs.md").read_text(), re.MULTILINE)
    made = {path.relative_to(tmp_path / "run").parts[0] for path in (tmp_path / "run").rglob("*")}
    assert made <= {name.rstrip("/") for name in table}
