"""What wrappers share that play several episodes of their env as one."""

from collections.abc import Sequence
from dataclasses import replace

from envgym.core.messages import Message, Observation, Role
from envgym.core.turns import Reward, Scored
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.wrappers.base import reset_record_of


def continued_result(last: StepRecord, reward: Reward, message: str, beginning: ResetResult | None) -> StepResult:
    """Return the last turn of an episode as one that goes on: `message` and the next beginning follow its own text."""
    messages: Sequence[Message] = (*last.observation.messages, Message(role=Role.USER, content=message))
    if beginning is not None:
        messages = (*messages, *reset_record_of(beginning).observation.messages)
    return step_result(replace(last, observation=Observation.of(messages), reward=reward, ending=None))


def scored(reward: Scored, value: float) -> Scored:
    """Return a reward with another value and the same components."""
    return Scored(value=value, components=reward.components)
