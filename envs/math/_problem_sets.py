r"""Where problems come from: the shipped ones, and data sets of questions and answers (GSM8K, MATH, AIME ...).

A preset says which columns hold the question and the answer, and how the answer stands in its column: after `####`, in
the last `\boxed{}`, or alone. The other columns become metadata, and the answer's own if it holds more than the answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from envgym.authoring import FileTasks, ListTasks, TaskDraft
from envgym.authoring.columns import ColumnNames, read_metadata, read_payload
from envgym.authoring.tables import Row, rows_of
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.envs.math._problem import FAMILIES, ProblemSampler, draft_of
from envgym.errors import InvalidInput
from envgym.seeds import generator
from envgym.verifiers.extract import KEY_FORMS, NO_KEY

MAX_COUNT = 200
"""Problems of one family and level."""
_MAX_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class ProblemSelection:
    families: tuple[str, ...]
    levels: tuple[int, ...]
    held_out: tuple[str, ...]
    """Families that make up the test split, and are not in the train split."""
    count: int


@lru_cache(maxsize=8)
def shipped(selection: ProblemSelection) -> ListTasks:
    """Return shipped problems, of all kinds in turn; nobody changes them, so envs share them."""
    kinds = [_drafts(name, level, selection.count) for name in selection.families for level in selection.levels]
    drafts = [draft for row in zip_longest(*kinds) for draft in row if draft is not None]
    if not selection.held_out:
        return ListTasks(drafts)
    sides = [(Split.TEST if draft.metadata["family"] in selection.held_out else Split.TRAIN, draft) for draft in drafts]
    return ListTasks([_task(split, index, draft) for index, (split, draft) in enumerate(sides)])


def _task(split: Split, index: int, draft: TaskDraft) -> Task:
    return Task(id=f"{split}/{index}", prompt=draft.prompt, payload=draft.payload, metadata=draft.metadata, split=split)


def _drafts(name: str, level: int, num: int) -> Iterable[TaskDraft]:
    """Draw different problems of a family and level; more of them begin with the same ones."""
    sampler, drafts = ProblemSampler(generator("math/problems", name, level)), dict[str, TaskDraft]()
    for _ in range(num * _MAX_REPEATS):
        if len(drafts) == num:
            break
        draft = draft_of(name, level, FAMILIES[name][level - 1].sample(sampler))
        drafts.setdefault(str(draft.payload["facts"]), draft)
    return drafts.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    hub: str = ""
    """Where it is on the hub; empty: a path must be given."""
    config: str | None = None
    questions: tuple[str, ...] = ("question", "problem", "prompt")
    answers: tuple[str, ...] = ("answer", "final_answer", "expected_answer", "solution")
    """Columns; the first one that a row has counts."""
    form: str = "alone"
    """How the answer stands there: `hashes`, `boxed`, `alone`."""
    splits: Mapping[str, str] | None = field(default=None, hash=False)
    """Official split -> train or test; None: the usual names are understood."""


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "plain": Preset(),
        "gsm8k": Preset(hub="openai/gsm8k", config="main", answers=("answer",), form="hashes"),
        "math": Preset(hub="EleutherAI/hendrycks_math", config="algebra", answers=("solution",), form="boxed"),
        "math500": Preset(hub="HuggingFaceH4/MATH-500", answers=("answer",)),
        "aime24": Preset(hub="HuggingFaceH4/aime_2024", answers=("answer",), splits={"train": "test"}),
        "aime25": Preset(hub="math-ai/aime25", answers=("answer",)),
        "amc23": Preset(hub="math-ai/amc23", answers=("answer",)),
        "minerva": Preset(hub="math-ai/minervamath", answers=("answer",)),
        "deepscaler": Preset(hub="agentica-org/DeepScaleR-Preview-Dataset", answers=("answer",)),
    }
)


FIELDS = ("question", "answer")
"""Fields of the payload of every problem; further columns add fields to the payload."""


class ProblemTasks(FileTasks):
    """The problems of a data set; rows without an answer are left out and counted."""

    _content_fields = FIELDS

    def __init__(
        self,
        source: str | Path | Mapping[str, str],
        preset: Preset,
        *,
        further: ColumnNames,
        config: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare to read.

        `config` and `splits` go before the preset's, which belong to its hub name. `further` names the columns of the
        metadata, and those of fields of the payload besides question and answer.
        """
        is_hub = source == preset.hub
        super().__init__(
            source,
            config=config or (preset.config if is_hub else None),
            revision=revision,
            splits=splits or (preset.splits if is_hub else None),
        )
        self._preset, self._further = preset, further

    def _tables(self) -> Iterator[tuple[str, Iterable[Row]]]:
        """Leave out rows without an answer, as in a hidden test set, and count them."""
        for name, rows in super()._tables():
            where = f"{name or self.name}"
            answers = [(row, self._answer(row, f"row {number} of {where}")) for number, row in enumerate(rows_of(rows))]
            answered = [row for row, answer in answers if answer]
            self._left_out[NO_KEY[self._preset.form]] += len(answers) - len(answered)
            if answered:
                yield name, answered

    def _draft(self, row: Row, where: str) -> TaskDraft:
        preset = self._preset
        column = next((name for name in preset.questions if isinstance(row.get(name), str)), None)
        if column is None:
            raise _missing(preset.questions, row, where)
        question, read = row[column], [column]
        if preset.form == "alone":
            read += [name for name in preset.answers if name in row][:1]
        payload: dict[str, JsonValue] = {"question": question, "answer": self._answer(row, where)}
        payload |= read_payload(row, self._further, where)
        metadata = read_metadata(row, self._further, where, read=read)
        return TaskDraft(prompt=question.strip(), payload=payload, metadata=metadata)

    def _answer(self, row: Row, where: str) -> str | None:
        name = next((name for name in self._preset.answers if name in row), None)
        if name is None:
            raise _missing(self._preset.answers, row, where)
        value = row[name]
        return None if value is None or isinstance(value, bool) else KEY_FORMS[self._preset.form](str(value))


def _missing(columns: Sequence[str], row: Row, where: str) -> InvalidInput:
    must, do = f"have a column {' or '.join(columns)}", "choose another preset, or rename the column"
    return InvalidInput.of("row", must, ", ".join(sorted(row)), where=where, do=do)
