"""Environments in which a policy may compute in Python before it answers, and may answer more than once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from envgym.core.tasks import Task
from envgym.env import Env
from envgym.sandbox import Limits
from envgym.sandbox.notebook import Notebook
from envgym.tools import Tool, tool

MAX_ATTEMPTS = 10
WALL_FACTOR = 4.0
"""Real seconds allowed per CPU second, so that a busy machine does not stop what is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptsState:
    """An episode so far."""

    notebook: Notebook
    num_attempts: int = 0


class AttemptsEnv(Env[AttemptsState]):
    """Keeps the notebook of an episode; who inherits sets both fields, and grades."""

    blocking = True
    has_python: bool
    limits: Limits

    def begin(self, task: Task) -> str:
        self.close()
        self.state = AttemptsState(notebook=Notebook(self.limits))
        return task.prompt

    @tool
    def python(self, code: str) -> str:
        """Run Python code; variables are kept between calls, and the last expression's value is shown.

        Args:
            code: The code.
        """
        return self.state.notebook.run(code).output or "(no output)"

    def toolset(self) -> Mapping[str, Tool]:
        """Offer Python, where the env was made with it."""
        return super().toolset() if self.has_python else {}

    def fork_state(self) -> AttemptsState:
        """Fork the notebook; the rest is immutable."""
        return replace(self.state, notebook=self.state.notebook.fork())

    def close(self) -> None:
        state: AttemptsState | None = getattr(self, "state", None)
        if state is not None:
            state.notebook.close()
        super().close()
