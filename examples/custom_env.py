"""The three ways to write an environment, each in 15 lines or fewer. Run with `python examples/custom_env.py`."""

import itertools

from envgym import Action, Env, Reply, Task
from envgym.authoring import ListTasks, RubricEnv, TaskDraft, ToolObjectEnv, from_object, from_rubric
from envgym.conformance import CheckStatus, check_env_conformance
from envgym.parsing import tool_call_action
from envgym.verifiers import Numeric


# 1. A class: what happens at the beginning, and how a message is answered.
class CountDown(Env[int]):
    """Count down to 1, one number per message; each right number pays its share."""

    tasks = ListTasks([TaskDraft(prompt=f"Count down from {n} to 1.", payload={"start": n}) for n in range(3, 60)])
    chance_score = 0.01

    def begin(self, task: Task) -> str:
        self.state = self.start = int(str(task.payload["start"]))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        is_right = action.strip() == str(self.state)
        self.state -= 1
        return Reply(observation="Next.", reward=is_right / self.start, terminated=not is_right or self.state == 0)

    def oracle(self) -> str:
        return str(self.state)


# 2. An object whose public methods are the tools; the fields of a task's payload are the arguments of `reset`.
class Safe:
    """A safe that says how many digits are right."""

    def reset(self, code: str) -> str:
        self.code, self.is_over = code, False
        return "Open the safe. Its code has 3 digits."

    def enter(self, digits: str) -> str:
        """Enter 3 digits."""
        self.is_over = digits == self.code
        return f"Right: {sum(a == b for a, b in zip(digits, self.code, strict=False))} of 3."

    def score(self) -> float:
        return float(self.is_over)

    def oracle(self) -> str:
        return f'<tool_call>{{"name": "enter", "arguments": {{"digits": "{self.code}"}}}}</tool_call>'


CODES = ListTasks([TaskDraft(prompt="", payload={"code": f"{number:03}"}) for number in range(1000)])


def make_safe() -> ToolObjectEnv[Safe]:
    """Make the second environment."""
    return from_object(Safe, CODES, max_turns=20, chance_score=20 / 1000)


# 3. Tasks and a rubric, here with a plain function as a tool.
def letter_number(letter: str) -> int:
    """Return the place of a letter in the alphabet, 1 to 26."""
    return "abcdefghijklmnopqrstuvwxyz".find(letter.lower()) + 1


SUMS = ListTasks(
    [
        TaskDraft(
            prompt=f"A = 1, B = 2 and so on. What is {a} + {b}?",
            payload={"letters": a + b, "answer": letter_number(a) + letter_number(b)},
        )
        for a, b in itertools.combinations("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 2)
    ]
)


def solve_sum(task: Task) -> list[str]:
    """Look both letters up, then add."""
    letters = str(task.payload["letters"])
    calls = [tool_call_action("letter_number", letter=letter) for letter in letters]
    return [*calls, str(task.payload["answer"])]


def make_sums() -> RubricEnv:
    """Make the third environment."""
    return from_rubric(SUMS, Numeric(), tools=[letter_number], solve=solve_sum, chance_score=0.05, max_turns=4)


if __name__ == "__main__":
    for make in (CountDown, make_safe, make_sums):
        checks = check_env_conformance(make, num_tasks=5)
        print(make.__name__, *sorted(check.name for check in checks if check.status is CheckStatus.FAIL), sep="\n  ")
