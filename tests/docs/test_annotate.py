"""The page on annotating: its settings are those of runs, and it names every annotator."""

import re
from pathlib import Path

import yaml

from envgym.trainer.catalog import ANNOTATOR
from envgym.trainer.method import build_method
from envgym.trainer.settings import train_settings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "annotate.md").read_text(encoding="utf-8")


def test_settings_can_be_built() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    for text in blocks:
        method = build_method(train_settings({"envs": [{"id": "math/arithmetic-v0"}], **yaml.safe_load(text)}))
        assert method.annotators


def test_every_annotator_is_named() -> None:
    assert [name for name in ANNOTATOR.table if f"`{name}`" not in TEXT] == []
