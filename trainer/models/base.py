"""What a named model is built from, and how those of a run are built and checked before it begins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.protocols import Policy
from envgym.agents.settings import ModelSettings, RolloutSamplingSettings
from envgym.config.plugins import Choice
from envgym.core.tasks import Split, TaskSource
from envgym.errors import SettingsError, check_known
from envgym.runtime.event_loop import run_coroutine
from envgym.trainer.learner.settings import CriticSettings, ObjectiveSettings, OptimSettings
from envgym.trainer.methods.annotators.base import MODEL, Annotator, Model, ProbingAnnotator, required_models
from envgym.trainer.methods.scores import POLICY_MODEL
from envgym.trainer.settings import NamedModelSettings, TrainRunSettings

NUM_PROBED = 64
"""Most train tasks of each env that models are tried on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """The parts of a run that a named model may share."""

    model: Any
    """PreTrainedModel or PeftModel: what the policy trains."""
    tokenizer: Any
    """PreTrainedTokenizerFast: of the policy."""
    policy: Policy
    device: torch.device
    run: TrainRunSettings
    model_settings: ModelSettings
    """Of the policy."""
    agent: AgentSettings
    sampling: RolloutSamplingSettings
    staleness: int
    optim: OptimSettings
    critic: CriticSettings
    objective: ObjectiveSettings
    correction: Choice
    name: str = ""
    """Of the model, in `models`."""


def check_models(models: Mapping[str, NamedModelSettings], plugins: Mapping[str, object]) -> None:
    """See that every named model that a plug-in uses is there and of the kind that it needs.

    Args:
        models: the section of the run.
        plugins: by the place in the settings that chose each.

    Raises: UnknownName: a name that `models` lacks; near names are listed. SettingsError: a model of another kind.
    """
    check_name_is_free(models)
    for where, plugin in plugins.items():
        for name, protocol in required_models(plugin).items():
            remedy = f"add models.{name} to the settings"
            check_known("model", name, [POLICY_MODEL, *models], where=where, remedy=remedy)
            kind = Policy if name == POLICY_MODEL else MODEL.load(models[name].kind.name)
            missing = [member for member in _methods(protocol) if not hasattr(kind, member)]
            if missing:
                got = POLICY_MODEL if name == POLICY_MODEL else models[name].kind.name
                do = f"name a model that is a {protocol.__name__}"
                raise SettingsError.of(f"model {name}", f"have {missing[0]}", got, where=where, do=do)


def check_name_is_free(names: Iterable[str]) -> None:
    """See that no model takes the policy's name. Raises: SettingsError: one does."""
    must, do = "be another than the policy's", "choose another name"
    SettingsError.unless(POLICY_MODEL not in names, "name of a model", must, POLICY_MODEL, where="models", do=do)


def _methods(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def check_annotations_are_made(annotators: Mapping[str, object], readers: Mapping[str, object]) -> None:
    """See that what reads annotations, by its setting `annotation`, finds them made.

    An annotator without a name may make any.

    Raises: UnknownName: none makes them; near names are listed.
    """
    names = [getattr(annotator, "name", None) for annotator in annotators.values()]
    for where, reader in readers.items():
        annotation = getattr(reader, "annotation", None)
        if annotation is not None and None not in names:
            options, remedy = [str(name) for name in names], "add an annotator with this name to annotate"
            check_known("annotation", annotation, options, where=where, remedy=remedy)


def probe_models(
    annotators: Mapping[str, Annotator], models: Mapping[str, Model], tasks: Sequence[TaskSource]
) -> dict[str, float]:
    """Let annotators try their models on the first train tasks of every env, and return what they measured.

    Raises: InvalidInput: a model will not do.
    """
    probing = {name: annotator for name, annotator in annotators.items() if isinstance(annotator, ProbingAnnotator)}

    async def work() -> dict[str, float]:
        measurements: dict[str, float] = {}
        try:
            for name, annotator in probing.items():
                measured = await annotator.probe(first, models)
                measurements |= {f"annotate/{name}_{key}": value for key, value in measured.items()}
        finally:
            for model in models.values():
                await model.close()
        return measurements

    if not probing:
        return {}
    sizes = [source.size(Split.TRAIN) for source in tasks]
    counts = [NUM_PROBED if size is None else min(NUM_PROBED, size) for size in sizes]
    first = [source.task(Split.TRAIN, n) for source, count in zip(tasks, counts, strict=True) for n in range(count)]
    return run_coroutine(work())


def build_models(sections: Mapping[str, NamedModelSettings], context: ModelContext) -> dict[str, Model]:
    """Build the named models of a run, and see that each can be used. Raises: InvalidInput: one cannot."""
    models: dict[str, Model] = {}
    for name, model_settings in sections.items():
        models[name] = MODEL.build(model_settings.kind, replace(context, name=name), where=f"models.{name}")
        models[name].check()
    return models
