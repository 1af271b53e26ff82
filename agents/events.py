"""What a driver tells an agent (events), and what an agent asks of its driver (requests).

Both are generic in what a policy is asked and what it returns: tokens (`GenerateRequest`, `Generation`) or messages.
"""

from typing import Generic, NamedTuple, TypeVar

from envgym.core.endings import Ending
from envgym.core.messages import Action
from envgym.records import ResetRecord, StepResult

PolicyRequestT = TypeVar("PolicyRequestT")
PolicyReplyT = TypeVar("PolicyReplyT")


class Started(NamedTuple):
    """The env was reset."""

    record: ResetRecord
    seconds: float = 0.0


class Generated(NamedTuple, Generic[PolicyReplyT]):
    """The policy answered a `Generate`."""

    generation: PolicyReplyT
    seconds: float = 0.0


class Stepped(NamedTuple):
    """The env answered a `StepEnv`."""

    result: StepResult
    seconds: float = 0.0


class Failed(NamedTuple):
    """A request could not be answered: the episode ends here."""

    ending: Ending
    reason: str
    seconds: float = 0.0


Event = Started | Generated[PolicyReplyT] | Stepped | Failed


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
