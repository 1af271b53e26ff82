"""What a driver tells an agent (events), and what an agent asks of its driver (requests)."""

from dataclasses import dataclass

from envgym.agents.protocols import GenerateRequest, Generation
from envgym.core.endings import Ending
from envgym.core.messages import Action
from envgym.records import ResetRecord, StepResult


@dataclass(frozen=True, slots=True)
class Started:
    """The env was reset."""

    record: ResetRecord
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Generated:
    """The policy answered a `Generate`."""

    generation: Generation
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stepped:
    """The env answered a `StepEnv`."""

    result: StepResult
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for did not come: the episode ends here."""

    ending: Ending
    reason: str
    seconds: float = 0.0


Event = Started | Generated | Stepped | Failed


@dataclass(frozen=True, slots=True)
class Generate:
    """Ask the policy for a turn."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class StepEnv:
    """Let the env answer an action."""

    action: Action


@dataclass(frozen=True, slots=True)
class Finished:
    """The episode is over; `AgentState.path` is its leaf."""

    ending: Ending
    error: str | None = None


Request = Generate | StepEnv | Finished
