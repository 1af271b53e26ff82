"""Every example configuration is one that `envgym train` accepts."""

import re
from pathlib import Path

import pytest

from envgym.agents.settings import EvaluationSettings
from envgym.trainer.env_source import build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.settings import load_train_settings

CONFIGS = [
    pytest.param(path, marks=[pytest.mark.web] if "id: web/" in path.read_text(encoding="utf-8") else [], id=path.stem)
    for path in sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))
]


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAINING = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.name != "declaration.yaml"]


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_training_example_says_what_it_learns_or_that_this_is_not_measured(path: Path) -> None:
    head = [
        line for line in path.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if line.startswith("# ")
    ]
    (told,) = (line for line in head if line.startswith("# Learning: "))
    assert re.search(r"\d %.* to \d|none|not measured|docs/results/\w+\.md", told), told
    for page in re.findall(r"docs/results/\w+\.md", told):
        assert (EXAMPLES.parent / page).exists()


@pytest.mark.parametrize("path", CONFIGS)
def test_example_settings_name_methods_and_envs_that_exist(path: Path) -> None:
    settings = load_train_settings(path)
    assert build_method(settings).curriculum is not None
    assert list(build_env_sources(settings.envs, EvaluationSettings(tasks=1))) == [env.label for env in settings.envs]
    assert settings.run.name == path.stem
