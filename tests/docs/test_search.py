"""The page on search: its settings load, its value chooses, and it names every strategy and every setting."""

import re
from pathlib import Path

import pytest
import yaml

from envgym.agents.search import Mcts, SurprisalFork
from envgym.agents.search.protocol import TreeStrategy
from envgym.plugins import Choice
from envgym.trainer.settings import train_settings
from tests.support.plugins import STRATEGIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "search.md"
TEXT = PAGE.read_text(encoding="utf-8")


def block(language: str) -> tuple[str, str]:
    """Return the name and the text of the one titled block of a language."""
    ((name, text),) = re.findall(rf'^```{language} title="([^"]*)"\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE)
    return name, text


def test_configuration_loads_and_its_leaves_make_up_its_group() -> None:
    settings = train_settings(yaml.safe_load(block("yaml")[1]))
    strategy = STRATEGIES[settings.search.name](**settings.search.settings)
    assert isinstance(strategy, TreeStrategy)
    assert strategy.num_trees(settings.rollout.group_size) == 2


def test_value_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text = block("python")
    (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert not Mcts(value=Choice(name="my_value:Critic")).selection.is_oracle


def test_every_strategy_and_every_setting_of_the_searches_is_named() -> None:
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]*`", TEXT))))
    assert set(STRATEGIES) <= named
    assert set(Mcts.model_fields) | set(SurprisalFork.model_fields) <= named
