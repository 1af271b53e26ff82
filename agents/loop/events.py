"""Events, which a driver feeds to an agent, and requests, which the agent returns to its driver."""

from typing import NamedTuple

from envgym.agents.protocols import GenerateRequest, Generation
from envgym.core.messages import Action
from envgym.core.turns import Ending
from envgym.records import ResetRecord, StepResult


class ResetEvent(NamedTuple):
    """The env was reset."""

    record: ResetRecord
    seconds: float = 0.0


class GenerationEvent(NamedTuple):
    """The policy answered a `Generate`."""

    generation: Generation
    seconds: float = 0.0


class StepEvent(NamedTuple):
    """The env answered a `StepEnv`."""

    result: StepResult
    seconds: float = 0.0


class FailureEvent(NamedTuple):
    """A request could not be answered: the episode ends here."""

    ending: Ending
    reason: str
    seconds: float = 0.0


Event = ResetEvent | GenerationEvent | StepEvent | FailureEvent


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
