"""What an env returns: an author's reply, Gymnasium's tuples, and the typed records that lie in `info["envgym"]`."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from envgym.core.frozen import quick_init
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tasks import Task
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.errors import EnvFailure, InfrastructureError, PartyFailure, PolicyFailure, ToolInfraFailure
from envgym.tools import ToolSpec


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an author's `respond` returns."""

    observation: str = ""
    reward: float | Reward = 0.0
    terminated: bool = False


class ResetResult(NamedTuple):
    """What `reset` returns, in Gymnasium's order."""

    observation: str
    info: dict[str, Any]


class StepResult(NamedTuple):
    """What `step` returns, in Gymnasium's order."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRecord:
    """The typed record of a reset."""

    task: Task
    observation: Observation
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    seed: int | None
    plain: Observation | None = None
    """The first observation without the hint that a wrapper has put into `observation`; None: it holds none."""


def first_messages(record: ResetRecord, *standing: str) -> tuple[Message, ...]:
    """Return the first observation after a system message of the standing instructions that are not empty."""
    text = "\n\n".join(part for part in standing if part)
    system = (Message(role=Role.SYSTEM, content=text),) if text else ()
    return (*system, *record.observation.messages)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The typed record of a turn."""

    turn: int
    """Index of the turn, from 0."""
    action: Action
    observation: Observation
    reward: Reward
    ending: Ending | None
    """None while the episode goes on."""
    tool_calls: int
    tool_errors: int
    error: str | None = None
    """For an `ERROR_*` ending: what failed."""


_ENDING_OF_ERROR: tuple[tuple[type[InfrastructureError], Ending], ...] = (
    (ToolInfraFailure, Ending.ERROR_TOOL_INFRA),
    (PartyFailure, Ending.ERROR_PARTY),
    (PolicyFailure, Ending.ERROR_POLICY),
    (EnvFailure, Ending.ERROR_ENV),
)


def ending_of(error: Exception) -> Ending:
    """Return the ending that records `error`; anything unforeseen is a fault of the env."""
    return next((ending for kind, ending in _ENDING_OF_ERROR if isinstance(error, kind)), Ending.ERROR_ENV)


def env_failure(method: str, error: Exception) -> InfrastructureError:
    """Return the failure of infrastructure by which an error of an env's method is recorded; it names the method."""
    if isinstance(error, InfrastructureError):
        return error
    return EnvFailure(f"{method} failed: {type(error).__name__}: {error}")


def failed_record(turn: int, action: Action, cause: Ending, reason: str, *, tool_calls: int = 0) -> StepRecord:
    """Return the record of a turn at which infrastructure failed, and the episode ended."""
    return StepRecord(
        turn=turn,
        action=action,
        observation=Observation(),
        reward=Invalid(cause=cause, reason=reason),
        ending=cause,
        tool_calls=tool_calls,
        tool_errors=0,
        error=reason,
    )


def step_result(record: StepRecord) -> StepResult:
    """Return Gymnasium's tuple for a record."""
    ending = record.ending
    return StepResult(
        record.observation,
        record.reward.value if isinstance(record.reward, Scored) else 0.0,
        ending is Ending.TERMINATED,
        ending is not None and ending is not Ending.TERMINATED,
        {"envgym": record},
    )
