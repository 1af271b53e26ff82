"""The backend `policy_servers`: what its settings say, and what the servers must serve."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from envgym.agents.protocols import Policy
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.errors import InvalidInput
from envgym.settings import Settings

TOKEN_VARIABLE = "ENVGYM_POLICY_TOKEN"
"""Environment variable with the token of `envgym policy-server`."""


class PolicyServers(Settings):
    """Samples from servers that `envgym policy-server` runs, to which training brings new weights, or vLLM."""

    servers: tuple[str, ...] = Field(min_length=1)
    """Their addresses, such as `http://10.0.0.2:8001`."""
    token_env: str | None = None
    """Environment variable that holds their token; null: `ENVGYM_POLICY_TOKEN`, where it is set."""
    transport: Literal["files", "ipc", "nccl", "gloo"] = "files"
    """How new weights get there: as files, in memory that servers on this machine share with the run (on one GPU: CUDA
    IPC), or over a process group with each server, by NCCL between GPUs or gloo."""
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
    """Longest wait of a request, or a weight update, for a server to join or return where none is up."""
    servers_file: str | None = None
    """List by which servers join and leave while the run lasts; null: those of `servers` stay. A run sets its own."""

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy:
        """Connect to the servers; arguments as for `PolicyBackend`."""
        from envgym.agents.models.loading import prepare_device  # torch is heavy, as what follows
        from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
        from envgym.agents.policies.serving.identity import expected_model
        from envgym.agents.policies.serving.transport import (
            FileTransport,
            GroupTransport,
            SharedTransport,
            WeightTransport,
        )
        from envgym.server_list import ServerKind, WatchedServers

        limits = ClientLimits(
            timeout_s=self.timeout_s,
            update_timeout_s=self.update_timeout_s,
            retries=self.retries,
            max_concurrency=self.max_concurrency,
            wait_s=self.wait_s,
        )
        expected, token = expected_model(model), self._token()
        if self.transport == "files":
            transport: WeightTransport = FileTransport(Path(self.weights) if self.weights else None, keep=self.keep)
        else:
            device = prepare_device(engine.device, engine.threads)
            transport = (
                SharedTransport(device)
                if self.transport == "ipc"
                else GroupTransport(self.transport, device=device, timeout_s=self.update_timeout_s)
            )
        return ServedPolicy(
            self.servers,
            transport=transport,
            expected=expected,
            token=token,
            limits=limits,
            version=model.train_steps,
            servers=None if self.servers_file is None else WatchedServers(Path(self.servers_file), ServerKind.POLICY),
        )

    def _token(self) -> str | None:
        """Return the token. Raises: InvalidInput: the variable that is to hold it is not set."""
        token = os.environ.get(self.token_env or TOKEN_VARIABLE)
        if self.token_env is not None and not token:
            do = "export the servers' token under this name"
            raise InvalidInput.of("environment variable", "hold a token", self.token_env, where="engine.backend", do=do)
        return token
