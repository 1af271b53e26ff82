"""Tasks of inspect-ai by their ids: made, checked, and tried on their first sample.

Only the environment imports this module, once inspect-ai is found.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inspect_ai import Task as InspectTask
from inspect_ai.dataset import Sample
from inspect_ai.util import registry_create
from pydantic_core import to_json

from envgym.authoring.openings import prompt_text
from envgym.authoring.sources import ListTasks
from envgym.chats.openai import write_openai
from envgym.config.plugins import import_path
from envgym.connect.inspect_messages import from_inspect
from envgym.connect.inspect_sample import GraderMissing, SampleRun, Scores, TaskRefused, scorer_names
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Role
from envgym.core.tasks import Task, split_of
from envgym.errors import InfrastructureError, InvalidInput

_CHOOSE = "choose another task"
_WRONG = "I do not know."
"""An answer for which a scorer may ask a grader, where it does not for the right one."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task of inspect-ai that an environment can play."""

    task: InspectTask
    tasks: ListTasks
    samples: Mapping[str, Sample]
    """Content hash of an envgym task -> its sample."""
    scorers: tuple[str, ...]
    """Their names, in order."""
    needs_grader: bool
    """Whether a scorer called a model for an answer to the first sample, right or wrong."""


def load(spec: str, task_args: Mapping[str, Any], *, test_share: float, timeout_s: float, where: str) -> LoadedTask:
    """Make a task and check that it can be played.

    Args:
        spec: `package/task`, or `file.py@task`.
        task_args: arguments of the task's function.
        test_share: share of the samples in the split `test`.
        timeout_s: longest wait for its solver and for its scorers, in seconds.
        where: the whole id, for errors.

    Raises: InvalidInput: there is no such task, it cannot be made, or it does what an environment cannot run.
    """
    task = _make(spec, task_args, where)
    for what, must, got in _obstacles(task):
        raise InvalidInput.of(what, must, got, where=where, do=_CHOOSE)
    samples: dict[str, Sample] = {}
    tasks: list[Task] = []
    for number, sample in enumerate(task.dataset, 1):
        sample = sample if sample.id is not None else sample.model_copy(update={"id": number})
        item = _task_of(sample, test_share, where)
        if item.key not in samples:
            tasks.append(item)
            samples[item.key] = sample
    first = samples[tasks[0].key]
    target = first.target if isinstance(first.target, str) else " ".join(first.target)
    needs_grader = any(
        _probe(SampleRun(task, first, grader=None, timeout_s=timeout_s, where=where), answer, where)
        for answer in (target, _WRONG)
    )
    return LoadedTask(task, ListTasks(tasks), samples, tuple(scorer_names(task)), needs_grader)


def _make(spec: str, task_args: Mapping[str, Any], where: str) -> InspectTask:
    """Call the function of a task. Raises: InvalidInput: there is none, or it fails."""
    place, _, name = spec.rpartition("@")
    try:
        if place.endswith(".py"):
            result = import_path(f"{place}:{name}")(**task_args)
        else:
            result = registry_create("task", spec, **task_args)
    except InvalidInput:
        raise
    except Exception as error:  # what runs is the author's
        must, got = "be made by its function", f"{type(error).__name__}: {error}"
        do = "check the id (package/task, or file.py@task), task_args, and that its data can be read here"
        raise InvalidInput.of("task", must, got, where=where, do=do) from error
    if not isinstance(result, InspectTask):
        must, do = "return a Task of inspect-ai", "name a function with @task"
        raise InvalidInput.of("function of the task", must, type(result).__name__, where=where, do=do)
    return result


def _obstacles(task: InspectTask) -> Iterator[tuple[str, str, str]]:
    """Yield what an environment cannot run, as the parts of a sentence."""
    samples = list(task.dataset)
    if task.sample_source is not None or not samples:
        yield "task", "have a data set with samples", "none"
    if task.sandbox is not None:
        yield "task", "run without a sandbox", f"sandbox {task.sandbox.type}"
    for sample in samples:
        for name in ("sandbox", "files", "setup"):
            if getattr(sample, name):
                yield f"sample {sample.id}", "run without a sandbox", name
    if not task.scorer:
        yield "task", "have a scorer", "none"
    if task.approval is not None:
        yield "task", "run its tools without approval", "an approval policy"


def _task_of(sample: Sample, test_share: float, where: str) -> Task:
    """Return the task of a sample. Raises: InvalidInput: its input holds more than text."""
    place = f"sample {sample.id} of {where}"
    if isinstance(sample.input, str):
        messages = [Message(role=Role.USER, content=sample.input)]
    else:
        messages = [from_inspect(message, where=place) for message in sample.input]
    # other values are written in another way by each process
    more = {"metadata": sample.metadata} if _is_json(sample.metadata) else {"id": sample.id}
    hidden = {"target": sample.target, "choices": sample.choices, **more}
    payload: JsonObject = {
        "input": [write_openai(message) for message in messages],
        **json.loads(to_json(hidden, inf_nan_mode="strings")),
    }
    prompt = prompt_text(messages)
    return Task(id=str(sample.id), prompt=prompt, payload=payload, split=split_of(payload, test_share))


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _probe(run: SampleRun, answer: str, where: str) -> bool:
    """Play a sample; return whether a scorer needs a grader for the answer.

    Raises: InvalidInput: the solver fails before it calls the model, or does what an environment cannot run.
    """
    has_begun = False
    try:
        if isinstance(run.begin(), Scores):
            raise AssertionError("a solver without a call of the model is refused")
        has_begun = True
        run.reply(Action(answer))
    except GraderMissing:
        return True
    except TaskRefused as error:
        raise InvalidInput(str(error)) from error
    except InfrastructureError as error:  # a scorer may refuse this answer
        if not has_begun:
            raise InvalidInput(str(error)) from error
    finally:
        run.close()
    return False
