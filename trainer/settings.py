"""The settings of a training run: what a recipe chooses, what a run chooses besides, and how both are read."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.settings import (
    EngineSettings,
    EnvSettings,
    EvaluationSettings,
    ModelSettings,
    RolloutSamplingSettings,
    RunSettings,
)
from envgym.config.plugins import Choice, override_settings
from envgym.config.settings import Settings, build_settings, place_of, places, read_settings_file
from envgym.core.tree import Source
from envgym.errors import SettingsError, sentence
from envgym.runs.directory import RunDirectory
from envgym.trainer.launch.settings import LaunchSettings
from envgym.trainer.learner.settings import CriticSettings, ObjectiveSettings, OptimSettings
from envgym.trainer.recipes import RECIPE
from envgym.trainer.rollout.settings import ResamplingSettings, RolloutSettings, check_trainable
from envgym.trainer.workflows.settings import DemonstrationSettings, SftSettings


class TrainRunSettings(RunSettings):
    """The run itself."""

    steps: int = Field(default=100, ge=0)
    """Train steps (optimizer updates per step: see `optim`)."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Older checkpoints are deleted, that of step 0 too: raise it to evaluate an earlier policy again."""
    keep_best: str | None = None
    """Metric of the evaluations, such as `success`, or `metric/iqm` of `evaluation.metrics`: the checkpoint with the
    best value is kept, too, and `best.json` names it. Of several environments the mean counts. null: none."""
    keep_best_mode: Literal["max", "min"] = "max"
    """Whether the largest or the smallest value of that metric is the best."""
    save_episodes_every: int = Field(default=1, ge=0)
    """Steps between saved batches of episodes, with the numbers that the learner computed of tokens; 0 saves none."""
    trackers: tuple[Choice, ...] = (Choice(name="progress"), Choice(name="tensorboard"))
    """Where the run is shown: `progress` in the terminal, `tensorboard` event files if the package is installed,
    `wandb` with its `project`, `mlflow`, `trackio`, or one of your own. A tracker that fails is turned off with a
    warning; with `required: true` in its settings, its failure ends the run."""
    journal: bool = True
    """Keep sampled turns until a checkpoint holds what they taught, so that a resumed run samples none again."""
    max_invalid_rate: float = Field(default=0.5, ge=0, le=1)
    """The run stops when a larger share of a step's episodes is invalid, or of the annotations of one name failed."""

    def saves_episodes(self, step: int) -> bool:
        """Return whether the episodes of a step (from 1) are saved."""
        return self.save_episodes_every > 0 and step % self.save_episodes_every == 0


EVALUATION_METRICS: Final = ("success", "success_low", "success_high", "invalid")
"""Metrics of every evaluation; those that `evaluation.metrics` adds begin with `metric/`."""


class DecontaminationSettings(Settings):
    """Leave out train tasks whose text overlaps with the held-out tasks of the evaluation. Source: 2411.15124."""

    ngram: int = Field(default=8, ge=1)
    """Words in a row that two texts must have in common."""
    share: float = Field(default=0.5, ge=0, lt=1)
    """Largest share of a held-out text's words that lie in such rows of a train task that is kept."""


class CanarySettings(Settings):
    """Before and after every update: are the weights that sample those that have learned?"""

    enabled: bool = True
    """Whether the check is made."""
    max_gap: float = Field(default=0.1, gt=0)
    """Largest mean difference of log-probs between sampler and learner, in nats; beyond it the run stops."""
    min_move: float = Field(default=1e-3, gt=0)
    """When the learner's log-probs move by more than this and the sampler's do not, the run stops."""
    on_rewrite: Literal["row", "fail"] = "row"
    """A turn whose context had to be rendered anew begins a row of its own, or stops the run; also when not enabled."""


class NamedModelSettings(Settings):
    """A model of the run beside its policy."""

    kind: Choice
    """`local` (a directory, for log-probs), `snapshot` (the policy as the run began), `endpoint` (a service that
    answers conversations), one that learns beside the policy (`token_critic` ...), or one of your own."""


class PhasesSettings(Settings):
    """The section `phases` of a settings file, whose other sections are those that all phases share."""

    phases: tuple[dict[str, Any], ...] = Field(default=(), min_length=1)
    """Runs in their order, each with a `name` and the sections that it lays over the shared ones."""


class SelfTrainingSettings(Settings):
    """The section `self_training` of a settings file, whose other sections are those of the first policy's run."""

    plan: Choice
    """The method: `rest_mcts`, `agent_prm`, or one of your own."""
    rounds: int = Field(default=2, ge=1)
    """Rounds of a scorer and a policy after the first policy."""
    episodes: int = Field(default=2048, ge=1)
    """Episodes that the scorer of each round is fitted on."""
    scorer: dict[str, Any] = Field(default_factory=dict)
    """Sections of the fits, such as `optim` and `critic`."""


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
    def _check_keep_best(self) -> "TrainSettings":
        metric, every = self.run.keep_best, self.evaluation.every
        if metric is None:
            return self
        if not every:
            must, do = "be used with evaluations between the steps", "set evaluation.every, or leave run.keep_best out"
            raise ValueError(sentence("run.keep_best", must, "evaluation.every=0", where="run", do=do))
        if metric not in EVALUATION_METRICS and not (metric.startswith("metric/") and self.evaluation.metrics):
            must = f"be {', '.join(EVALUATION_METRICS)}, or metric/NAME of a metric in evaluation.metrics"
            do = "name one of those, or add the metric to evaluation.metrics"
            raise ValueError(sentence("run.keep_best", must, metric, where="run", do=do))
        return self

    @model_validator(mode="after")
    def _check_device_of_processes(self) -> "TrainSettings":
        starts_some = self.launch.learners > 1 or (self.launch.servers > 0 and self.launch.launcher != "static")
        if starts_some and self.engine.device.startswith("cuda:"):
            must, do = "name no GPU where several processes use one", "set it to cuda: each process takes its own"
            raise ValueError(sentence("engine.device", must, self.engine.device, where="engine", do=do))
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> "TrainSettings":
        launch = self.launch
        starts_vllm = launch.servers > 0 and launch.launcher != "static" and launch.server_engine == "vllm"
        self.engine.check_uses_vllm(has_vllm_servers=starts_vllm)
        if starts_vllm and self.engine.device.startswith("cuda"):  # `auto` is checked when the servers are placed
            launch.check_transport(gpus_each=self.engine.tensor_parallel)
        rules: dict[str, tuple[object, object, str]] = {
            "engine.backend": ("vllm", self.engine.backend.name, "set it, or leave engine.colocate out"),
            "rollout.staleness": (0, self.rollout.staleness, "leave it out: nothing samples while a step learns"),
            "launch.learners": (1, launch.learners, "leave it out, or sample with policy servers"),
        }
        for name, (required, value, do) in rules.items() if self.engine.colocate else ():
            if value != required:
                raise ValueError(sentence(name, f"be {required} with engine.colocate", value, where="engine", do=do))
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


def train_settings(
    data: dict[str, Any], *, where: str = "train_settings", sources: Mapping[str, str] = MappingProxyType({})
) -> TrainSettings:
    """Build a run's settings from plain data, on top of the recipe that it names; `sources` as in `build_settings`."""
    recipe = recipe_settings(str(data.get("recipe", "grpo")), where=place_of(("recipe",), where, sources))
    merged = _merged(recipe.model_dump(), data)
    return build_settings(TrainSettings, merged, where=where, sources=sources)


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
    for section, value in data.items():
        base = recipe.get(section)
        named = {"name": value} if isinstance(value, str) else value
        if (
            isinstance(base, Mapping)
            and isinstance(named, Mapping)
            and (section == "agent" or named.get("name", base.get("name")) == base.get("name"))
        ):
            merged[section] = _merged(base, named)
        else:
            merged[section] = value
    return merged


def settings_of_run(run: RunDirectory, *sections: str) -> TrainSettings:
    """Return the settings of a training run, to act on these sections of them; on all, where none is named.

    Raises: RunError: as `RunDirectory.trusted_config`. SettingsError: they are no settings of a training run.
    """
    return build_settings(TrainSettings, run.trusted_config(*sections), where=str(run.path / "config.json"))


def load_train_settings(
    source: TrainSettings | Mapping[str, Any] | str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    trusted: bool = False,
    on_read: Callable[[Mapping[str, Any]], None] = lambda data: None,
) -> TrainSettings:
    """Return the settings of a training run, with the overrides laid over them.

    Args:
        source: a YAML file, its content, or the settings themselves; with `resume` also a run directory.
        overrides: replaced settings, each as `optim.lr=1e-4`.
        resume: whether a run is to go on.
        trusted: enter a run directory into the list of the user's own first.
        on_read: called with what a run directory holds, before anything that it names is imported.

    Raises: SettingsError, UnknownName, RunError: settings, or a run directory, that cannot be used.
    """
    option_sources = places(overrides)
    if isinstance(source, TrainSettings):
        data = override_settings(TrainSettings, source.model_dump(), overrides)
        return build_settings(TrainSettings, data, where="train", sources=option_sources)
    if isinstance(source, Mapping):
        return train_settings(override_settings(SettingsFile, source, overrides), where="train", sources=option_sources)
    path = Path(source)
    if not path.is_dir() and not (resume and not path.exists() and path.suffix not in (".yaml", ".yml")):
        data = override_settings(SettingsFile, read_settings_file(path), overrides)
        return train_settings(data, where=str(path), sources=option_sources)
    do = "resume it with --resume, or resume=True"
    SettingsError.unless(resume, "settings of a run", "be a YAML file", "a directory", where=str(path), do=do)
    data = override_settings(TrainSettings, RunDirectory.open(path, trusted=trusted).trusted_config(), overrides)
    on_read(data)
    return build_settings(TrainSettings, data, where=str(path / "config.json"), sources=option_sources)


def warm_start_settings(settings: TrainSettings, *, is_resumed: bool, where: str) -> TrainSettings:
    """Return the settings of a run that ends with its warm start; those of a run directory stay as they are.

    Raises: SettingsError: there is no warm start, or the run that is resumed goes beyond it.
    """
    if settings.sft is None:
        do = "add an sft section, or pass --set sft.episodes=256"
        raise SettingsError.of("sft", "be set", "nothing", where=where, do=do)
    if is_resumed:
        do = "use envgym train RUN --resume"
        SettingsError.unless(not settings.run.steps, "run.steps", "be 0", settings.run.steps, where=where, do=do)
        return settings
    renamed = {"name": f"{settings.run.name}-sft", "directory": f"{settings.run.path}-sft", "steps": 0}
    return settings.model_copy(update={"run": settings.run.model_copy(update=renamed)})


def lay_over(data: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Lay sections over those of `data`; one that names another plug-in, or that was empty, is taken whole."""
    merged = dict(data)
    for name, section in sections.items():
        base = merged.get(name)
        is_same = isinstance(base, Mapping) and isinstance(section, Mapping) and "name" not in section
        merged[name] = {**base, **section} if is_same else section  # type: ignore[dict-item]  # both are mappings
    return merged
