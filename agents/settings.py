"""The sections that describe a run: model, engine, envs, sampling and evaluation.

Each is defined here, once, and used by every command; `EvalSettings` is an evaluation, and a training run adds the
sections of the trainer to them. The agent's own section is `AgentSettings`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.models.tiny import TinySettings
from envgym.agents.protocols import Sampling
from envgym.config.plugins import Choice
from envgym.config.settings import Settings, check_unread
from envgym.core.tasks import Split
from envgym.errors import SettingsError, sentence
from envgym.party import PARTY
from envgym.registry import id_of, maker
from envgym.serving.remote_env import remote_id
from envgym.wrappers.base import WRAPPER

if TYPE_CHECKING:
    from envgym.env import Env


class RunSettings(Settings):
    """The run itself."""

    name: str = "run"
    """Names the run in reports."""
    directory: str | None = None
    """Where everything is written; the default is `runs/<name>`."""
    seed: int = 0
    """Every random choice of the run derives from it."""

    @property
    def path(self) -> Path:
        return Path(self.directory or Path("runs") / self.name)


class LoraSettings(Settings):
    """Train low-rank adapters instead of all weights. Source: 2106.09685."""

    rank: int = Field(default=16, ge=1)
    """Rank of the adapters."""
    alpha: int = Field(default=32, ge=1)
    """Scale of the adapters: what they add is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the linear layers that get an adapter, or all of them but the output layer."""


class ModelSettings(Settings):
    """The policy's model."""

    name: str = "tiny"
    """`tiny`, `smollm2`, a Hugging Face directory or a hub name; or what an endpoint calls its model."""
    adapter: str | None = None
    """Directory of a LoRA adapter on top of it; an evaluation merges it, training goes on with it (see `lora`)."""
    tokenizer: str | None = None
    """Where the tokenizer is, as `name`; null: at `name`."""
    precision: Literal["auto", "float32", "mixed", "bfloat16"] = "auto"
    """Number types. `float32`: weights and matrix products in float32. `mixed`: weights that train in float32, matrix
    products and the weights of separate samplers in bfloat16. `bfloat16`: everything in bfloat16, updated without loss
    by rounding. `auto`: `mixed` on CUDA, `float32` on a CPU."""
    head_dtype: Literal["same", "float32"] = "same"
    """Number type of the product that gives the logits, in every engine and in training. Source: 2506.13585."""
    tiny: TinySettings = TinySettings()
    """Shape of the `tiny` model."""
    lora: LoraSettings | None = None
    """Adapters that training adds; null: all weights train."""
    gradient_checkpointing: bool = False
    """Compute activations twice in training instead of keeping them."""
    train_steps: int = Field(default=0, ge=0)
    """Train steps that made these weights, for the records of an evaluation."""

    def on(self, device_type: str) -> "ModelSettings":
        """Return the settings with the precision that `auto` stands for on a device, such as `cuda`."""
        if self.precision != "auto":
            return self
        return self.model_copy(update={"precision": "mixed" if device_type == "cuda" else "float32"})

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Number type of the weights that train; `on` comes first."""
        assert self.precision != "auto", "the device decides"
        return "bfloat16" if self.precision == "bfloat16" else "float32"

    @property
    def sampler_dtype(self) -> Literal["float32", "bfloat16"]:
        """Number type of the weights of a sampler that has a copy of its own; `on` comes first."""
        assert self.precision != "auto", "the device decides"
        return "float32" if self.precision == "float32" else "bfloat16"


class EndpointSettings(Settings):
    """An endpoint, and how hard it may be used."""

    base_url: str = Field(pattern="^https?://.")
    """Up to and with the version, such as `http://localhost:8000/v1`."""
    model: str
    """What the endpoint calls its model."""
    api_key_env: str | None = None
    """Environment variable that holds the key; null: no key is sent."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for one answer."""
    max_retries: int = Field(default=5, ge=0)
    """Further attempts after the first."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Pause before the second attempt; doubled for each further one."""
    max_backoff_s: float = Field(default=60.0, ge=0)
    """Longest pause, also where the endpoint asks for a longer one."""
    max_concurrency: int = Field(default=32, ge=1)
    """Requests under way at a time."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Requests are spaced evenly to keep this rate; null: as fast as they come."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the endpoint calls the limit of a reply."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request; they replace ours of the same name."""
    omit: tuple[str, ...] = ()
    """Fields of ours that the endpoint refuses, such as `seed`."""


_NO_SETTING: Final = "leave it out: envgym sets it"
OWNED_ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "model": "set model.name",
        "tokenizer": "set model.tokenizer",
        "served_model_name": "set model.name",
        "dtype": "set model.precision",
        "hf_overrides": "set model.head_dtype, or change the config.json of the model",
        "max_model_len": "set engine.max_context",
        "max_num_seqs": "set engine.max_batch",
        "kv_cache_memory_bytes": "set engine.cache_gib",
        "tensor_parallel_size": "set engine.tensor_parallel",
        "pipeline_parallel_size": "set engine.tensor_parallel",
        "data_parallel_size": "set launch.servers, which also share the requests",
        **dict.fromkeys(
            (
                "disable_log_stats",
                "enable_sleep_mode",
                "generation_config",
                "logprobs_mode",
                "runner",
                "skip_tokenizer_init",
                "trust_remote_code",
                "weight_transfer_config",
                "worker_cls",
                "worker_extension_cls",
            ),
            _NO_SETTING,
        ),
    }
)
"""Arguments of vLLM's engine that envgym sets itself -> what to do instead."""
MEMORY_SHARE: Final = "gpu_memory_utilization"
"""Argument of vLLM's engine by which the cache takes a share of the device instead of `cache_gib`."""


class EngineSettings(Settings):
    """What samples, and on what it computes; no result depends on it but through rounding."""

    backend: Choice = Choice(name="transformers")
    """`transformers` samples from the model in this process; `vllm` in a process and from a copy of its own;
    `policy_servers` from servers of its own settings, by token ids; `vllm_server` from a model that vLLM serves at
    `endpoint`, by token ids; `openai` from any OpenAI-compatible service at `endpoint`, by messages; or a backend of
    your own. Only the first three can train."""
    device: str = "auto"
    """Device for sampling and learning: `cpu`, `cuda`, or `auto`, which takes CUDA where there is one."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch, in this process and in vLLM's; the default is torch's own."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes under way at a time."""
    max_batch: int = Field(default=64, ge=1)
    """Requests that are sampled at a time; bounds memory."""
    cache_gib: float = Field(default=2.0, gt=0)
    """vllm: memory for keys and values."""
    max_context: int | None = Field(default=None, ge=2)
    """vllm: longest context with its sample; the default is what the model has positions for."""
    restarts: int = Field(default=3, ge=0)
    """vllm: how many times in a row the engine may die, without one answer in between, and is started again."""
    tensor_parallel: int = Field(default=1, ge=1)
    """vllm: devices that the weights of an engine, or of each policy server, are split over."""
    colocate: bool = False
    """vllm: learner and engine use one GPU in turns. The engine sleeps while a step learns: it drops its weights and
    frees its cache, and loads the new weights when it wakes. The learner keeps its weights and the optimizer state."""
    vllm: Mapping[str, Any] = Field(default={})
    """vllm: more arguments of its engine, by the names of `vllm.AsyncEngineArgs`, such as `block_size`."""
    endpoint: EndpointSettings | None = None
    """vllm_server and openai: the service that has the model."""

    @field_validator("vllm")
    @classmethod
    def _check_vllm(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in OWNED_ARGUMENTS.keys() & arguments.keys():
            must = "be none that envgym sets"
            raise ValueError(sentence("argument of vLLM", must, name, where="engine.vllm", do=OWNED_ARGUMENTS[name]))
        return arguments

    @model_validator(mode="after")
    def _check_cache(self) -> "EngineSettings":
        if MEMORY_SHARE in self.vllm:
            when, do = f"where engine.vllm has {MEMORY_SHARE}", "leave one of them out"
            check_unread(self, ("cache_gib",), when, where="engine", do=do)
        return self

    def check_uses_vllm(self, *, has_vllm_servers: bool = False) -> None:
        """Check that the settings of vLLM's engine have one to apply to.

        Args:
            has_vllm_servers: whether the run starts policy servers that sample with vLLM.

        Raises: ValueError: another engine samples.
        """
        if self.backend.name != "vllm" and not has_vllm_servers:
            do = "set engine.backend=vllm, or launch.servers with launch.server_engine=vllm, or leave it out"
            names, when = ("tensor_parallel", "vllm"), "where no vLLM of this run samples"
            check_unread(self, names, when, where="engine", do=do)
        if has_vllm_servers:
            self.check_servable()

    def check_servable(self) -> None:
        """Check that a policy server can have vLLM's arguments. Raises: SettingsError: one quantizes the weights."""
        quantization = self.vllm.get("quantization")
        must, do = "have no quantization for a policy server, which takes weights as they are trained", "leave it out"
        SettingsError.unless(quantization is None, "engine.vllm", must, quantization, where="engine", do=do)


class EnvSettings(Settings):
    """One env of the mixture."""

    id: str
    """Id, such as `math/arithmetic-v0`, or import path, such as `my_env.py:MyEnv`; in Python also the class itself."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the env."""
    servers: tuple[str, ...] = ()
    """Addresses of servers that have the env, such as `http://127.0.0.1:8700` (see `envgym serve`), which share the
    episodes; none: it is made in this process."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the groups in training, relative to the other envs."""
    name: str | None = None
    """Names it in metrics and reports; the default is the id."""
    wrappers: tuple[Choice, ...] = ()
    """Wrappers around it, the innermost first."""
    parties: Mapping[str, Choice] = Field(default_factory=dict)
    """Who takes part beside the agent: the env's name for the party, such as `user` -> what plays it."""

    @field_validator("id", mode="before")
    @classmethod
    def _read_class(cls, value: object) -> object:
        return id_of(value) if callable(value) else value

    @property
    def label(self) -> str:
        """The name in metrics, reports and task statistics."""
        return self.name or self.id

    def make(self) -> "Env[Any]":  # every env has its own state type
        """Make a fresh env. Raises: UnknownName, SettingsError, InvalidInput: one of its settings does not hold."""
        return self.maker()()

    def maker(self, servers: tuple[str, ...] = ()) -> "Callable[[], Env[Any]]":  # as `make`
        """Return the maker of fresh envs, always of the code as it is now: a run keeps it while its author edits files.

        Args:
            servers: addresses of servers that have the env, unless the settings name some.

        Raises: UnknownName, SettingsError, InvalidInput: no such env, wrapper or party.
        """
        parties = {role: PARTY.maker(choice) for role, choice in self.parties.items()}
        servers = self.servers or servers
        make_env = maker(remote_id(servers, self.id) if servers else self.id)
        wrappers = [WRAPPER.maker(choice) for choice in self.wrappers]

        def make() -> "Env[Any]":
            options = {"parties": {role: make_party() for role, make_party in parties.items()}} if parties else {}
            env = make_env(**self.settings, **options)
            for wrap in wrappers:
                env = wrap(env)  # type: ignore[assignment]  # wrappers forward the whole contract
            return env

        return make


class SamplingSettings(Settings):
    """How the policy samples."""

    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy. Training takes log-probs at the same temperature, which must be above 0."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the most probable tokens of this mass. Without an exact gradient: evaluation only."""
    top_k: int = Field(default=0, ge=0)
    """Sample from so many tokens, the most probable; 0: from all. Without an exact gradient: evaluation only."""

    @property
    def sampling(self) -> Sampling:
        """How turns are sampled; the agent says how long they may be."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


class RolloutSamplingSettings(SamplingSettings):
    """How a policy samples what it learns from."""

    top_logprobs: int = Field(default=0, ge=0)
    """Record so many of the most probable tokens beside each sampled one; 0: none. `transformers`: any number, `vllm`
    up to 20, endpoints none."""

    @property
    def sampling(self) -> Sampling:
        return replace(super().sampling, top_logprobs=self.top_logprobs)


class EvaluationSettings(SamplingSettings):
    """Evaluation on held-out tasks: the same tasks every time."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    tasks: int = Field(default=100, ge=1)
    """Distinct tasks per env: the first of the split, so that equal numbers are equal tasks."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task."""
    split: Split = Split.TEST
    """The split that the tasks are from."""
    success_at: float = 1.0
    """An episode succeeds when its reward is at least this."""
    max_invalid_rate: float = Field(default=0.5, ge=0, le=1)
    """An evaluation by itself stops when a larger share of its episodes is invalid. Training has a limit of its own; an
    evaluation above this one is none of `run.keep_best`."""
    search: Choice = Choice(name="chain")
    """How an episode is found: `chain` plays it, other searches choose it among several."""
    metrics: tuple[Choice, ...] = ()
    """What is measured of the episodes: `maj_at_k`, `iqm`, `cost` and others, or metrics of your own."""
    every: int = Field(default=0, ge=0)
    """In training: steps between evaluations; 0 evaluates only before and after."""
    tasks_during: int = Field(default=100, ge=1)
    """In training: the first so many of the tasks in between."""


class EvalSettings(Settings):
    """A whole evaluation."""

    run: RunSettings = RunSettings(name="eval")
    """Name, directory and seed of the evaluation."""
    model: ModelSettings = ModelSettings()
    """The model that is evaluated."""
    engine: EngineSettings = EngineSettings()
    """What samples, and on what device."""
    agent: AgentSettings = AgentSettings()
    """How the model acts in the environments."""
    envs: tuple[EnvSettings, ...] = Field(min_length=1)
    """The environments."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Tasks, sampling and metrics."""

    @model_validator(mode="after")
    def _check_engine(self) -> "EvalSettings":
        self.engine.check_uses_vllm()
        check_unread(self.engine, ("colocate",), "in an evaluation", where="engine", do="leave it out: nothing learns")
        return self
