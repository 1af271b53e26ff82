"""Every training example says what it learns: in `examples/`, in the documentation, and of `envgym new`."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import BLOCKS, Block

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FILES = [
    path
    for folder in (EXAMPLES, ROOT / "studies")
    for path in sorted(folder.rglob("*.yaml"))
    if path.name != "declaration.yaml"
]
STATEMENT = re.compile(
    r"\d+\.\d % to .*\d+\.\d % of \d+ held-out|none|not measured|a part of a comparison; docs/results/"
)
SCAFFOLD = ROOT / "envgym/cli/templates/new/train.yaml.tmpl"
RESULTS = re.compile(r"docs/results/\w+\.md")
PERCENT = re.compile(r"\d+\.\d %")


def can_be_trained(block: Block) -> bool:
    """Return whether a block is a whole settings file, or a program with such settings; a suite is evaluated only."""
    if block.language == "yaml":
        return bool(block.title) and "envs" in yaml.safe_load(block.text) and not block.is_suite
    return block.language == "python" and '"envs": [' in block.text


def training_examples() -> list[Any]:
    shown = [block for block in BLOCKS if can_be_trained(block)]
    files = [pytest.param(path.read_text("utf-8"), id=path.relative_to(ROOT).as_posix()) for path in [*FILES, SCAFFOLD]]
    return files + [pytest.param(block.text, id=block.where) for block in shown]


@pytest.mark.parametrize("text", training_examples())
def test_training_example_says_what_it_learns(text: str) -> None:
    (learned,) = re.findall(r"^ *# Learning: (.+)$", text, re.MULTILINE)
    assert STATEMENT.match(learned)
    for page in RESULTS.findall(learned):
        assert set(PERCENT.findall(learned)) <= set(PERCENT.findall((ROOT / page).read_text("utf-8")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_learning_of_every_file_is_measured(path: Path) -> None:
    assert "# Learning: not measured" not in path.read_text("utf-8")
