"""What an evaluation is told: a model, an agent, envs, how many tasks, and where to write."""

from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from envgym.agents.agent import AgentSettings
from envgym.agents.catalog import SEARCH
from envgym.agents.models.tiny import TinySettings
from envgym.agents.policies.backends import PolicySettings
from envgym.agents.policies.endpoint import EndpointSettings
from envgym.agents.search import Strategy
from envgym.core.tasks import Split
from envgym.plugins import Choice
from envgym.settings import Settings


class EvalRun(Settings):
    """The evaluation itself."""

    name: str = "eval"
    """Names it in reports."""
    directory: str | None = None
    """Where everything is written; the default is `runs/<name>`."""
    seed: int = 0
    """Every random choice derives from it."""


class EvalModel(Settings):
    """Who is evaluated."""

    name: str = "tiny"
    """`tiny`, `smollm2`, a Hugging Face directory or a hub name; or what an endpoint calls its model."""
    adapter: str | None = None
    """Directory of a LoRA adapter on top of it."""
    endpoint: EndpointSettings | None = None
    """An OpenAI-compatible service that has the model, asked by messages, or with `policy.backend=vllm` by token ids;
    None: it is loaded here."""
    tokenizer: str | None = None
    """Where the tokenizer of a model is that is asked by token ids, as `name`; None: at `name`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Of the matrix products."""
    head_dtype: Literal["same", "float32"] = "same"
    """Of the product that gives the logits."""
    tiny: TinySettings = TinySettings()
    """Shape of the `tiny` model."""
    steps: int = Field(default=0, ge=0)
    """Train steps behind it, where a training run made it."""


class EvalEnv(Settings):
    """One env to evaluate on."""

    id: str
    """Such as `math/arithmetic-v0`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the env."""
    name: str | None = None
    """Names it where there are several; the default is the id."""

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name or self.id


class EvalTasks(Settings):
    """How much is asked, and when it counts as solved."""

    tasks: int = Field(default=100, ge=1)
    """Distinct tasks per env: the first of the split, so that equal numbers are equal tasks."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    split: Split = Split.TEST
    """Which side of the wall the tasks are from."""
    success_at: float = 1.0
    """An episode succeeds when its reward is at least this."""
    max_invalid_rate: float = Field(default=0.5, ge=0, le=1)
    """The evaluation stops when a larger share of its episodes is invalid."""


class EvalSearch(Settings):
    """How an episode is found."""

    model_config = ConfigDict(extra="allow")

    name: str = "chain"
    """`chain` plays it, others choose it among several; the settings of the strategy stand beside its name."""

    @property
    def settings(self) -> dict[str, Any]:
        """The strategy's own settings."""
        return dict(self.model_extra or {})

    def strategy(self) -> Strategy:
        """Build it. Raises: UnknownName, SettingsError: there is none, or it refuses its settings."""
        return SEARCH.build(Choice.model_validate({**self.settings, "name": self.name}))


class Engine(Settings):
    """How it is computed; no result depends on it but through rounding."""

    device: str = "auto"
    """`auto` takes CUDA where there is one."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; the default is torch's own."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes under way at a time."""
    max_batch: int = Field(default=64, ge=1)
    """Requests that the policy samples at a time."""


class EvalSettings(Settings):
    """A whole evaluation."""

    run: EvalRun = EvalRun()
    model: EvalModel = EvalModel()
    agent: AgentSettings = AgentSettings()
    envs: tuple[EvalEnv, ...] = Field(min_length=1)
    evaluation: EvalTasks = EvalTasks()
    search: EvalSearch = EvalSearch()
    engine: Engine = Engine()
    policy: PolicySettings = PolicySettings()

    @property
    def run_directory(self) -> Path:
        """Where the evaluation is written."""
        return Path(self.run.directory or Path("runs") / self.run.name)
