"""The rows of a data file or data set as tasks, scored by a verifier that settings name: `data/file-v0`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import fmean
from typing import Any, cast

from envgym.authoring import RubricEnv
from envgym.authoring.checked_tasks import checked_tasks
from envgym.authoring.columns import ColumnMapping, column_names
from envgym.chats.openai import read_tools
from envgym.core.json_types import JsonObject, JsonValue, canonical
from envgym.core.messages import Action, Message, Observation, Role, ToolCall
from envgym.core.tasks import Split, Task, TaskSource
from envgym.core.turns import Scored
from envgym.envs.data._rows import ANSWER, OPTIONS, TOOLS, DataTasks
from envgym.errors import InvalidInput, check_known
from envgym.parsing import tool_call_action
from envgym.party import Party
from envgym.records import Reply
from envgym.rubric import Rubric, rubric_of
from envgym.runtime.cache import source_key
from envgym.tools import Tool
from envgym.verifiers import F1, Verifier
from envgym.verifiers.extract import KEY_FORMS
from envgym.verifiers.settings import mark_answer, read_verifier

_WHERE = "data/file-v0"
_F1_CHANCE = 0.1
"""What words of the prompt earn at most on average, where answers are scored by F1."""
_COMPARED, _GUESSES = 200, 20
"""Rows whose calls are compared to find what calls earn by chance, and how many of them give the calls."""


class DataFile(RubricEnv):
    """One message is the answer. In rows with functions its calls are the answer; they are noted and never run."""

    _tools: Mapping[str, Tool] = {}  # replaced, never changed
    _calls: tuple[ToolCall, ...] = ()

    def __init__(
        self,
        *,
        data: str | Mapping[str, str] | None = None,
        columns: ColumnMapping | None = None,
        verifier: str | Mapping[str, Any] | None = None,
        answer_form: str = "alone",
        show_options: bool = True,
        config: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
        test_share: float | None = None,
        split_seed: int = 0,
        on_bad_row: str = "fail",
        system_prompt: str = "",
        chance_score: float | None = None,
        max_turns: int | None = 1,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Choose rows and verifier.

        Args:
            data: A `.jsonl`, `.json`, `.csv` or `.parquet` file, a mapping from split to file, a data set directory, or
                a hub name.
            columns: Which column is what, such as `{prompt: question, answer: reward_model.ground_truth}`; the keys
                `prompt`, `id`, `split` and `metadata` (one column, a list, or `*`: all others), `tools` for functions
                that may be called, and every field that the verifier reads. None: `prompt` and `answer`.
            verifier: A name, or a name with settings, such as `{name: math, take: last}`.
            answer_form: How the answer stands in its column: `alone`, after the last `####` (`hashes`), in the last box
                (`boxed`), or as the `index` of an option, from 0.
            show_options: Whether the prompt ends with the options of a row that has a column `options`, by letter.
            config: Configuration of the data set, where it has several.
            revision: Commit or tag of a hub data set.
            splits: Official split -> train or test; None: the usual names are understood.
            test_share: Share of the tasks that are held out, where there is no official split; None: 0.2.
            split_seed: Another seed draws another split.
            on_bad_row: `fail` refuses a row that breaks a rule, `skip` leaves such rows out and counts them in the log.
            system_prompt: Standing instructions, such as how to mark the answer.
            chance_score: None: the share of the most frequent answer.
            max_turns: Turns until the episode is cut.
            parties: As in `Env`.
            render_mode: As in `Env`.

        Raises: InvalidInput: no data or no verifier, a value out of its range, or rows that cannot be used.
        """
        do = "pass e.g. data=questions.jsonl and verifier=math"
        for name, value in (("data", data), ("verifier", verifier)):
            InvalidInput.unless(value, name, "be given", value, where=_WHERE, do=do)
        check_known("answer_form", answer_form, KEY_FORMS, where=_WHERE)
        names = {"prompt": "prompt", ANSWER: ANSWER} if columns is None else dict(columns)
        if answer_form != "alone" and ANSWER not in names:
            do = "name the column of the answer, or leave answer_form out"
            raise InvalidInput.of("columns", f"name {ANSWER} for answer_form", ", ".join(names), where=_WHERE, do=do)
        settings = {
            "source": data,
            "columns": names,
            "answer_form": answer_form,
            "show_options": show_options,
            "config": config,
            "revision": revision,
            "splits": splits,
            "test_share": test_share,
            "split_seed": split_seed,
            "on_bad_row": on_bad_row,
        }
        files = [data] if isinstance(data, str) else list((data or {}).values())
        loaded = _load(_Settings(_json(settings), _json(verifier), tuple(map(source_key, files))))
        self._verifier = loaded.verifier
        super().__init__(
            tasks=loaded.tasks,
            rubric=loaded.verifier,
            system_prompt=system_prompt,
            chance_score=loaded.chance if chance_score is None else chance_score,
            max_turns=max_turns,
            parties=parties,
            render_mode=render_mode,
        )

    def begin(self, task: Task) -> str:
        self._calls, self._tools = (), _tools_of(task)
        return super().begin(task)

    def toolset(self) -> Mapping[str, Tool]:
        """Return the functions of the row; none before an episode."""
        return self._tools

    def note_call(self, name: str, arguments: JsonObject) -> str:
        """Note a call of a function."""
        self._calls = (*self._calls, ToolCall(name=name, arguments=arguments))
        return "Noted."

    def after_tools(self, observation: Observation) -> Reply:
        """Score the calls of a message, those that could not be made among them."""
        if not self._tools:
            return super().after_tools(observation)
        failed = [message for message in observation.messages if message.is_error]
        others = tuple(ToolCall(name=message.name) for message in failed if message.name is not None)
        unreadable = [message.content for message in failed if message.name is None]
        calls = (*self._calls, *others)
        return Reply(
            reward=score_calls(self._rubric, calls, self.task, self.transcript, unreadable=unreadable), terminated=True
        )

    def oracle(self) -> str:
        """Return the answer of the row, or its calls. Raises: NoOracle: the row has none."""
        if not self._tools or ANSWER not in self.task.payload:
            return mark_answer(self._verifier, super().oracle())
        texts = [tool_call_action(call.name, **call.arguments) for call in right_calls(self.task)]
        return "\n".join(texts) or "No function fits."


@dataclass(frozen=True, slots=True)
class _Settings:
    """What decides the tasks."""

    rows: str
    """JSON: the arguments of `DataTasks`."""
    verifier: str
    """JSON."""
    files: tuple[str, ...]
    """Digests of path, size and time of each file: a changed one is read again."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    tasks: TaskSource
    verifier: Verifier
    chance: float


@lru_cache(maxsize=8)
def _load(settings: _Settings) -> _Loaded:
    """Read rows and make their verifier; nobody changes them, so envs share them."""
    verifier = read_verifier(json.loads(settings.verifier), where=_WHERE)
    arguments = json.loads(settings.rows)
    columns = column_names(arguments.pop("columns"), where=_WHERE)
    tasks = checked_tasks(DataTasks(arguments.pop("source"), columns, **arguments), [verifier])
    return _Loaded(tasks, verifier, _chance(tasks, verifier))


def _json(value: JsonValue | Mapping[str, Any]) -> str:
    try:
        return canonical(value)
    except (TypeError, ValueError) as error:
        do = "pass texts, numbers and mappings; make other objects in a RubricEnv"
        raise InvalidInput.of("settings", "be JSON", str(error), where=_WHERE, do=do) from None


def _chance(tasks: TaskSource, verifier: Verifier) -> float:
    """Return the highest mean score of an answer that does not depend on the task, in the worse of the splits."""
    best = 0.0
    for split in Split:
        split_tasks = [tasks.task(split, index) for index in range(tasks.size(split) or 0)]
        counts = Counter(filter(None, map(_guess, split_tasks)))
        best = max([best, *(count / len(split_tasks) for count in counts.values())])
        with_calls = [task for task in split_tasks[:_COMPARED] if ANSWER in task.payload and TOOLS in task.payload]
        guesses = {canonical(task.payload[ANSWER]): right_calls(task) for task in with_calls[:_GUESSES]}
        for calls in guesses.values():
            best = max(best, fmean(score_calls(rubric_of(verifier), calls, task).value for task in with_calls))
    return min(1.0, best + (_F1_CHANCE if isinstance(verifier, F1) else 0.0))


def _guess(task: Task) -> str:
    """Return the shortest right answer: the letter of the option, or the answer; empty if the row has none."""
    answer, options = task.payload.get(ANSWER), task.payload.get(OPTIONS)
    if isinstance(options, list) and answer in options:
        return chr(ord("A") + options.index(answer))
    return "" if answer is None else str(answer).strip()


def right_calls(task: Task) -> tuple[ToolCall, ...]:
    """Return the calls that are the answer of a row with functions."""
    calls = cast(list[dict[str, Any]], task.payload[ANSWER])  # as DataTasks writes it
    return tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls)


def score_calls(
    rubric: Rubric,
    calls: Sequence[ToolCall],
    task: Task,
    transcript: Sequence[Message] = (),
    *,
    unreadable: Sequence[str] = (),
) -> Scored:
    """Score a message of calls, some of which could not be read. Raises: what the verifier raises."""
    message = Message(role=Role.ASSISTANT, tool_calls=tuple(calls))
    return rubric(Action("", malformed=unreadable), task, (*transcript, message))


def _tools_of(task: Task) -> Mapping[str, Tool]:
    listed = task.payload.get(TOOLS)
    return {} if listed is None else _tools_in(canonical(listed))


@lru_cache(maxsize=256)
def _tools_in(listed: str) -> Mapping[str, Tool]:
    specs = read_tools(listed, where=_WHERE)
    return {spec.name: Tool(spec=spec, call=partial(_note, spec.name)) for spec in specs}


def _note(name: str, env: object, arguments: JsonObject) -> str:
    assert isinstance(env, DataFile), "the owner of its tools"
    return env.note_call(name, arguments)
