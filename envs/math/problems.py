"""Problems with one answer, of our own or of any data set, graded by math-verify: `math/problems-v0`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from envgym.authoring import ListTasks
from envgym.authoring.checked_tasks import CheckedTasks, checked_tasks
from envgym.authoring.columns import ColumnNames, further_columns
from envgym.authoring.sources import names_of
from envgym.core.messages import Action
from envgym.core.tasks import Split
from envgym.core.turns import Scored
from envgym.envs.attempts import MAX_ATTEMPTS, WALL_FACTOR, AttemptsEnv
from envgym.envs.families import LEVELS, levels_of
from envgym.envs.math._judging import WorkedOut, bare_expression
from envgym.envs.math._problem import FAMILIES, PREAMBLE
from envgym.envs.math._problem_sets import FIELDS, MAX_COUNT, PRESETS, ProblemSelection, ProblemTasks, shipped
from envgym.errors import InvalidInput, check_known, unknown_name
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.sandbox import MIB, Limits
from envgym.verifiers.base import text_keys_of
from envgym.verifiers.extract import Take
from envgym.verifiers.math import Math

TOOLS = ("none", "python")
_WHERE = "math/problems-v0"
_FORM = "End with one message that holds the final answer, worked out and exact, in \\boxed{}."


class Problems(AttemptsEnv):
    """A message without a call is an answer; a right one, or the last that is allowed, ends the episode."""

    def __init__(
        self,
        *,
        data: str | Mapping[str, str] | None = None,
        preset: str | None = None,
        config: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        families: str | Sequence[str] | None = None,
        levels: int | Sequence[int] = LEVELS,
        held_out: str | Sequence[str] = (),
        count: int = 20,
        tools: str = "none",
        attempts: int = 1,
        cpu_s: float = 5.0,
        take: str = "only",
        max_turns: int | None = 8,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose problems and rules.

        Args:
            data: Instead of the shipped problems: a `.jsonl` or `.parquet` file, a mapping from split to file, a
                directory or hub name of `datasets`.
            preset: How it is read: gsm8k, math, math500, aime24, aime25, amc23, minerva, deepscaler, or plain (None),
                which knows the usual columns. Without `data`, the preset's own place on the hub.
            config: Configuration of the data set, where it has several.
            revision: Commit or tag of a hub data set.
            splits: Official split -> train or test; None: the usual names are understood.
            columns: Further columns of the data set: `metadata` has one, a list of them, or `*` (all others); other
                keys are fields of the payload, such as `{subproblems: steps}`. None: all others are metadata.
            families: Of the shipped problems; None: all.
            levels: Of the shipped problems: 1, 2, 3 or several.
            held_out: Families that make up the test split, and are not in the train split.
            count: Shipped problems of each family and level, 1 to 200.
            tools: `none`, or `python`: a Python session in a sandbox.
            attempts: 1 to 10. A wrong answer that is not the last is answered with no more than that it is wrong.
            cpu_s: CPU seconds for a call of Python, and for grading.
            take: Which of several candidate answers counts: `only` (they must all be right) or `last`.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, or bad data. UnknownName: no such preset or family.
        """
        super().__init__(max_turns=max_turns, **options)
        for name, value, most in (("attempts", attempts, MAX_ATTEMPTS), ("count", count, MAX_COUNT)):
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidInput.of(name, f"be 1 to {most}", value, where=_WHERE, do=f"pass e.g. {name}=3")
        check_known("tools", tools, TOOLS, where=_WHERE)
        check_known("take", take, tuple(Take), where=_WHERE)
        if preset is not None and preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS, where=_WHERE)
        self.has_python, self.attempts = tools == "python", attempts
        hint = " You may compute with Python first." if self.has_python else ""
        self.system_prompt = f"Solve the problem.{hint} {_FORM}"
        self.grade = WorkedOut(math=Math(cpu_s=max(1, round(cpu_s)), worked_out=True), take=Take(take))
        self.limits = Limits(wall_s=WALL_FACTOR * cpu_s, cpu_s=cpu_s, output=16384, disk=16 * MIB)
        self.tasks: ListTasks | CheckedTasks
        if data is None and preset is None:
            do = "pass data, or leave columns out"
            InvalidInput.unless(columns is None, "columns", "be left out without data", columns, where=_WHERE, do=do)
            self.tasks = shipped(_select_problems(families, levels, held_out, count))
        else:
            further = further_columns(columns, filled_fields=FIELDS, where=_WHERE)
            source = _load(_DataSet(_items(data), preset or "plain", config, revision, _items(splits), further))
            self.tasks = _checked(source, self.grade)
        self.chance_score = min(1.0, attempts * _chance(self.tasks))

    def respond(self, action: Action) -> Reply:
        self.state = replace(self.state, num_attempts=self.state.num_attempts + 1)
        score = self.grade(action.content, self.task).score
        left = self.attempts - self.state.num_attempts
        if score < 1.0 and left > 0:
            return Reply(observation=f"That is not right. Try again. Attempts left: {left}.")
        return Reply(reward=Scored(value=score, components={"answer": score}), terminated=True)

    def oracle(self) -> str:
        """Run the line of Python that a shipped problem comes with, where Python is there; then answer."""
        work = self.task.metadata.get("work") if isinstance(self.tasks, ListTasks) else None
        if self.has_python and work is not None and not self.state.notebook.cells:
            return tool_call_action("python", code=f"{PREAMBLE}\n{work}")
        return f"\\boxed{{{text_keys_of(self.task, 'answer')[0]}}}"


def _select_problems(
    families: str | Sequence[str] | None, levels: int | Sequence[int], held_out: str | Sequence[str], count: int
) -> ProblemSelection:
    names = tuple(FAMILIES) if families is None else names_of(families)
    apart = names_of(held_out)
    for name in (*names, *apart):
        check_known("family", name, FAMILIES, where=_WHERE)
    task_levels = levels_of(levels, where=_WHERE)
    if not names or (apart and not set(names) - set(apart)):
        do = "name more families, or none for all"
        raise InvalidInput.of("families", "leave some to train on", names, where=_WHERE, do=do)
    every = tuple(dict.fromkeys((*names, *apart)))
    return ProblemSelection(every, task_levels, apart, count)


@dataclass(frozen=True, slots=True)
class _DataSet:
    place: str | tuple[tuple[str, str], ...] | None
    preset: str
    config: str | None
    revision: str | None
    splits: str | tuple[tuple[str, str], ...] | None
    columns: ColumnNames
    """Further ones."""


def _items(value: str | Mapping[str, str] | None) -> str | tuple[tuple[str, str], ...] | None:
    return tuple(value.items()) if isinstance(value, Mapping) else value


@lru_cache(maxsize=8)
def _load(data: _DataSet) -> ProblemTasks:
    """Return the problems of a data set; nobody changes them, so envs share them."""
    preset = PRESETS[data.preset]
    place = data.place or preset.hub
    do = "pass data=problems.jsonl, or a preset with a place on the hub"
    InvalidInput.unless(place, "data", "be given", None, where=_WHERE, do=do)
    splits = dict(data.splits) if isinstance(data.splits, tuple) else None
    source = dict(place) if isinstance(place, tuple) else place
    return ProblemTasks(source, preset, further=data.columns, config=data.config, revision=data.revision, splits=splits)


@lru_cache(maxsize=8)
def _checked(source: ProblemTasks, grade: WorkedOut) -> CheckedTasks:
    """Return the problems whose keys can be judged; the same object for equal arguments."""
    tasks = checked_tasks(source, [grade])
    assert isinstance(tasks, CheckedTasks), "the grade checks keys"
    return tasks


@lru_cache(maxsize=16)
def _chance(tasks: ListTasks | CheckedTasks) -> float:
    every = [tasks.task(split, index) for split in Split for index in range(tasks.size(split) or 0)]
    counts = Counter(bare_expression(text_keys_of(task, "answer")[0]) for task in every)
    return max(counts.values()) / counts.total() if counts else 0.0
