"""What a named model is built from, and how those of a run are built and checked before it begins."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from envgym.agents.protocols import Policy
from envgym.errors import SettingsError, check_known, sentence
from envgym.trainer.catalog import MODEL
from envgym.trainer.methods.annotators.base import Model, required_models
from envgym.trainer.settings import TrainSettings

POLICY_MODEL = "policy"
"""Stands for the policy itself where a model is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """The parts of a run that a named model may share."""

    model: Any
    """PreTrainedModel or PeftModel: what the policy trains."""
    tokenizer: Any
    """PreTrainedTokenizerFast: of the policy."""
    policy: Policy
    device: torch.device
    settings: TrainSettings


def check_models(settings: TrainSettings, plugins: Mapping[str, object]) -> None:
    """See that every named model that a plug-in uses is there and of the kind that it needs.

    Args:
        settings: of the run.
        plugins: by the place in the settings that chose each.

    Raises: UnknownName: a name that `models` lacks; near names are listed. SettingsError: a model of another kind.
    """
    check_name_is_free(settings.models)
    for where, plugin in plugins.items():
        for name, protocol in required_models(plugin).items():
            check_known("model", name, [POLICY_MODEL, *settings.models], where=where)
            kind = Policy if name == POLICY_MODEL else MODEL.load(settings.models[name].kind.name)
            missing = [member for member in _methods(protocol) if not hasattr(kind, member)]
            if missing:
                shown = POLICY_MODEL if name == POLICY_MODEL else settings.models[name].kind.name
                do = f"name a model that is a {protocol.__name__}"
                raise SettingsError(sentence(f"model {name}", f"have {missing[0]}", shown, where=where, do=do))


def check_name_is_free(names: Iterable[str]) -> None:
    """See that no model takes the policy's name. Raises: SettingsError: one does."""
    if POLICY_MODEL in names:
        must, do = "be another than the policy's", "choose another name"
        raise SettingsError(sentence("name of a model", must, POLICY_MODEL, where="models", do=do))


def _methods(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def build_models(context: ModelContext) -> dict[str, Model]:
    """Build the named models of a run, and see that each can be used. Raises: InvalidInput: one cannot."""
    models: dict[str, Model] = {}
    for name, chosen in context.settings.models.items():
        models[name] = MODEL.build(chosen.kind, context, where=f"models.{name}")
        models[name].check()
    return models
