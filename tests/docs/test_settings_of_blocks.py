"""Settings of all pages: a run has every value of a block, and its plug-ins and environments take them."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from envgym.agents.evaluation.suite import SuiteSettings
from envgym.cli.pipelines import PHASES, SELF_TRAINING
from envgym.cli.settings import kinds_by_key
from envgym.config.arguments import parameters
from envgym.config.plugins import Choice, PluginKind
from envgym.config.settings import build_settings
from envgym.errors import EnvgymError
from envgym.registry import creator_of
from envgym.trainer.methods.self_training.base import SELF_TRAINING as PLAN
from envgym.trainer.settings import SelfTrainingSettings, train_settings
from tests.support.pages import BLOCKS, Block


def parts_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings of a run that a block has: its own, and those that each phase lays over them."""
    alone = {section: value for section, value in data.items() if section not in (PHASES, SELF_TRAINING)}
    phases = ({key: value for key, value in phase.items() if key != "name"} for phase in data.get(PHASES, ()))
    return [alone, *phases]


def values_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:  # YAML
    """Yield every path of a tree with what stands there, sections and lists before what they hold."""
    yield path, value
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from values_of(inner, (*path, key))


def kind_at(path: Sequence[str | int]) -> PluginKind[Any] | None:
    keys = ["0" if isinstance(key, int) else key for key in path]
    if keys[:1] == ["models"]:
        keys[1:2] = ["NAME"]
    in_list_or_mapping = keys[-1:] == ["0"] or keys[-2:-1] == ["parties"]
    return None if keys[-1:] == ["parties"] else kinds_by_key().get(".".join(keys[:-1] if in_list_or_mapping else keys))


def check_choice(kind: PluginKind[Any], value: Any) -> None:  # a name, or a mapping with one
    """See that a plug-in of ours takes the settings that stand beside its name. Raises: whatever refuses them."""
    choice = Choice.model_validate(value)
    if ":" in choice.name:  # a class of the page, which its own test runs
        return
    plugin = kind.load(choice.name)
    if isinstance(plugin, type) and issubclass(plugin, BaseModel):
        assert choice.settings.keys() <= plugin.model_fields.keys()
        elsewhere = ("runs/", *filter(None, (block.title for block in BLOCKS)))  # runs and files that are not here
        if not any(str(value).startswith(elsewhere) for value in choice.settings.values()):
            plugin.model_validate(choice.settings)
    elif kind.is_called(plugin):
        inspect.signature(plugin).bind(*kind.arguments, **choice.settings)
    else:
        assert choice.settings == {}


def check_settings(data: Mapping[str, Any]) -> None:
    """See that a run has every value of a block, and that its plug-ins and envs take what is meant for them."""
    settings = train_settings({"envs": [{"id": "math/arithmetic-v0"}], **data}).model_dump(mode="json")
    for path, value in values_of(data):
        kind = kind_at(path)
        if kind is not None and isinstance(value, str | Mapping):
            check_choice(kind, value)
        got: Any = settings  # a YAML tree
        for key in path:
            got = got[key]
        if not isinstance(value, Mapping | list):
            assert (got["name"] if isinstance(got, Mapping) else got) == value, path
    for env in data.get("envs", ()):
        if ":" not in env["id"]:
            known = parameters(creator_of(env["id"]))
            assert known is None or env.get("settings", {}).keys() <= known.keys(), env["id"]


SHOWN = [
    pytest.param(block, id=block.where)
    for block in BLOCKS
    if block.language == "yaml" and not block.page.startswith("examples/")  # whose env a test of its own installs
]


@pytest.mark.parametrize("block", SHOWN)
def test_settings_of_a_block_are_those_of_the_run(block: Block) -> None:
    """A block that is a part of a settings file gets an environment."""
    data = yaml.safe_load(block.text)
    if block.is_suite:
        build_settings(SuiteSettings, data, where=block.where)
        return
    for part in parts_of(data):
        check_settings(part)
    if SELF_TRAINING in data:
        SelfTrainingSettings.model_validate(data[SELF_TRAINING])
        check_choice(PLAN, data[SELF_TRAINING]["plan"])


@pytest.mark.parametrize(
    "text",
    [
        "optim: {lrr: 0.1}",
        "credit: {name: gigpo, discuont: 0.9}",
        "credit: {name: gigpo, discount: 2.0}",
        "loss: ppo_clipp",
        "objective: {terms: [{name: a, loss: {name: nll, min_rewrad: 1}}]}",
        "run: {trackers: [progress, {name: wandb}]}",
        "models: {judge: {kind: {name: local}}}",
        "envs: [{id: math/arithmetic-v0, settings: {levle: 2}}]",
        "envs: [{id: math/arithmetic-v0, wrappers: [{name: turn_limit, turns: 3}]}]",
        "optim: {lr: 1e-4}",  # YAML 1.1 reads a text, so that the page and the run would differ
    ],
)
def test_a_block_that_a_run_would_not_have_is_noticed(text: str) -> None:
    with pytest.raises((AssertionError, EnvgymError, ValidationError, TypeError)):
        check_settings(yaml.safe_load(text))
