"""An env from tasks and a rubric: one answer, with or without tools before it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from envgym.authoring.checked_tasks import checked_tasks
from envgym.authoring.openings import opening_messages
from envgym.authoring.sources import TaskDraft, as_source, override_class
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tasks import Task, TaskSource
from envgym.env import Env, NoOracle
from envgym.errors import sentence
from envgym.party import Party
from envgym.records import Reply, ResetRecord, ResetResult, StepRecord, StepResult
from envgym.rubric import Rubric, rubric_of
from envgym.tools import ErrorTypes, Tool, tools_of
from envgym.verifiers.base import Verdict
from envgym.verifiers.functions import RewardFunction


class RubricEnv(Env[None]):
    """Ask, let the agent use its tools, score the first message that calls none."""

    rubric: Rubric | RewardFunction
    """What scores the final answer; a single function is a rubric with the one component `answer`."""
    functions: Sequence[Callable[..., object]] = ()
    """Stateless tools, besides the methods marked with `@tool`."""
    transcript: tuple[Message, ...] = ()
    """What was said since the reset, by the env, the agent and its tools."""
    _checked_tasks: TaskSource | None = None

    def __init__(
        self,
        *,
        tasks: TaskSource | Sequence[Task | TaskDraft] | None = None,
        rubric: Rubric | RewardFunction | None = None,
        functions: Sequence[Callable[..., object]] | None = None,
        solve: Callable[[Task], str | Sequence[str]] | None = None,
        system_prompt: str | None = None,
        chance_score: float | None = None,
        max_turns: int | None = None,
        propagated_errors: ErrorTypes | None = None,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare an env; what is None is what the class declares.

        `solve` is its oracle: task -> the right answer, or the right actions in order, the calls of tools among them.

        Raises: InvalidInput: a function that cannot be a tool, two of one name, or one that cannot be a reward.
        """
        super().__init__(max_turns=max_turns, parties=parties, render_mode=render_mode)
        override_class(
            self,
            tasks=None if tasks is None else as_source(tasks),
            functions=None if functions is None else tuple(functions),
            system_prompt=system_prompt,
            chance_score=chance_score,
            propagated_errors=None if propagated_errors is None else tuple(propagated_errors),
        )
        self._solve = solve
        self._rubric = rubric_of(_declared_rubric(type(self)) if rubric is None else rubric)
        if hasattr(self, "tasks"):
            self._check_keys()
        self.blocking = self.blocking or self._rubric.blocking
        self.toolset()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        self._check_keys()
        result = super().reset(seed=seed, options=options)
        record: ResetRecord = result.info["envgym"]
        self.transcript = record.observation.messages
        first = opening_messages(record.task)[0]
        if first.role is not Role.SYSTEM:
            return result
        system_prompt = "\n\n".join(text for text in (record.system_prompt, first.content) if text)
        return result._replace(info={"envgym": replace(record, system_prompt=system_prompt)})

    def _check_keys(self) -> None:
        """Keep to the tasks whose keys the rubric can read, also where `tasks` was set after the constructor."""
        if self.tasks is not self._checked_tasks:
            self.tasks = self._checked_tasks = checked_tasks(
                self.tasks, [item.verifier for item in self._rubric.criteria]
            )

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        record: StepRecord = result.info["envgym"]
        self.transcript = (*self.transcript, record.action.message, *record.observation.messages)
        return result

    def begin(self, task: Task) -> str:
        self.state = None
        return Observation.of([message for message in opening_messages(task) if message.role is not Role.SYSTEM])

    def respond(self, action: Action) -> Reply:
        transcript = (*self.transcript, action.message)
        return Reply(reward=self._rubric(action.content, self.task, transcript), terminated=True)

    def toolset(self) -> Mapping[str, Tool]:
        functions = tools_of(*self.functions)
        methods = super().toolset()
        return MappingProxyType({**functions, **methods}) if functions and methods else functions or methods

    def oracle(self) -> str:
        """Return the next action of `solve`; without it the payload field `answer`, where there are no tools.

        Raises: NoOracle: neither is there.
        """
        if self._solve is not None:
            solution = self._solve(self.task)
            actions = (solution,) if isinstance(solution, str) else tuple(solution)
            return actions[min(self._turn, len(actions) - 1)]
        if self.toolset() or "answer" not in self.task.payload:
            got, do = "none", "pass solve, or define oracle()"
            raise NoOracle(sentence("right actions", "be known for an oracle", got, where=self.name, do=do))
        answer = self.task.payload["answer"]
        return str(answer[0] if isinstance(answer, list) and answer else answer)


def _declared_rubric(cls: type[RubricEnv]) -> Rubric | RewardFunction:
    """Return the rubric of a class; a function stays one and is not bound to the env, whose copies would share it."""
    declared: Rubric | RewardFunction | staticmethod[..., float | Verdict] = inspect.getattr_static(cls, "rubric")
    return declared.__func__ if isinstance(declared, staticmethod) else declared


def from_rubric(
    tasks: TaskSource | Sequence[Task | TaskDraft],
    rubric: Rubric | RewardFunction,
    *,
    tools: Sequence[Callable[..., object]] = (),
    solve: Callable[[Task], str | Sequence[str]] | None = None,
    system_prompt: str = "",
    chance_score: float = 0.0,
    max_turns: int | None = None,
    propagated_errors: ErrorTypes = (),
) -> RubricEnv:
    """Return an env that asks `tasks`, offers `tools` (plain functions), and scores the final answer by `rubric`.

    `rubric` may be any reward function: of `answer`, `task`, `transcript` and `tool_calls`, as it names them, with a
    number in [0, 1], a bool or a `Verdict` as its result. `solve` gives the right answer to a task, or the right
    actions in order; with tools and without it the env has no oracle.

    Raises: InvalidInput: a function that cannot be a tool, two of one name, or one that cannot be a reward.
    """
    return RubricEnv(
        tasks=tasks,
        rubric=rubric,
        functions=tools,
        solve=solve,
        system_prompt=system_prompt,
        chance_score=chance_score,
        max_turns=max_turns,
        propagated_errors=propagated_errors,
    )
