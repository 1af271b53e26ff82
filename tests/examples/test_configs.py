"""Every example configuration is one that `envgym train` accepts."""

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


@pytest.mark.parametrize("path", CONFIGS)
def test_example_settings_name_methods_and_envs_that_exist(path: Path) -> None:
    settings = load_train_settings(path)
    assert build_method(settings).curriculum is not None
    assert list(build_env_sources(settings.envs, EvaluationSettings(tasks=1))) == [env.label for env in settings.envs]
    assert settings.run.name == path.stem
