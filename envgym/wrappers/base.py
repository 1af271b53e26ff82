"""The base of all wrappers (passes everything through, keeps the order of reset and step, forks), and plain text."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self, Union

import gymnasium

from envgym.config.plugins import PluginKind
from envgym.config.tables import KINDS
from envgym.core.signatures import usage
from envgym.core.tasks import Task, TaskSource
from envgym.core.turns import Ending
from envgym.env import Env, ForkCapability
from envgym.errors import InvalidInput, ResetNeeded
from envgym.records import ResetRecord, ResetResult, StepRecord, StepResult, step_result
from envgym.seeds import read_seed

AnyEnv = Union[Env[Any], "Wrapper"]  # every env has its own state type


class Wrapper(gymnasium.Wrapper[str, str, str, str]):
    """Passes everything through; a subclass overrides `on_reset` or `on_step`.

    Whatever a subclass changes during an episode must be immutable (a number, a tuple), or copied in `fork`.
    """

    env: AnyEnv

    def __init__(self, env: AnyEnv) -> None:
        """Wrap `env`. Raises: InvalidInput: it is no envgym env."""
        value: object = env
        if not isinstance(value, Env | Wrapper):
            do = "make it with envgym.make"
            raise InvalidInput.of("env", "be an envgym.Env", value, where=type(self).__name__, do=do)
        super().__init__(env)
        self._is_over = True
        self._turn = 0
        """Index of the turn that is played, from 0."""

    # ---- what a subclass changes -----------------------------------------------------------------------------

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Return the agent's result of a reset."""
        return result

    def on_step(self, action: str) -> StepResult:
        """Play one turn on `self.env`, or instead of it."""
        return self.env.step(action)

    # ---- Gymnasium's contract --------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        if seed is not None:
            seed = read_seed(seed, where=self.name)
        self._is_over, self._turn = True, 0
        result = self.on_reset(self.env.reset(seed=seed, options=options))
        self._is_over = False
        return result

    def step(self, action: str) -> StepResult:
        """Play one turn. Raises: ResetNeeded: no episode is running."""
        if self._is_over:
            got, do = "an episode that is over", "call reset first"
            raise ResetNeeded.of("step", "follow a reset", got, where=self.name, do=do)
        result = self.on_step(action)
        self._is_over, self._turn = result.terminated or result.truncated, self._turn + 1
        return result

    def fork(self) -> Self:
        """Return an independent copy, wrapper and env, that continues from here."""
        twin = copy.copy(self)
        twin.env = self.env.fork()
        return twin

    # ---- the rest of our contract, passed through ------------------------------------------------------------

    @property
    def unwrapped(self) -> Env[Any]:
        return self.env.unwrapped

    @property
    def tasks(self) -> TaskSource:
        return self.unwrapped.tasks

    @property
    def task(self) -> Task:
        return self.env.task

    @property
    def name(self) -> str:
        return self.unwrapped.name

    @property
    def system_prompt(self) -> str:
        return self.unwrapped.system_prompt

    @property
    def blocking(self) -> bool:
        return self.unwrapped.blocking

    @property
    def fork_capability(self) -> ForkCapability:
        return self.unwrapped.fork_capability

    def oracle(self) -> str:
        return self.env.oracle()


WRAPPER: Final[PluginKind[Wrapper]] = KINDS["wrapper"]


def record_of(result: StepResult) -> StepRecord:
    """Return the typed record of a turn."""
    record: StepRecord = result.info["envgym"]
    return record


def reset_record_of(result: ResetResult) -> ResetRecord:
    """Return the typed record of a reset."""
    record: ResetRecord = result.info["envgym"]
    return record


def cut_off(result: StepResult, ending: Ending) -> StepResult:
    """Return the turn with `ending`, where the episode was still going on."""
    record = record_of(result)
    return step_result(replace(record, ending=ending)) if record.ending is None else result


_HOW_TO_CALL = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'


class TextOnly(Wrapper):
    """Shows everything as one plain `str`: instructions, tools and how to call them, and the observation.

    The typed records stay in `info`.
    """

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Put what a chat template would show before the first observation."""
        return ResetResult(opening(reset_record_of(result)), result.info)

    def on_step(self, action: str) -> StepResult:
        result = self.env.step(action)
        return result._replace(observation=str(result.observation))


def opening(record: ResetRecord) -> str:
    """Return instructions, tools and first observation as one text."""
    parts = [record.system_prompt]
    if record.tools:
        tools = [f"- {usage(tool.name, tool.parameters)}: {tool.description}" for tool in record.tools]
        parts.append("\n".join(["Tools:", *tools, f"To call one, write {_HOW_TO_CALL}"]))
    parts.append(str(record.observation))
    return "\n\n".join(part for part in parts if part)
