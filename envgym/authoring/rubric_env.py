"""An env from tasks and a rubric: one answer, with or without tools before it."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from envgym.authoring.sources import TaskDraft, as_source
from envgym.core.messages import Action
from envgym.core.tasks import Task, TaskSource
from envgym.env import Env
from envgym.party import Party
from envgym.records import Reply
from envgym.rubric import Rubric, rubric_of
from envgym.tools import Tool, tools_of
from envgym.verifiers.base import Verifier, key_of


class RubricEnv(Env[None]):
    """Ask, let the agent use its tools, score the first message that calls none."""

    rubric: Rubric | Verifier
    """What scores the final answer; a single verifier is a rubric with the one component `answer`."""
    functions: Sequence[Callable[..., object]] = ()
    """Stateless tools, besides the methods marked with `@tool`."""

    def __init__(
        self,
        *,
        tasks: TaskSource | Sequence[Task | TaskDraft] | None = None,
        rubric: Rubric | Verifier | None = None,
        functions: Sequence[Callable[..., object]] | None = None,
        solve: Callable[[Task], str] | None = None,
        system_prompt: str | None = None,
        chance_score: float | None = None,
        max_turns: int | None = None,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare an env; what is None is what the class declares. `solve` is its oracle: task -> right answer.

        Raises: InvalidInput: a function that cannot be a tool, or two of one name.
        """
        super().__init__(max_turns=max_turns, parties=parties, render_mode=render_mode)
        if tasks is not None:
            self.tasks = as_source(tasks)
        if functions is not None:
            self.functions = tuple(functions)
        if system_prompt is not None:
            self.system_prompt = system_prompt
        if chance_score is not None:
            self.chance_score = chance_score
        self._solve = solve
        self._rubric = rubric_of(self.rubric if rubric is None else rubric)
        self.blocking = self.blocking or self._rubric.blocking
        self.toolset()

    def begin(self, task: Task) -> str:
        """Ask the task's question."""
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Score the final answer."""
        return Reply(reward=self._rubric(action.content, self.task), terminated=True)

    def toolset(self) -> Mapping[str, Tool]:
        """Return the functions and the marked methods."""
        functions = tools_of(*self.functions)
        methods = super().toolset()
        return MappingProxyType({**functions, **methods}) if functions and methods else functions or methods

    def oracle(self) -> str:
        """Return the right answer; without `solve`, the payload field `answer`."""
        return str(key_of(self.task, "answer")) if self._solve is None else self._solve(self.task)


def from_rubric(
    tasks: TaskSource | Sequence[Task | TaskDraft],
    rubric: Rubric | Verifier,
    *,
    tools: Sequence[Callable[..., object]] = (),
    solve: Callable[[Task], str] | None = None,
    system_prompt: str = "",
    chance_score: float = 0.0,
    max_turns: int | None = None,
) -> RubricEnv:
    """Return an env that asks `tasks`, offers `tools` (plain functions), and scores the final answer by `rubric`.

    Raises: InvalidInput: a function that cannot be a tool, or two of one name.
    """
    return RubricEnv(
        tasks=tasks,
        rubric=rubric,
        functions=tools,
        solve=solve,
        system_prompt=system_prompt,
        chance_score=chance_score,
        max_turns=max_turns,
    )
