"""What a driver tells an agent (events), and what an agent asks of its driver (requests)."""

from typing import NamedTuple

from envgym.agents.protocols import GenerateRequest, Generation
from envgym.core.endings import Ending
from envgym.core.messages import Action
from envgym.records import ResetRecord, StepResult


class Started(NamedTuple):
    """The env was reset."""

    record: ResetRecord
    seconds: float = 0.0


class Generated(NamedTuple):
    """The policy answered a `Generate`."""

    generation: Generation
    seconds: float = 0.0


class Stepped(NamedTuple):
    """The env answered a `StepEnv`."""

    result: StepResult
    seconds: float = 0.0


class Failed(NamedTuple):
    """What was asked for did not come: the episode ends here."""

    ending: Ending
    reason: str
    seconds: float = 0.0


Event = Started | Generated | Stepped | Failed


class Generate(NamedTuple):
    """Ask the policy for a turn."""

    request: GenerateRequest


class StepEnv(NamedTuple):
    """Let the env answer an action."""

    action: Action


class Finished(NamedTuple):
    """The episode is over; `AgentState.path` is its leaf."""

    ending: Ending
    error: str | None = None


Request = Generate | StepEnv | Finished
