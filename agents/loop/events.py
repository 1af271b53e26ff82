"""Events, which a driver feeds to an agent, and requests, which the agent returns to its driver.

Both are generic in the request to a policy and its reply: of tokens (`GenerateRequest`, `Generation`) or of messages.
"""

from typing import Generic, NamedTuple, TypeVar

from envgym.core.messages import Action
from envgym.core.turns import Ending
from envgym.records import ResetRecord, StepResult

PolicyRequestT = TypeVar("PolicyRequestT")
PolicyReplyT = TypeVar("PolicyReplyT")


class ResetEvent(NamedTuple):
    """The env was reset."""

    record: ResetRecord
    seconds: float = 0.0


class GenerationEvent(NamedTuple, Generic[PolicyReplyT]):
    """The policy answered a `Generate`."""

    generation: PolicyReplyT
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


Event = ResetEvent | GenerationEvent[PolicyReplyT] | StepEvent | FailureEvent


class Generate(NamedTuple, Generic[PolicyRequestT]):
    """Ask the policy for a turn."""

    request: PolicyRequestT


class StepEnv(NamedTuple):
    """Let the env answer an action."""

    action: Action


class Finished(NamedTuple):
    """The episode is over; `AgentState.path` is its leaf."""

    ending: Ending
    error: str | None = None


Request = Generate[PolicyRequestT] | StepEnv | Finished
