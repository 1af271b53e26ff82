"""The processes that a run starts beside its own."""

from typing import Literal

from pydantic import Field, model_validator

from envgym.config.settings import Settings, check_unread
from envgym.errors import SettingsError, sentence


class RaySettings(Settings):
    """The cluster of the launcher `ray`, and what each process takes of it; all nodes must see the run directory."""

    address: str = "auto"
    """`auto`: the cluster that this machine belongs to, or `RAY_ADDRESS`; HOST:PORT of its head; `local` starts one on
    this machine for as long as the run goes on."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """`PACK`: on as few nodes as possible; `SPREAD`: on as many."""
    learner_cpus: float = Field(default=1.0, gt=0)
    """CPUs of a learner rank, also of the run's own process."""
    learner_gpus: float | None = Field(default=None, ge=0)
    """GPUs of a learner rank; null: 1 where `engine.device` is CUDA, else 0."""
    server_cpus: float = Field(default=1.0, gt=0)
    """CPUs of a policy server."""
    server_gpus: float | None = Field(default=None, ge=0)
    """GPUs of a policy server; null: `engine.tensor_parallel` where `engine.device` is CUDA, else 0."""
    env_server_cpus: float = Field(default=1.0, gt=0)
    """CPUs of an environment server."""
    env_server_gpus: float = Field(default=0.0, ge=0)
    """GPUs of an environment server."""
    worker_cpus: float = Field(default=1.0, gt=0)
    """CPUs of a rollout worker."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds within which the cluster must answer and place all processes."""
    clock_tolerance_s: float = Field(default=5.0, ge=0)
    """Seconds by which the clocks of nodes may differ, as logs of all processes are joined by time."""


class LaunchSettings(Settings):
    """Processes that a run starts beside its own, watches and ends: a server that dies is started again; where another
    process dies, the run ends and can be resumed."""

    launcher: Literal["local", "ray", "static"] = "local"
    """`local` starts them on this machine, `ray` on the nodes of a Ray cluster. `static` starts none, and sees that as
    many addresses are given (`servers` of the envs and of `engine.backend`); its learner ranks are those of
    torchrun."""
    ray: RaySettings = RaySettings()
    """The cluster, for the launcher `ray`."""
    learners: int = Field(default=1, ge=1)
    """Processes that learn together, this one among them, each with a shard of the model; under torchrun as many as it
    has started."""
    servers: int = Field(default=0, ge=0)
    """Policy servers, which sample with a copy of the weights each; 0: the policy samples in this process."""
    server_engine: Literal["transformers", "vllm"] = "transformers"
    """What the policy servers sample with; numbers of `transformers` are those of a run without servers."""
    transport: Literal["files", "ipc", "nccl", "gloo"] = "files"
    """How new weights get to the policy servers, as `transport` of the backend `policy_servers`."""
    env_servers: int = Field(default=0, ge=0)
    """Environment servers, which share the episodes of the envs that name no servers; 0: envs live in this process."""
    rollout_workers: int = Field(default=0, ge=0)
    """Processes that play the episodes of the train steps, by whole groups; they need policy servers. 0: the run's
    process plays them."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds within which every process must be ready."""
    rank_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that learner ranks wait for each other in the middle of a train step."""
    restarts: int = Field(default=3, ge=0)
    """Times within ten minutes that each server is started again after it died; then the run ends."""
    health_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds within which a server must say that it is well; one that does not is killed and started again."""

    @model_validator(mode="after")
    def _check_used(self) -> "LaunchSettings":
        """Refuse what only processes that this run starts would do."""
        starts, is_by_ray = self.launcher != "static", self.launcher == "ray"
        if self.rollout_workers and not starts:
            must, do = "be 0 with the launcher static", "set launch.launcher to local or ray, which start the workers"
            raise ValueError(sentence("launch.rollout_workers", must, self.rollout_workers, where="launch", do=do))
        if is_by_ray and self.servers and self.transport == "ipc":
            must, do = "be another with the launcher ray", "use files or nccl: servers may be elsewhere"
            raise ValueError(sentence("launch.transport", must, "ipc", where="launch", do=do))
        do = "set launch.servers (--servers 1), or name the way in engine.backend for servers of your own"
        if not (starts and self.servers):
            names, when = ("server_engine", "transport"), "where the run starts no policy server"
            check_unread(self, names, when, where="launch", do=do)
        if not (starts and self.servers + self.env_servers + self.rollout_workers):
            do = "leave it out, or set launch.servers or launch.env_servers: only these are started again"
            names, when = ("restarts", "health_timeout_s"), "where the run starts no server"
            check_unread(self, names, when, where="launch", do=do)
        if not is_by_ray:
            do = "leave it out, or set launch.launcher=ray (--launcher ray)"
            when = "with another launcher than ray"
            check_unread(self.ray, RaySettings.model_fields, when, where="launch.ray", do=do)
        return self

    def check_transport(self, *, gpus_each: int) -> None:
        """Check that weights reach servers of so many GPUs each. Raises: SettingsError: `ipc` reaches only one GPU."""
        must, do = "be files or nccl with engine.tensor_parallel on GPUs", "set launch.transport=files"
        reaches = gpus_each == 1 or self.transport != "ipc"
        SettingsError.unless(reaches, "launch.transport", must, self.transport, where="launch", do=do)

    @property
    def num_started(self) -> int:
        """How many processes are started."""
        num_servers = self.servers + self.env_servers + self.rollout_workers
        return self.learners - 1 + num_servers if self.launcher != "static" else 0
