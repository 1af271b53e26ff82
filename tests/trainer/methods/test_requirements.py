"""Plug-ins of a file are asked for what they require, and for what they can do, as ours are."""

from pathlib import Path
from typing import Any

import pytest

from envgym.errors import SettingsError
from envgym.trainer.method import Method, build_method
from envgym.trainer.settings import train_settings

DISTILLED = {"terms": [{"name": "distillation", "loss": "self_distillation"}]}
PREFIX = {"terms": [{"name": "prefix", "loss": "prefix_rft", "origins": ["DEMONSTRATION"]}]}
STATES = {"terms": [{"name": "states", "loss": {"name": "contrastive", "prompts": ["xml"]}}]}
OUTSIDE = """
from typing import ClassVar

from envgym.config.settings import Settings
from envgym.agents.search.random_expand import RandomExpand
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.requirements import Fault


class LongRuns(Settings):
    def __call__(self, group):
        return Grpo()(group)

    def requires(self, choices):
        must, steps = f"be at least 500 with {choices.names['credit']}", choices.num_steps
        return Fault.unless(steps >= 500, "run.steps", must, steps, "raise it")


class Alone(Settings):
    works_alone: ClassVar[bool] = False

    def __call__(self, group):
        return Grpo()(group)


class Quiet(Settings):
    def choose(self, context):
        return Uniform().choose(context)


class Worded(Uniform):
    @property
    def tree_prompts(self):
        return ("xml",)


class Flat(RandomExpand):
    grows_trees: ClassVar[bool] = False


class HintRatio(PpoClip):
    weighs_hints: ClassVar[bool] = True
"""


def build(sections: dict[str, Any], folder: Path) -> Method:
    """Build a method of a file, whose classes sections name after a colon."""
    (folder / "outside.py").write_text(OUTSIDE)
    named = {key: f"{folder}/outside.py{name}" for key, name in sections.items() if str(name).startswith(":")}
    return build_method(train_settings({"envs": [{"id": "math/arithmetic-v0"}], **sections, **named}))


@pytest.mark.parametrize(
    "sections, sentence",
    [
        ({"credit": ":LongRuns"}, r"run.steps must be at least 500 with .*:LongRuns, got 100 \(settings\)"),
        ({"search": ":Flat", "credit": "tree_po"}, "credit tree_po must be used with .* got search .*:Flat"),
        (
            {"credit": ":Alone", "filter": "keep_all", "rollout": {"group_size": 1}},
            "rollout.group_size must be at least 2 for .*:Alone, which compares",
        ),
        ({"curriculum": ":Worded", "objective": DISTILLED}, "its prompt skill, got .*:Worded with xml"),
        ({"curriculum": ":Worded", "objective": PREFIX}, "term prefix must be used with a method"),
    ],
)
def test_plugin_of_a_file_is_refused(sections: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build(sections, tmp_path)


@pytest.mark.parametrize(
    "sections",
    [
        {"credit": ":LongRuns", "run": {"steps": 500}},
        {"curriculum": ":Worded", "objective": STATES},
        {"curriculum": ":Quiet", "objective": STATES},
        {"curriculum": ":Quiet", "objective": DISTILLED},
        {"curriculum": ":Quiet", "objective": PREFIX},
        {"loss": ":HintRatio", "allocator": "guide"},
    ],
)
def test_plugin_of_a_file_is_accepted(sections: dict[str, Any], tmp_path: Path) -> None:
    names = {type(part).__name__ for part in build(sections, tmp_path).parts.values()}
    assert {str(name)[1:] for name in sections.values() if str(name).startswith(":")} <= names
