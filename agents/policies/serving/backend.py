"""The backend `policy_servers`: its settings, where its servers are, and what such a server serves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from envgym.agents.protocols import Policy
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.config.settings import Settings
from envgym.errors import InvalidInput, SettingsError

if TYPE_CHECKING:
    from envgym.agents.policies.serving.client import ClientLimits

TOKEN_VARIABLE = "ENVGYM_POLICY_TOKEN"
"""Environment variable with the token of `envgym policy-server`."""


POLICY_SERVERS: Final = "policy_servers"
"""Name of the backend that samples through policy servers."""
Transport = Literal["files", "ipc", "nccl", "gloo"]
_WAITS: Final = 12
"""Times that a group may wait for a server that does nothing, in the longest update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEndpoints:
    """Where the policy servers of a run serve, and how new weights get to them."""

    urls: tuple[str, ...]
    transport: Transport = "files"
    weights: Path | None = None
    """Directory for new weights, which the servers see under the same path; None: a temporary one of this machine."""
    list_file: Path | None = None
    """List by which servers join and leave while the run lasts; None: those of `urls` stay."""
    start_s: float | None = None
    """Seconds that a server which the run starts may take until it serves; None: the run starts none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a policy server serves, and how: the arguments of `envgym policy-server`."""

    model: str
    """Name or directory."""
    adapter: str | None = None
    """Directory of a LoRA adapter, which is merged."""
    tokenizer: str | None = None
    """Name or directory; None: at the model."""
    weights: str | None = None
    """Directory of a run's weights, of which the newest are taken."""
    dtype: str = "float32"
    device: str = "auto"
    """`cpu`, `cuda` or `auto`; with vLLM `auto`, or that for which it was built."""
    threads: int | None = None
    """Of torch; None: its own choice."""
    max_batch: int = 64
    """Requests that are sampled at a time."""
    max_context: int | None = None
    """With vLLM: longest context with its sample; None: all positions of the model."""
    cache_gib: float = 2.0
    """With vLLM: memory for keys and values."""
    tensor_parallel: int = 1
    """With vLLM: devices that the weights are split over."""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    """With vLLM: more arguments of its engine."""
    token: str | None = field(default=None, repr=False)
    """Requests must carry it; None: no request needs one."""


class PolicyServers(Settings):
    """Samples from servers that `envgym policy-server` runs, to which training brings new weights, or vLLM."""

    servers: tuple[str, ...] = ()
    """Their addresses, such as `http://10.0.0.2:8001`; none: the run starts its servers (`launch.servers`)."""
    token_env: str | None = None
    """Environment variable that holds their token; null: `ENVGYM_POLICY_TOKEN`, where it is set."""
    transport: Transport = "files"
    """How new weights get there: as files, in memory that servers on this machine share with the run (on one GPU: CUDA
    IPC), or over a process group with all servers, by NCCL between GPUs or gloo."""
    weights: str | None = None
    """Directory for new weights, which the servers see under the same path; null: a temporary one of this machine."""
    keep: int = Field(default=2, ge=2)
    """Versions of the weights that are kept there."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one answer."""
    update_timeout_s: float = Field(default=600.0, gt=0)
    """Longest weight update."""
    retries: int = Field(default=2, ge=0)
    """Further attempts of a request whose server has gone, on another one where there is one."""
    max_concurrency: int = Field(default=64, ge=1)
    """Most requests of one server at a time; how many it gets follows from its cache pressure."""
    wait_s: float = Field(default=30.0, gt=0)
    """Longest wait of a request, or a weight update, for a server to join or return where none is up; if the run starts
    the servers, `launch.start_timeout_s` unless this is set."""

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy:
        """Connect to the servers; arguments as for `PolicyBackend`. Raises: SettingsError: no server is named."""
        do = "name them, or set launch.servers"
        SettingsError.unless(self.servers, "engine.backend.servers", "name a server", "none", where="engine", do=do)
        return self.connect(model, engine, self.endpoints())

    def endpoints(self) -> PolicyEndpoints:
        weights = Path(self.weights) if self.weights else None
        return PolicyEndpoints(urls=self.servers, transport=self.transport, weights=weights)

    def limits(self, endpoints: PolicyEndpoints) -> "ClientLimits":
        from envgym.agents.policies.serving.client import ClientLimits  # torch is heavy

        wait_s = None if "wait_s" in self.model_fields_set else endpoints.start_s
        return ClientLimits(
            timeout_s=self.timeout_s,
            update_timeout_s=self.update_timeout_s,
            retries=self.retries,
            max_concurrency=self.max_concurrency,
            wait_s=self.wait_s if wait_s is None else wait_s,
        )

    def connect(self, model: ModelSettings, engine: EngineSettings, endpoints: PolicyEndpoints) -> Policy:
        """Connect to servers, with the limits of these settings."""
        from envgym.agents.models.loading import device_type, prepare_device  # torch is heavy, as what follows
        from envgym.agents.policies.serving.client import ServedPolicy
        from envgym.agents.policies.serving.identity import expected_model
        from envgym.agents.policies.weights.transport import (
            FileTransport,
            GroupTransport,
            SharedTransport,
            WeightTransport,
        )
        from envgym.runtime.membership import ServerKind, WatchedServers

        expected, token = expected_model(model.on(device_type(engine.device))), self.token()
        if endpoints.transport == "files":
            transport: WeightTransport = FileTransport(endpoints.weights, keep=self.keep)
        else:
            device = prepare_device(engine.device, engine.threads)
            transport = (
                SharedTransport(device)
                if endpoints.transport == "ipc"
                else GroupTransport(endpoints.transport, device=device, timeout_s=self.update_timeout_s / _WAITS)
            )
        return ServedPolicy(
            endpoints.urls,
            transport=transport,
            expected=expected,
            token=token,
            limits=self.limits(endpoints),
            version=model.train_steps,
            servers=None if endpoints.list_file is None else WatchedServers(endpoints.list_file, ServerKind.POLICY),
        )

    def token(self) -> str | None:
        """Return the token of the servers; None: they have none. Raises: InvalidInput: the variable holds none."""
        token = os.environ.get(self.token_env or TOKEN_VARIABLE)
        if self.token_env is not None and not token:
            do = "export the servers' token under this name"
            raise InvalidInput.of("environment variable", "hold a token", self.token_env, where="engine.backend", do=do)
        return token
