"""Where the processes of a run serve: what launching hands to the code that builds the run."""

from dataclasses import dataclass

from envgym.agents.policies.serving.backend import PolicyEndpoints
from envgym.agents.settings import EngineSettings
from envgym.trainer.launch.workers.addresses import WorkerAddresses
from envgym.trainer.learner.ranks.meeting import Meeting


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The processes beside a run, and the place of the run's own process among them."""

    env_servers: tuple[str, ...] = ()
    """Addresses of the servers of the envs that name none; empty: those envs are made in this process."""
    policy: PolicyEndpoints | None = None
    """The policy servers; None: the run samples as `engine.backend` says."""
    meeting: Meeting | None = None
    """Where the learner ranks meet; None: this process learns alone."""
    workers: WorkerAddresses | None = None
    """The rollout workers; None: the run's process plays the episodes."""
    device: str | None = None
    """Device that a cluster has given to this process; None: that of the settings."""
    threads: int | None = None
    """CPU threads of this process beside other ranks or on a cluster; None: those of the settings."""

    def engine(self, settings: EngineSettings) -> EngineSettings:
        """The engine section with the device and the threads of this process."""
        place = {"device": self.device, "threads": self.threads}
        return settings.model_copy(update={key: value for key, value in place.items() if value is not None})
