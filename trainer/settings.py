"""Everything a training run can be told, as frozen settings with a sentence each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_validator

from envgym.agents.agent import AgentSettings
from envgym.agents.models.tiny import TinySettings
from envgym.agents.policies.backends import PolicySettings
from envgym.errors import sentence, unknown_name
from envgym.plugins import Choice
from envgym.settings import Settings, apply_overrides, build_settings, place_of, places, read_settings_file
from envgym.trainer.recipes import RECIPES


class RunSettings(Settings):
    """The run itself."""

    name: str = "run"
    """Names the run in reports."""
    directory: str | None = None
    """Where everything is written; the default is `runs/<name>`."""
    seed: int = 0
    """Every random choice of the run derives from it."""
    steps: int = Field(default=100, ge=0)
    """Train steps (optimizer updates per step: see `optim`)."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Older checkpoints are deleted."""
    save_episodes_every: int = Field(default=1, ge=0)
    """Steps between saved batches of episodes; 0 saves none."""
    tensorboard: bool = True
    """Write TensorBoard event files, where the package is installed."""
    wandb: str | None = None
    """Project name: also log to Weights & Biases, where the package is installed."""
    max_invalid_rate: float = Field(default=0.5, ge=0, le=1)
    """The run stops when a larger share of a step's episodes is invalid."""


class LoraSettings(Settings):
    """Train low-rank adapters instead of all weights. Source: 2106.09685."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class ModelSettings(Settings):
    """The policy's model."""

    name: str = "tiny"
    """`tiny`, `smollm2`, a Hugging Face directory or a hub name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Of the matrix products, in sampling and in training alike."""
    head_dtype: Literal["same", "float32"] = "same"
    """Of the product that gives the logits, in both engines and in training. Source: 2506.13585."""
    device: str = "auto"
    """`auto` takes CUDA where there is one."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; the default is torch's own."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    lora: LoraSettings | None = None
    tiny: TinySettings = TinySettings()
    """Shape of the `tiny` model."""


class EnvSettings(Settings):
    """One env of the mixture."""

    id: str
    """Such as `math/arithmetic-v0`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the env."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the groups, relative to the other envs."""
    name: str | None = None
    """Names it in metrics; the default is the id."""

    @property
    def label(self) -> str:
        """The name in metrics and task statistics."""
        return self.name or self.id


class SftSettings(Settings):
    """A warm start: supervised training before the first GRPO step."""

    episodes: int = Field(default=256, ge=1)
    """Episodes of the envs' oracles on train tasks."""
    recorded: str | None = None
    """Train on the episodes of another run's directory instead."""
    gives_up: float = Field(default=0.0, ge=0, lt=1)
    """If above 0, a second phase follows in which the oracle gives up at once in this share of the episodes, and is
    imitated in that, too. Such a policy can do the task and often does not try: reinforcement learning has to find
    out that trying pays."""
    gives_up_episodes: int = Field(default=512, ge=1)
    """Episodes of that phase."""
    gives_up_saying: str = "I do not know."
    """What the oracle says when it gives up."""
    epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=32, ge=1)
    """Episodes per update."""
    lr: float = Field(default=1e-3, gt=0)
    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the updates in which the rate rises; it falls to 0 as a cosine afterwards."""
    until_success: float | None = Field(default=None, gt=0, le=1)
    """Stop once this share of sampled episodes on train tasks succeeds; the rate then stays up instead of falling.
    A policy that fails at times is what reinforcement learning needs: no more than that is worth imitating."""
    check_every: int = Field(default=50, ge=1)
    """Updates between such checks."""
    check_tasks: int = Field(default=64, ge=1)
    """Episodes of each check, each on a task of its own."""


class RolloutSettings(Settings):
    """How episodes are collected."""

    groups: int = Field(default=8, ge=1)
    """Groups per train step."""
    group_size: int = Field(default=8, ge=1)
    """Episodes that share a baseline."""
    temperature: float = Field(default=1.0, gt=0)
    """Training takes log-probs at the same temperature. Top-p and top-k have no exact gradient and are not offered."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes under way at a time."""
    max_batch: int = Field(default=64, ge=1)
    """Requests that the policy samples at a time."""


class CollectSettings(Settings):
    """How far sampling runs ahead of learning, and whom a step waits for."""

    staleness: int = Field(default=0, ge=0)
    """Train steps by which a sample may be older than the weights that it trains. 0: every step samples anew. Above,
    the groups of later steps grow already; choose a `correction`, as they are off-policy."""
    deterministic: bool = True
    """Grow groups to their end before a step learns, so that a run repeats; with `staleness` the samples are then
    exactly that old. False: sampling, envs and learning overlap, and samples are at most that old."""
    oversampling: float = Field(default=1.0, ge=1)
    """Groups that are begun for each that a step trains on; it goes on when the filter keeps as many as it needs."""
    enough: float = Field(default=1.0, gt=0, le=1)
    """Share of a step's trees that it waits for in any case; a chain is a tree with one episode."""
    stragglers: Literal["wait", "abort", "carry"] = "wait"
    """What becomes of the others: waited for; aborted, so that their episodes under way are invalid; or carried over to
    the next step."""

    @property
    def overlaps(self) -> bool:
        """Whether groups grow while a step learns."""
        return self.staleness > 0 and not self.deterministic

    @property
    def ahead(self) -> int:
        """Steps whose groups are begun ahead; one that carries over lets its stragglers grow older by one."""
        return self.staleness - (self.stragglers == "carry")

    @model_validator(mode="after")
    def _check_stragglers(self) -> "CollectSettings":
        where, must = "collect", "be false where stragglers are not waited for"
        if self.stragglers != "wait" and self.deterministic:
            do = "set it to false: who is late depends on timing"
            raise ValueError(sentence("collect.deterministic", must, True, where=where, do=do))
        if self.stragglers == "wait" and self.enough < 1:
            do = "set stragglers to abort or carry, or leave enough at 1"
            raise ValueError(
                sentence("collect.enough", "be 1 where all are waited for", self.enough, where=where, do=do)
            )
        if self.stragglers == "carry" and not self.staleness:
            do = "raise it: an episode that is carried over was begun with older weights"
            raise ValueError(sentence("collect.staleness", "be at least 1 to carry over", 0, where=where, do=do))
        return self


class OptimSettings(Settings):
    """AdamW and its schedule. Source: 1711.05101."""

    lr: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """After warmup, down to 0 at the last step."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient of one update."""
    minibatches: int = Field(default=1, ge=1)
    """Updates that one pass over a step's rows is cut into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's rows."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens that are computed at a time, padding included; bounds memory, changes no result. A longer row stands
    alone."""
    packing: bool = True
    """Compute each prefix that rows share once; False: every row by itself, padded. Changes time and memory only."""


class ObjectiveSettings(Settings):
    """How token losses become the number that is minimised."""

    aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    max_tokens: int | None = Field(default=None, ge=1)
    """The constant of `seq-mean-token-sum-norm`."""
    shared_tokens: Literal["per_path", "once"] = "per_path"
    """A token that k rows share trains k times, or once (weight 1/k)."""
    old_policy: Literal["recomputed", "rollout"] = "recomputed"
    """What the loss's ratio is taken to: the policy as the step began, of which the learner computes log-probs anew; or
    the one that sampled, by the log-probs that it stated (bypass), so that the ratio corrects for it, too."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of KL(policy || reference) in the loss."""
    kl_coef: float = Field(default=0.0, ge=0)
    """0 keeps no reference model."""
    entropy_coef: float = 0.0

    @model_validator(mode="after")
    def _check_constant(self) -> "ObjectiveSettings":
        if self.aggregation == "seq-mean-token-sum-norm" and self.max_tokens is None:
            do = "set it to the most tokens that an episode may sample"
            rule = f"be set for {self.aggregation}"
            raise ValueError(sentence("objective.max_tokens", rule, "nothing", where="objective", do=do))
        return self


class CriticSettings(Settings):
    """The value head of a credit that reads values."""

    lr: float = Field(default=0.05, gt=0)
    """About how far one update moves a value; constant. Each update is AdamW's, with the betas and eps of `optim`."""
    detach: bool = True
    """The head learns from the policy's hidden states as they are, so that the policy's gradient is that of its
    objective alone, and exact for any critic. False: the value loss trains the body too."""
    coef: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy's; it matters only without `detach`, as Adam undoes it in the head."""
    clip: float | None = Field(default=None, gt=0)
    """How far a value may move within a train step before it stops learning; None = any."""


class EvaluationSettings(Settings):
    """Held-out evaluation on the test split: the same tasks every time."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only before and after."""
    tasks: int = Field(default=100, ge=1)
    """Distinct held-out tasks per env before and after training."""
    tasks_during: int = Field(default=100, ge=1)
    """The first so many of them in between."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    success_at: float = 1.0
    """An episode succeeds when its reward is at least this."""


class CanarySettings(Settings):
    """After every update: are the weights that sample those that have learned?"""

    enabled: bool = True
    max_gap: float = Field(default=0.1, gt=0)
    """Largest mean difference of log-probs between sampler and learner, in nats; beyond it the run stops."""
    min_move: float = Field(default=1e-3, gt=0)
    """When the learner's log-probs move by more than this and the sampler's do not, the run stops."""
    on_rewrite: Literal["row", "fail"] = "row"
    """A turn whose context had to be rendered anew begins a row of its own, or stops the run; also when not enabled."""


class ResamplingSettings(Settings):
    """Dynamic sampling: more groups in place of those that the filter drops. Source: 2503.14476."""

    rounds: int = Field(default=1, ge=1)
    """Most rounds of `rollout.groups` groups that a step collects; it stops when the filter has kept so many."""


class Recipe(Settings):
    """One choice per plug-in point; a paper is one recipe."""

    curriculum: Choice = Choice(name="uniform")
    search: Choice = Choice(name="chain")
    resampling: ResamplingSettings = ResamplingSettings()
    filter: Choice = Choice(name="zero_variance")
    shaping: Choice = Choice(name="none")
    credit: Choice = Choice(name="grpo")
    loss: Choice = Choice(name="ppo_clip")
    correction: Choice = Choice(name="none")
    objective: ObjectiveSettings = ObjectiveSettings()


class TrainSettings(Recipe):
    """A training run: a recipe's choices, any of them replaced, and everything around them."""

    recipe: str = "grpo"
    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    agent: AgentSettings = AgentSettings()
    envs: tuple[EnvSettings, ...] = Field(min_length=1)
    sft: SftSettings | None = None
    policy: PolicySettings = PolicySettings()
    rollout: RolloutSettings = RolloutSettings()
    collect: CollectSettings = CollectSettings()
    optim: OptimSettings = OptimSettings()
    critic: CriticSettings | None = None
    """Only with a credit that reads values; such a credit takes the defaults without it."""
    evaluation: EvaluationSettings = EvaluationSettings()
    canary: CanarySettings = CanarySettings()

    @property
    def run_directory(self) -> Path:
        """Where the run is written."""
        return Path(self.run.directory or Path("runs") / self.run.name)


def load_train_settings(path: Path, overrides: Sequence[str] = ()) -> TrainSettings:
    """Read a run's settings from YAML. Raises: SettingsError, UnknownName: one sentence per fault."""
    data = apply_overrides(read_settings_file(path), overrides)
    return train_settings(data, where=str(path), given=places(overrides))


def train_settings(
    data: dict[str, Any], *, where: str = "train_settings", given: Mapping[str, str] = MappingProxyType({})
) -> TrainSettings:
    """Build a run's settings from plain data, on top of the recipe that it names; `given` is as in `build_settings`."""
    name = data.get("recipe", "grpo")
    if not isinstance(name, str) or name not in RECIPES:
        raise unknown_name("recipe", str(name), RECIPES, where=place_of(("recipe",), where, given))
    merged = {**data, **_merged(recipe_settings(name).model_dump(), data)}
    return build_settings(TrainSettings, merged, where=where, given=given)


def recipe_settings(name: str) -> Recipe:
    """Return the choices of the recipe called `name`, a key of `RECIPES`."""
    return Recipe.model_validate(RECIPES[name].choices)


def _merged(recipe: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Lay the sections of `data` over the recipe's; another method's name drops the recipe's settings for it."""
    merged = dict(recipe)
    for section, chosen in data.items():
        if section not in recipe:
            continue
        base = recipe[section]
        renamed = isinstance(chosen, dict) and "name" in chosen and chosen["name"] != base.get("name")
        merged[section] = chosen if renamed or not isinstance(chosen, dict) else {**base, **chosen}
    return merged
