"""The three ways to write an environment, each in at most 15 lines between its marks; the guide shows this file."""

import numpy as np

from envgym import Action, Env, Reply, Task
from envgym.authoring import GeneratedTasks, RubricEnv, TaskDraft, ToolObjectEnv, from_object, from_rubric
from envgym.parsing import tool_call_action
from envgym.verifiers import Numeric


# [class]
def draw_number(generator: np.random.Generator) -> TaskDraft:
    number = int(generator.integers(2, 1000))
    return TaskDraft(prompt=f"Halve {number}, rounding down; then that, and so on to 1.", payload={"number": number})


class Halving(Env[int]):
    tasks = GeneratedTasks(draw_number, name="halving")

    def begin(self, task: Task) -> str:
        self.state = int(str(task.payload["number"]))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        self.state //= 2
        is_right, is_last = action.content.strip() == str(self.state), self.state <= 1
        return Reply(observation="Go on.", reward=float(is_right and is_last), terminated=is_last or not is_right)


# [class]


# [object]
def draw_code(generator: np.random.Generator) -> TaskDraft:
    return TaskDraft(prompt="Open the safe.", payload={"code": int(generator.integers(1000))})


class Safe:
    def reset(self, code: int) -> str:
        self.code, self.is_over = code, False
        return "Open the safe: its code lies in 0 to 999."

    def turn(self, to: int) -> str:
        """Turn the dial to a number."""
        self.is_over = to == self.code
        return "It opens." if self.is_over else "Higher." if to < self.code else "Lower."

    def score(self) -> float:
        return float(self.is_over)


def safe(max_turns: int | None = None) -> ToolObjectEnv[Safe]:
    return from_object(Safe, GeneratedTasks(draw_code, name="safe"), max_turns=max_turns)


# [object]


# [rubric]
def draw_product(generator: np.random.Generator) -> TaskDraft:
    a, b = map(int, generator.integers(2, 100, size=2))
    return TaskDraft(prompt=f"{a} * {b}?", payload={"factors": [a, b], "answer": a * b})


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def solve(task: Task) -> list[str]:
    a, b = map(int, task.payload["factors"])  # type: ignore[arg-type]  # as drawn
    return [tool_call_action("multiply", a=a, b=b), str(a * b)]


def products() -> RubricEnv:
    return from_rubric(GeneratedTasks(draw_product, name="products"), Numeric(), tools=[multiply], solve=solve)


# [rubric]
