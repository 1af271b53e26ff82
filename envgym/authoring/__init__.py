"""Two of the three ways to write an env (the third is a subclass of `envgym.Env`), and supplies of tasks."""

from envgym.authoring.columns import ColumnNames
from envgym.authoring.files import FileTasks
from envgym.authoring.rubric_env import RubricEnv, from_rubric
from envgym.authoring.sources import GeneratedTasks, ListTasks, TaskDraft, check_range
from envgym.authoring.tool_object import ToolObjectEnv, from_object

__all__ = [
    "ColumnNames",
    "FileTasks",
    "GeneratedTasks",
    "ListTasks",
    "RubricEnv",
    "TaskDraft",
    "ToolObjectEnv",
    "check_range",
    "from_object",
    "from_rubric",
]
