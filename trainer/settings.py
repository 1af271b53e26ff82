"""The settings of a training run: what a recipe chooses, what a run chooses besides, and how both are read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field, model_validator

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.settings import (
    EngineSettings,
    EnvSettings,
    EvaluationSettings,
    ModelSettings,
    RolloutSamplingSettings,
)
from envgym.core.tree import Source
from envgym.errors import SettingsError, sentence
from envgym.plugins import Choice
from envgym.runs import RunDirectory
from envgym.settings import Settings, apply_overrides, build_settings, place_of, places, read_settings_file
from envgym.trainer.catalog import RECIPE
from envgym.trainer.sections import (
    CanarySettings,
    CriticSettings,
    DecontaminationSettings,
    DemonstrationSettings,
    LaunchSettings,
    NamedModelSettings,
    ObjectiveSettings,
    OptimSettings,
    PhasesSettings,
    ResamplingSettings,
    RolloutSettings,
    SelfTrainingSettings,
    SftSettings,
    TrainRunSettings,
    check_trainable,
)


class Recipe(Settings):
    """What a paper chooses: a method at every plug-in point, and whatever else of a run it depends on."""

    curriculum: Choice = Choice(name="uniform")
    """Which tasks come next."""
    search: Choice = Choice(name="chain")
    """How the episodes of a group are sampled: `chain` plays each by itself, others grow trees."""
    resampling: ResamplingSettings = ResamplingSettings()
    """Further rounds of groups, until the filter has kept enough of them."""
    allocator: Choice | None = None
    """Extends groups that have ended, and chooses which of their episodes train; null: neither."""
    annotate: tuple[Choice, ...] = ()
    """Annotators of every group, in order; each sees what those before it wrote."""
    replay: Choice | None = None
    """What of earlier steps, or of another run, trains again beside what a step samples; null: nothing."""
    filter: Choice = Choice(name="zero_variance")
    """Which groups train."""
    shaping: Choice = Choice(name="none")
    """What is added to the rewards that credit sees."""
    credit: Choice = Choice(name="grpo")
    """Advantages of the episodes of a group, or of all groups of a step."""
    weights: tuple[Choice, ...] = ()
    """Token weights: advantages spread anew over the tokens, one after the other."""
    loss: Choice = Choice(name="ppo_clip")
    """Loss of every token of the policy."""
    correction: Choice = Choice(name="none")
    """Weights and rejections for a sampler that is not the trainer."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """How token losses become the number that is minimised, and its further terms."""
    agent: AgentSettings = AgentSettings()
    """How the policy acts in its environments."""
    decontamination: DecontaminationSettings | None = None
    """Which train tasks are left out for text that held-out ones have, too; null: none, as the splits share no task."""
    sampling: RolloutSamplingSettings = RolloutSamplingSettings()
    """How the policy samples what it learns from."""
    sft: SftSettings | None = None
    """A warm start on demonstrations; null: none."""
    demonstrations: DemonstrationSettings | None = None
    """Demonstrations beside the episodes of every step; null: none."""
    rollout: RolloutSettings = RolloutSettings()
    """How many episodes a step samples, and how far sampling runs ahead of learning."""
    optim: OptimSettings = OptimSettings()
    """The optimizer and its schedule."""
    critic: CriticSettings | None = None
    """Only with a credit that reads values; such a credit takes the defaults without it."""
    models: Mapping[str, NamedModelSettings] = Field(default_factory=dict)
    """Models beside the policy, by the name under which annotators, scores and losses ask for them. A KL term takes the
    one called `reference`, by default the policy as the run began."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Evaluation on held-out tasks, before and after training, and every so many steps."""
    canary: CanarySettings = CanarySettings()
    """A check after every update that the learner's weights are those that sample."""
    controllers: tuple[Choice, ...] = ()
    """What looks at the run after each step and may change how it goes on, in this order."""


class TrainSettings(Recipe):
    """A training run: a recipe's choices, any of them replaced, and what no recipe chooses."""

    recipe: str = "grpo"
    """The recipe whose choices are the defaults of the others; `envgym recipes` lists them."""
    run: TrainRunSettings = TrainRunSettings()
    """Name, length, checkpoints and reports of the run."""
    model: ModelSettings = ModelSettings()
    """The policy's model."""
    engine: EngineSettings = EngineSettings()
    """What samples, and on what device."""
    envs: tuple[EnvSettings, ...] = Field(min_length=1)
    """The mixture of environments; the groups of a step are shared out by weight."""
    launch: LaunchSettings = LaunchSettings()
    """Processes beside the run's own."""

    @model_validator(mode="after")
    def _check_sampling(self) -> "TrainSettings":
        check_trainable(self.sampling.sampling, where="sampling")
        return self

    @model_validator(mode="after")
    def _check_demonstrations(self) -> "TrainSettings":
        readers = [term.name for term in self.objective.terms if Source.DEMONSTRATION in term.sources]
        if self.demonstrations is not None and not readers:
            do = "add one with sources=[DEMONSTRATION], such as loss nll, or leave the section out"
            must = "be used with a term of the objective that reads them"
            raise ValueError(sentence("demonstrations", must, "none", where="objective.terms", do=do))
        return self

    @model_validator(mode="after")
    def _check_device_of_processes(self) -> "TrainSettings":
        starts_some = self.launch.learners > 1 or (self.launch.servers > 0 and self.launch.launcher != "static")
        if starts_some and self.engine.device.startswith("cuda:"):
            must, do = "name no GPU where several processes use one", "set it to cuda: each process takes its own"
            raise ValueError(sentence("engine.device", must, self.engine.device, where="engine", do=do))
        return self

    @model_validator(mode="after")
    def _check_allocator(self) -> "TrainSettings":
        if self.allocator is not None and self.rollout.stragglers != "wait":
            must, do = "be wait beside an allocator", "leave it out: the allocator says when a group has ended"
            raise ValueError(sentence("rollout.stragglers", must, self.rollout.stragglers, where="rollout", do=do))
        return self

    @model_validator(mode="after")
    def _check_adapter(self) -> "TrainSettings":
        if self.model.adapter is not None and self.model.lora is None:
            do = "add model.lora to train the adapter further, or merge it into the model"
            raise ValueError(sentence("model.lora", "be set to train an adapter", "nothing", where="model", do=do))
        return self


class SettingsFile(TrainSettings, PhasesSettings):
    """Everything that a file may hold: the settings of a training run, or of several that follow one another."""

    self_training: SelfTrainingSettings | None = None
    """Rounds of a scorer and a policy, which begin with the policy of the other sections; null: none."""


def load_train_settings(path: Path, overrides: Sequence[str] = ()) -> TrainSettings:
    """Read a run's settings from YAML. Raises: SettingsError, UnknownName: one sentence per fault."""
    data = apply_overrides(read_settings_file(path), overrides)
    return train_settings(data, where=str(path), given=places(overrides))


def train_settings(
    data: dict[str, Any], *, where: str = "train_settings", given: Mapping[str, str] = MappingProxyType({})
) -> TrainSettings:
    """Build a run's settings from plain data, on top of the recipe that it names; `given` is as in `build_settings`."""
    recipe = recipe_settings(str(data.get("recipe", "grpo")), where=place_of(("recipe",), where, given))
    merged = _merged(recipe.model_dump(), data)
    return build_settings(TrainSettings, merged, where=where, given=given)


def recipe_settings(name: str, *, where: str = "settings") -> Recipe:
    """Return the choices of a recipe. Raises: UnknownName, SettingsError: there is none, or it chooses what is none."""
    entry = RECIPE.build(Choice(name=name), where=where)
    if fixed := sorted(entry.choices.keys() & (TrainSettings.model_fields.keys() - Recipe.model_fields)):
        do, must = "leave it to the run", f"choose among {', '.join(Recipe.model_fields)}"
        raise SettingsError.of("recipe", must, fixed[0], where=f"recipe {name}", do=do)
    return build_settings(Recipe, entry.choices, where=f"recipe {name}")


def _merged(recipe: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the sections of `data` over the recipe's; another plug-in's name, but the agent's, drops its settings."""
    merged = dict(recipe)
    for section, chosen in data.items():
        base = recipe.get(section)
        named = {"name": chosen} if isinstance(chosen, str) else chosen
        if (
            isinstance(base, Mapping)
            and isinstance(named, Mapping)
            and (section == "agent" or named.get("name", base.get("name")) == base.get("name"))
        ):
            merged[section] = _merged(base, named)
        else:
            merged[section] = chosen
    return merged


def settings_of_run(run: RunDirectory, *sections: str) -> TrainSettings:
    """Return the settings of a training run, to act on these sections of them; on all, where none is named.

    Raises: RunError: as `RunDirectory.trusted_config`. SettingsError: they are no settings of a training run.
    """
    return build_settings(TrainSettings, run.trusted_config(*sections), where=str(run.path / "config.json"))
