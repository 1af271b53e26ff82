"""Arithmetic in expressions and in words, with a calculator: `math/arithmetic-v0`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft
from envgym.authoring.sources import step_metadata
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.math._calculator import calculate, show
from envgym.envs.math._expressions import canonical, draw_expression, evaluate, num_operations, solution_steps, write
from envgym.envs.math._stories import draw_story
from envgym.errors import InvalidInput, check_known
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.rubric import Rubric
from envgym.tools import Tool, tool
from envgym.verifiers.extract import Take
from envgym.verifiers.numeric import Numeric
from envgym.verifiers.pattern import Pattern

LEVELS = range(1, 6)
DIGITS = range(1, 7)
KINDS = ("expression", "word")
CHANCE, CHANCE_ONE_DIGIT = 0.025, 0.17
"""What the best constant answer earns at most, at any level and kind: with two digits and more, and with one."""
NUMBER_ALONE = r"-?\d+"
"""The form that `format_weight` pays for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticState:
    """What an episode has changed so far."""

    calculated: str | None = None
    """The calculator's last result."""


class Arithmetic(Env[ArithmeticState]):
    """One problem; the agent may calculate, then gives the answer as a message, which ends the episode."""

    system_prompt = "Answer with one number."

    def __init__(
        self,
        *,
        level: int = 2,
        kinds: str | Sequence[str] = KINDS,
        digits: int = 2,
        calculator: bool = True,
        format_weight: float = 0.0,
        take: str = "only",
        max_turns: int | None = 6,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the problems.

        Args:
            level: Number of operations, 1 to 5; parentheses and division from 3 on.
            kinds: `expression`, `word` or both.
            digits: Digits of the operands, 1 to 6; factors and divisors are 2 to 9.
            calculator: Whether the agent has the tool.
            format_weight: Share of the reward, in [0, 1), for a final message that is nothing but a number.
            take: Which of several candidate answers counts: `only` (they must all be right) or `last`.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range. UnknownName: a kind that does not exist.
        """
        super().__init__(max_turns=max_turns, **options)
        _check_range("level", level, LEVELS)
        _check_range("digits", digits, DIGITS)
        self.kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in self.kinds or ("",):
            check_known("kind", kind, KINDS, where="math/arithmetic-v0")
        check_known("take", take, tuple(Take), where="math/arithmetic-v0")
        if not 0.0 <= format_weight < 1.0:
            do = "pass e.g. 0.1, or 0 for none"
            raise InvalidInput.of("format_weight", "lie in [0, 1)", format_weight, where="math/arithmetic-v0", do=do)
        self.level, self.digits, self.has_calculator = level, digits, calculator
        constant = CHANCE_ONE_DIGIT if digits == 1 else CHANCE
        self.chance_score = constant * (1 - format_weight) + format_weight
        numeric = Numeric(take=Take(take))
        self.rubric = Rubric(
            [
                (numeric, 1 - format_weight, "answer"),
                (Pattern(pattern=NUMBER_ALONE, cpu_s=None), format_weight, "format"),
            ]
            if format_weight
            else [(numeric, 1.0, "answer")]
        )
        self.tasks = GeneratedTasks(self._draw, name="math/arithmetic", seed=0)

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        kind = self.kinds[rng.integers(len(self.kinds))]
        if kind == "word":
            story = draw_story(rng, self.level, self.digits)
            prompt, expression = story.text, story.expression
        else:
            expression = draw_expression(rng, self.level, self.digits)
            prompt = f"Compute {write(expression)}."
        return TaskDraft(
            prompt=prompt,
            payload={"expression": canonical(expression), "answer": show(evaluate(expression))},
            metadata={
                "kind": kind,
                "level": self.level,
                "operations": num_operations(expression),
                "expression": write(expression),
                **step_metadata(solution_steps(expression)),
            },
        )

    def begin(self, task: Task) -> str:
        self.state = ArithmeticState()
        return task.prompt

    @tool
    def calculator(self, expression: str) -> str:
        """Compute an arithmetic expression exactly.

        Args:
            expression: Numbers with + - * / and parentheses.
        """
        result = calculate(expression)
        self.state = replace(self.state, calculated=result)
        return result

    def toolset(self) -> Mapping[str, Tool]:
        """Offer the calculator, unless the env was made without it."""
        return super().toolset() if self.has_calculator else {}

    def respond(self, action: Action) -> Reply:
        return Reply(reward=self.rubric(action.content, self.task), terminated=True)

    def oracle(self) -> str:
        """Calculate the whole expression, then answer what the calculator said."""
        answer = str(self.task.payload["answer"])
        if self.has_calculator and self.state.calculated != answer:
            return tool_call_action("calculator", expression=self.task.metadata["expression"])
        return Action(answer)

    fork_state = share_state


def _check_range(name: str, value: int, allowed: range) -> None:
    must, do = f"be {allowed[0]} to {allowed[-1]}", f"pass e.g. {name}={allowed[1]}"
    InvalidInput.unless(value in allowed, name, must, value, where="math/arithmetic-v0", do=do)
