"""Supplies of tasks: a list, or a generator. Both sides of the split are disjoint by construction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.tasks import TEST_FRACTION, Split, Task, TaskSource, check_ids, split_of
from envgym.errors import InvalidInput
from envgym.seeds import generator

MAX_DRAWS = 1000
"""Draws for one task; with a fifth of the space on one side, 1000 misses in a row are impossible (0.8^1000)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDraft:
    """A task that does not know yet on which side of the split it is."""

    prompt: str
    payload: JsonObject
    """The whole problem and its key, not its wording: equal payloads are one task, and its hash decides the split."""
    metadata: JsonObject = field(default_factory=dict)


def task_from_draft(draft: TaskDraft, split: Split, id: str) -> Task:
    """Make the task of a draft."""
    return Task(id=id, prompt=draft.prompt, payload=draft.payload, split=split, metadata=draft.metadata)


def hint_metadata(hints: Sequence[str], *, tier: str) -> dict[str, JsonValue]:
    """Return hints, from weak to strong, under the keys of metadata that methods read.

    `hint` is the first one, for `hinted`, `guide` and the wrapper `hint`. `hints` has all of them as one tier, for
    `scaf_grpo`. Without hints there is no key.
    """
    texts: list[JsonValue] = [*hints]
    return {"hint": texts[0], "hints": {tier: texts}} if texts else {}


def step_metadata(steps: Sequence[str]) -> dict[str, JsonValue]:
    """Return the steps of a solution, in order, as hints and as `sub_goals`, which the curriculum `sub_goals` reads.

    A solution of one step has no `hint`, because the hint would be the whole solution.
    """
    texts: list[JsonValue] = [*steps]
    metadata = {**hint_metadata(steps, tier="steps"), "sub_goals": texts} if texts else {}
    return {name: value for name, value in metadata.items() if name != "hint" or len(steps) > 1}


def check_range(name: str, value: int, low: int, high: int, *, where: str) -> None:
    """Check the argument of an env. Raises: InvalidInput: it is no whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        do = f"pass e.g. {name}={low}"
        raise InvalidInput.of(name, f"be a whole number from {low} to {high}", value, where=where, do=do)


def names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names that an argument of an env gives, each once; a string is one name."""
    return (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))


def check_index(index: int, size: int | None, where: str) -> int:
    """Return `index`. Raises: InvalidInput: it is negative or beyond the end."""
    if index < 0 or (size is not None and index >= size):
        rule = "be at least 0" if size is None else f"lie in [0, {size})"
        raise InvalidInput.of("index", rule, index, where=where, do="choose another one")
    return index


class ListTasks:
    """Tasks that are given; drafts are put into their splits by content."""

    def __init__(self, tasks: Sequence[Task | TaskDraft]) -> None:
        """Sort `tasks` into splits; a `Task` keeps its own.

        Raises: InvalidInput: the same content is on both sides, or an id is twice on one.
        """
        self._tasks: dict[Split, list[Task]] = {split: [] for split in Split}
        for item in tasks:
            split = item.split if isinstance(item, Task) else split_of(item.payload)
            side = self._tasks[split]
            side.append(item if isinstance(item, Task) else task_from_draft(item, split, f"{split}/{len(side)}"))
        for split, side in self._tasks.items():
            check_ids(side, where=f"{split} of ListTasks", do="give each task an id of its own")
        shared = {task.key for task in self._tasks[Split.TRAIN]} & {task.key for task in self._tasks[Split.TEST]}
        if shared:
            twin = next(task for task in self._tasks[Split.TRAIN] if task.key in shared)
            must, do = "be in one split only", "drop it from the train side"
            raise InvalidInput.of("content", must, twin.id, where="ListTasks", do=do)

    def size(self, split: Split) -> int:
        return len(self._tasks[split])

    def task(self, split: Split, index: int) -> Task:
        """Return a task. Raises: InvalidInput: beyond the end."""
        return self._tasks[split][check_index(index, self.size(split), f"{split} of ListTasks")]


class GeneratedTasks:
    """Tasks drawn without end: `index` names the same task on every machine."""

    def __init__(
        self,
        generate: Callable[[np.random.Generator], TaskDraft],
        *,
        name: str,
        seed: int = 0,
        test_fraction: float = TEST_FRACTION,
    ) -> None:
        """Draw with `generate`, a function of the generator alone; `name` and `seed` choose the sequence."""
        self._generate = generate
        self._name = name
        self._seed = seed
        self._test_fraction = test_fraction

    def size(self, split: Split) -> None:
        """Return None: the supply does not end."""
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw until a draft falls into `split`.

        Raises: InvalidInput: a negative index, or all of 1000 drafts were on the other side.
        """
        check_index(index, None, f"{split} of {self._name}")
        draws = generator(self._name, self._seed, split.value, index)
        for _ in range(MAX_DRAWS):
            draft = self._generate(draws)
            if split_of(draft.payload, self._test_fraction) is split:
                return task_from_draft(draft, split, f"{split}/{index}")
        must, got = f"reach the {split} split within {MAX_DRAWS} draws", f"payloads such as {draft.payload}"
        what, do = f"generator {self._name}", "draw from a larger space of payloads"
        raise InvalidInput.of(what, must, got, where="GeneratedTasks", do=do)


def override_class(env: object, **values: object) -> None:
    """Set the attributes of an env that are not None; the others stay as the class declares them."""
    for name, value in values.items():
        if value is not None:
            setattr(env, name, value)


class SplitTasks:
    """Tasks without end whose splits are drawn in two ways; the same content is never in both."""

    def __init__(self, train: GeneratedTasks, test: GeneratedTasks) -> None:
        self._sources = {Split.TRAIN: train, Split.TEST: test}

    def size(self, split: Split) -> None:
        """Return None: the supply does not end."""
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw a task. Raises: InvalidInput: as in `GeneratedTasks`."""
        return self._sources[split].task(split, index)


def as_source(tasks: TaskSource | Sequence[Task | TaskDraft]) -> TaskSource:
    """Return a source of `tasks`; a source is returned as it is."""
    return ListTasks(tasks) if isinstance(tasks, Sequence) else tasks
