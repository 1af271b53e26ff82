"""Tasks from rows: of JSONL, JSON, CSV or Parquet files, of anything that `datasets` reads, or in memory.

The data set's official split wins. Where there is none, the content decides. A train row whose content is also a test
row is left out, so no content is on both sides.
"""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from envgym.authoring.columns import (
    ColumnMapping,
    ColumnNames,
    column_names,
    named_columns,
    read_cell,
    read_metadata,
    read_payload,
)
from envgym.authoring.openings import read_prompt
from envgym.authoring.sources import TaskDraft, check_index, task_from_draft
from envgym.authoring.tables import Row, RowOrFault, Source, name_of, read_tables
from envgym.core.json_types import JsonValue, canonical, content_hash
from envgym.core.tasks import TEST_FRACTION, Split, Task, check_ids, split_of_key
from envgym.errors import InvalidInput, check_known
from envgym.runtime.error_log import log_error

_TRAIN_NAMES = ("train", "training")
_TEST_NAMES = ("test", "testing")
_VALIDATION_NAMES = ("validation", "valid", "val", "dev")
_log = logging.getLogger(__name__)

RowFunction = Callable[[Row], TaskDraft | None]
"""Makes the task of a row; None leaves the row out."""


class RowLeftOut(Exception):
    """A row that makes no task; the message is the reason, in the words of the log."""


class _RowDraft(NamedTuple):
    """The task of a row before it has an index."""

    split: Split
    draft: TaskDraft
    id: str | None
    key: str
    """Content hash of the fields of the payload that decide the split."""


class FileTasks:
    """Tasks of rows in files or in memory; they are read when the first one is asked for.

    Where they are the `tasks` of a class, `envgym.make` and runs that begin later see files that have changed since.
    """

    _rule, _remedy = "have an answer", "name another column or preset, or correct the rows"
    """What a row must do to make a task, and what to do if no row does."""
    _content_fields: tuple[str, ...] | None = None
    """Fields of the payload that decide the split, and which train tasks are also test tasks; None: all fields."""

    def __init__(
        self,
        source: Source,
        columns: ColumnNames | ColumnMapping | RowFunction | None = None,
        *,
        config: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
        test_share: float | None = None,
        split_seed: int = 0,
        on_bad_row: Literal["fail", "skip"] = "fail",
    ) -> None:
        """Prepare to read.

        Args:
            source: a `.jsonl`, `.json`, `.csv` or `.parquet` file, the directory or hub name of a data set, a list of
                dicts, a `datasets.Dataset`, or a mapping from split to file or rows. Cells of CSV are texts.
            columns: which column is what; a mapping such as `{"prompt": "question", "answer": "solution"}` names the
                columns of the prompt and of the payload's fields, its keys `id`, `split` and `metadata` (one column, a
                list, or `*`) those that `ColumnNames` has under these names; a function makes the task of a row.
                `extra_info.answer` and
                `choices[0]` name what is inside a column.
            config: configuration of the data set, where it has several.
            revision: commit or tag of a hub data set; name one, so that tasks stay the same.
            splits: official split -> "train" or "test"; others are left out. None: the usual names are understood.
            test_share: share of the tasks that are `test`, in [0, 1], where there is no official split; None: 0.2. The
                hash of a task decides, so a task stays on its side when rows are added, and test tasks stay test
                tasks when the share grows.
            split_seed: another seed draws another split.
            on_bad_row: `fail` refuses a row that breaks a rule with its number and the reason, `skip` leaves it out;
                the log has the number of such rows by reason.

        Raises: InvalidInput: a value of a mapping names no column, or a value is out of its range.
        """
        self._source = source
        self._function = columns if callable(columns) else None
        self._has_columns = columns is not None and self._function is None
        self._columns = columns if isinstance(columns, ColumnNames) else ColumnNames()
        if isinstance(columns, Mapping):
            self._columns = column_names(columns)
        check_known("on_bad_row", on_bad_row, ("fail", "skip"), where="FileTasks")
        if test_share is not None and not 0.0 <= test_share <= 1.0:
            do = "pass e.g. 0.2"
            raise InvalidInput.of("test_share", "lie in [0, 1]", test_share, where="FileTasks", do=do)
        self._config = config
        self._revision = revision
        self._splits = splits
        self._test_share = test_share
        self._split_seed = split_seed
        self._skips_bad_rows = on_bad_row == "skip"
        self._loaded: Mapping[Split, list[Task]] | None = None
        self._left_out: Counter[str] = Counter()
        """Reason -> number of rows that were left out for it when the files were read."""
        self._read_from: list[tuple[int, int]] = []
        """Time of the last change, in ns, and size of each file when it was read."""

    @property
    def name(self) -> str:
        """Where the tasks lie."""
        return name_of(self._source)

    def size(self, split: Split) -> int:
        """Return the number of tasks in `split`. Raises: InvalidInput: the source cannot be read."""
        return len(self._tasks[split])

    def task(self, split: Split, index: int) -> Task:
        """Return a task. Raises: InvalidInput: beyond the end, or the source cannot be read."""
        return self._tasks[split][check_index(index, self.size(split), f"{split} of {self.name}")]

    def current(self) -> "FileTasks":
        """Return these tasks, or, where files have changed since they were read, others that are read anew."""
        is_current = self._loaded is None or self._read_from == self._files()
        return self if is_current else copy.copy(self)

    def __getstate__(self) -> dict[str, object]:
        """Leave the tasks out: another process reads files itself. Rows in memory are part of the source."""
        return {**self.__dict__, "_loaded": None}

    @property
    def _tasks(self) -> Mapping[Split, list[Task]]:
        if self._loaded is None:
            self._read_from = self._files()
            self._loaded = self._load()
        return self._loaded

    def _files(self) -> list[tuple[int, int]]:
        sources = self._source.values() if isinstance(self._source, Mapping) else [self._source]
        paths = [Path(part) for part in sources if isinstance(part, str | Path)]
        stats = [path.stat() for path in paths if path.is_file()]
        return [(stat.st_mtime_ns, stat.st_size) for stat in stats]

    def _load(self) -> Mapping[Split, list[Task]]:
        """Read all rows. Raises: InvalidInput: a row breaks a rule, or rows are left out and none makes a task."""
        self._left_out = Counter()
        tables = dict(self._tables())
        sides = self._sides(list(tables))
        self._check_share(sides)
        drafts: dict[Split, list[_RowDraft]] = {split: [] for split in Split}
        for name, rows in tables.items():
            if name not in sides:
                continue
            side = sides[name]
            for number, row in enumerate(rows):
                where = f"row {number} of {name or self.name}"
                try:
                    draft = self._checked_draft(row, side, where)
                except RowLeftOut as reason:
                    self._left_out[str(reason)] += 1
                    continue
                except InvalidInput as error:
                    if not self._skips_bad_rows:
                        raise
                    self._left_out[str(error).partition(", got ")[0]] += 1
                    continue
                if draft is not None:
                    drafts[draft.split].append(draft)
        self._report_left_out(sum(map(len, drafts.values())))
        held_out = {draft.key for draft in drafts[Split.TEST]}
        drafts[Split.TRAIN] = [draft for draft in drafts[Split.TRAIN] if draft.key not in held_out]
        return {split: self._named(split, side) for split, side in drafts.items()}

    def _checked_draft(self, row: RowOrFault, side: Split | None, where: str) -> _RowDraft | None:
        """Return the task of a row, or None. Raises: InvalidInput: the row breaks a rule. RowLeftOut."""
        if isinstance(row, InvalidInput):
            raise row
        draft = self._draft(row, where)
        if draft is None:
            return None
        key, id_column = _checked_key(draft, self._content_fields, where), self._columns.id
        id = None if id_column is None else str(read_cell(row, id_column, where))
        return _RowDraft(side or self._split_of(row, key, where), self._shown(draft), id, key)

    def _check_share(self, sides: Mapping[str, Split | None]) -> None:
        """Refuse a share where official splits decide."""
        is_shared = self._columns.split is None and None in sides.values()
        if self._test_share is not None and not is_shared:
            must, do = "be left out where rows have official splits", "leave it out, or pass one table of the data set"
            raise InvalidInput.of("test_share", must, self._test_share, where=self.name, do=do)

    def _report_left_out(self, num_tasks: int) -> None:
        """Log how many rows were left out, by reason. Raises: InvalidInput: no row is left."""
        num_left_out = self._left_out.total()
        if not num_left_out:
            return
        reasons = ", ".join(f"{reason} ({count})" for reason, count in (+self._left_out).most_common())
        num_rows = num_left_out + num_tasks
        where = f"none of {num_rows} rows of {self.name} is left"
        InvalidInput.unless(num_tasks, "rows", self._rule, reasons, where=where, do=self._remedy)
        _log.warning("%d of %d rows of %s are left out: %s.", num_left_out, num_rows, self.name, reasons)

    def _named(self, split: Split, drafts: Sequence[_RowDraft]) -> list[Task]:
        """Give each task its id, by its index where no column does."""
        tasks = [
            task_from_draft(item.draft, split, f"{split}/{index}" if item.id is None else item.id)
            for index, item in enumerate(drafts)
        ]
        check_ids(tasks, where=f"{split} of {self.name}", do="name another id column, or none")
        return tasks

    def _sides(self, names: list[str]) -> Mapping[str, Split | None]:
        """Return for each table that is used its split, None where rows decide one by one."""
        if self._columns.split is not None:
            return dict.fromkeys(names)
        if self._splits is not None:
            for name in self._splits:
                check_known("split of the data set", name, names, where=self.name)
            return {name: Split.parse(side, where="splits") for name, side in self._splits.items()}
        if names == [""] or (len(names) == 1 and names[0] in _TRAIN_NAMES):
            return dict.fromkeys(names)
        has_test = any(name in _TEST_NAMES for name in names)
        return {name: side for name in names if (side := self._usual_side(name, has_test)) is not None}

    def _usual_side(self, name: str, has_test: bool) -> Split | None:
        """Return the side of an official split by its name; None leaves it out, as validation beside test."""
        if name in _TRAIN_NAMES:
            return Split.TRAIN
        if name in _TEST_NAMES:
            return Split.TEST
        if name in _VALIDATION_NAMES:
            return None if has_test else Split.TEST
        must, do = "have a usual name (train, validation, test)", f'pass splits={{"{name}": "train"}} or the like'
        raise InvalidInput.of("split of the data set", must, name, where=self.name, do=do)

    def _draft(self, row: Row, where: str) -> TaskDraft | None:
        """Make the task of a row; None leaves it out. Raises: RowLeftOut: it is left out, and counted in the log."""
        if self._function is not None:
            return _call(self._function, row, where)
        columns = self._columns
        cell = read_cell(row, columns.prompt, where)
        prompt, content = read_prompt(cell, what=f"column {columns.prompt!r}", where=where)
        payload: dict[str, JsonValue] = {"prompt": content, **read_payload(row, columns, where)}
        metadata = read_metadata(row, columns, where, read=(columns.prompt,))
        return TaskDraft(prompt=prompt, payload=payload, metadata=metadata)

    def _shown(self, draft: TaskDraft) -> TaskDraft:
        """Return the task with what settings add to its prompt, on which its split does not depend."""
        return draft

    def _split_of(self, row: Row, key: str, where: str) -> Split:
        """Return the split of a row whose task has the content hash `key`. Raises: InvalidInput: no such split."""
        if self._columns.split is None:
            return split_of_key(key, TEST_FRACTION if self._test_share is None else self._test_share, self._split_seed)
        return Split.parse(str(read_cell(row, self._columns.split, where)), where=where)

    def _tables(self) -> Iterator[tuple[str, Iterable[RowOrFault]]]:
        """Yield (official split or "", rows); of Parquet and Arrow, the named columns alone are read."""
        columns = named_columns(self._columns) if self._has_columns else None
        yield from read_tables(self._source, self._config, self._revision, columns)


def _call(function: RowFunction, row: Row, where: str) -> TaskDraft | None:
    """Make the task of a row by a function of the author's. Raises: InvalidInput: it failed, or returned no task."""
    what, must = f"function {getattr(function, '__name__', function)}", "return a TaskDraft or None"
    do = f"correct it; the columns are {', '.join(row)}"
    try:
        draft: object = function(row)
    except Exception as error:
        log_error(error, f"{what} failed at {where}")
        raise InvalidInput.of(what, must, f"{type(error).__name__}: {error}", where=where, do=do) from error
    if draft is not None and not isinstance(draft, TaskDraft):
        raise InvalidInput.of(what, must, repr(draft), where=where, do=do)
    return draft


def _checked_key(draft: TaskDraft, fields: Collection[str] | None, where: str) -> str:
    """Return the content hash of these fields of a payload; None: all. Raises: InvalidInput: the task is no JSON."""
    try:
        if draft.metadata:
            canonical(draft.metadata).encode()
        key = content_hash(draft.payload)
        return key if fields is None else content_hash({name: draft.payload[name] for name in fields})
    except (TypeError, ValueError) as error:
        do = "convert the column first"
        raise InvalidInput.of("payload and metadata", "be JSON", str(error), where=where, do=do) from None
