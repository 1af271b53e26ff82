"""Makes things go wrong on purpose, repeatably: slow tools, failing tools, dead sandboxes, cut observations."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from envgym.core.messages import Action, Message, Observation, Role, TextPart, ToolCall
from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.forking import copy_generator
from envgym.parsing import parse_action
from envgym.records import ResetResult, StepResult, failed_record, step_result
from envgym.seeds import generator
from envgym.wrappers.base import AnyEnv, Wrapper, record_of

UNAVAILABLE = "The tool did not answer: it is not available at the moment. Try again."
CUT = "\n[cut: the connection broke here]"
_SANDBOX_GONE = (Ending.ERROR_TOOL_INFRA, "injected: the sandbox behind the tools is gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often what goes wrong, per turn."""

    latency_s: float = 0.0
    """Each turn waits a uniform time in [0, latency_s] first."""
    tool_failure: float = 0.0
    """Probability that the tools of a turn are not run and answer that they are not available."""
    infra_failure: float = 0.0
    """Probability that a turn ends the episode with `ERROR_TOOL_INFRA`."""
    truncation: float = 0.0
    """Probability that an observation is cut."""
    kept_chars: int = 200
    """Characters of a message that a cut leaves."""

    def __post_init__(self) -> None:
        for name in ("tool_failure", "infra_failure", "truncation"):
            share, where, do = getattr(self, name), "FaultRates", "pass a probability"
            InvalidInput.unless(0.0 <= share <= 1.0, name, "lie in [0, 1]", share, where=where, do=do)
        sizes, what = (self.latency_s, self.kept_chars), "latency_s and kept_chars"
        InvalidInput.unless(min(sizes) >= 0, what, "be at least 0", sizes, where="FaultRates", do="raise them")


class Faults(Wrapper):
    """Injects faults into an env; what goes wrong depends on `seed`, the reset's seed, the task and the turn only."""

    def __init__(
        self, env: AnyEnv, rates: FaultRates, *, seed: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Wrap `env`; `sleep` waits for the latency."""
        super().__init__(env)
        self.rates = rates
        self.seed = int(seed)
        self.sleep = sleep
        self._generator = generator("faults", self.seed)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        result = super().reset(seed=seed, options=options)
        self._generator = generator("faults", self.seed, "none" if seed is None else int(seed), self.task.key)
        return result

    def fork(self) -> Self:
        """Return a copy to which the same things happen for the same actions."""
        twin = super().fork()
        twin._generator = copy_generator(self._generator)
        return twin

    def on_step(self, action: str) -> StepResult:
        """Draw what goes wrong, always the same number of draws, then play the turn."""
        rates = self.rates
        latency, infra, tool, cut = self._generator.random(4)
        if rates.latency_s:
            self.sleep(latency * rates.latency_s)
        parsed = action if isinstance(action, Action) else parse_action(action)
        if infra < rates.infra_failure:
            return step_result(failed_record(self._turn, parsed, *_SANDBOX_GONE, tool_calls=len(parsed.tool_calls)))
        is_down = tool < rates.tool_failure and bool(parsed.tool_calls)
        result = _without_tools(self.env, parsed) if is_down else self.env.step(parsed)
        if cut < rates.truncation:
            record = record_of(result)
            result = step_result(replace(record, observation=_cut(record.observation, rates.kept_chars)))
        return result


def _without_tools(env: AnyEnv, action: Action) -> StepResult:
    """Play the turn with every call unanswered: the env counts it and shows one message per call."""
    calls = action.tool_calls
    refused = (*[UNAVAILABLE] * len(calls), *action.malformed)
    muted = Action(str(action), content=action.content, thinking=action.thinking, malformed=refused)
    record = record_of(env.step(muted))
    open_calls = list(calls)
    messages = [_answering(message, open_calls) for message in record.observation.messages]
    observation = Observation(str(record.observation), messages)
    return step_result(replace(record, action=action, observation=observation, tool_calls=len(calls)))


def _answering(message: Message, open_calls: list[ToolCall]) -> Message:
    if message.role is not Role.TOOL or message.content != UNAVAILABLE or not open_calls:
        return message
    call = open_calls.pop(0)
    return replace(message, name=call.name, tool_call_id=call.id)


def _cut(observation: Observation, kept_chars: int) -> Observation:
    messages = [
        message
        if len(message.content) <= kept_chars
        else replace(message, parts=(TextPart(message.content[:kept_chars] + CUT),))
        for message in observation.messages
    ]
    return Observation.of(messages)
