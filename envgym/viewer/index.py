"""An index of the episodes of a run, in memory: a filter or a sort looks at arrays and at no file.

Each file is read once: its light columns when it appears, its trees in a second pass (`EpisodeIndex.read_details`), the
newest file first, while the first columns are in use.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from envgym.errors import EnvgymError
from envgym.report.data import TRAIN
from envgym.runs import RunDirectory, file_label, file_step, label_of
from envgym.viewer.episode_files import CODED, CodedColumn, EpisodeFile, Floats, Ints, Strings, read_details, read_light

_MAX_WAIT_S: Final = 0.2
"""Reading goes on after so long, however many requests come."""


class _FileKey(NamedTuple):
    """What tells one version of a file from the next."""

    name: str
    size: int
    modified_ns: int


class RequestCount:
    """How many requests are being answered: reading ahead waits while there are some."""

    def __init__(self) -> None:
        """Begin with none."""
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        """Count one more."""
        with self._changed:
            self._count += 1

    def __exit__(self, *error: object) -> None:
        """Count one less."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_for_none(self) -> None:
        """Return when no request is being answered, or after `_MAX_WAIT_S`."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, timeout=_MAX_WAIT_S)


class EpisodeColumns(NamedTuple):
    """The columns of all files together, [N] each."""

    files: list[EpisodeFile]
    file: Ints
    """Index in `files`."""
    row: Ints
    """Row in that file."""
    numbers: dict[str, Floats]
    """As of a file, with `tool_errors`: NaN where it is not known."""
    coded: dict[str, CodedColumn]
    """As of a file, with `source`."""
    tree_ids: Strings
    words: Strings

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.file)


class EpisodeIndex:
    """The episodes of one run, and of the files that are added while it runs."""

    def __init__(self, run: RunDirectory) -> None:
        """Name the run; nothing is read yet."""
        self.run = run
        self._files: dict[_FileKey, EpisodeFile] = {}
        self._problems: dict[_FileKey, str] = {}
        self.requests = RequestCount()
        """Of the server that shows the run."""
        self._lock = threading.RLock()
        self._columns: EpisodeColumns | None = None
        self._num_detailed = -1

    @property
    def files(self) -> list[EpisodeFile]:
        """The files that could be read, by step."""
        with self._lock:
            return [self._files[key] for key in sorted(self._files, key=lambda key: (file_step(Path(key.name)), key))]

    @property
    def problems(self) -> list[str]:
        """Why files cannot be read, a sentence each."""
        with self._lock:
            return [self._problems[key] for key in sorted(self._problems)]

    def refresh(self) -> None:
        """Read files that are new or were replaced, and forget those that are gone. A broken file is a problem."""
        with self._lock:
            found: dict[_FileKey, Path] = {}
            for path in self.run.episode_files():
                with suppress(FileNotFoundError):  # a run that is resumed removes some
                    stat = path.stat()
                    found[_FileKey(path.name, stat.st_size, stat.st_mtime_ns)] = path
            known = {*self._files, *self._problems}
            for key in known - found.keys():
                self._files.pop(key, None)
                self._problems.pop(key, None)
            fresh = found.keys() - known
            sources = self._sources() if fresh else {}
            for key in fresh:
                label = label_of(found[key])
                try:
                    self._files[key] = read_light(found[key], sources.get(label, label))
                except (EnvgymError, OSError) as error:
                    self._problems[key] = str(error)
            if fresh or known - found.keys():
                self._columns = None

    def _sources(self) -> dict[str, str]:
        """Return label of a file -> what made its episodes."""
        try:
            labels = [data["label"] for data in self.run.evals()]
        except EnvgymError:
            labels = []  # the page of evaluations says what is wrong
        return {TRAIN: TRAIN, **{file_label(name): name for name in labels}}

    def read_details(self) -> bool:
        """Read the trees of the newest file whose details are not known; return whether there was one."""
        waiting = [file for file in reversed(self.files) if not file.has_details]
        if waiting:
            read_details(waiting[0], self.requests.wait_for_none)
        return bool(waiting)

    @property
    def num_with_details(self) -> int:
        """Episodes whose trees were read."""
        return sum(len(file) for file in self.files if file.has_details)

    @property
    def columns(self) -> EpisodeColumns:
        """All columns, joined when files or details have changed."""
        with self._lock:
            detailed = self.num_with_details
            if self._columns is None or detailed != self._num_detailed:
                self._columns, self._num_detailed = _join(self.files), detailed
            return self._columns


def _join(files: list[EpisodeFile]) -> EpisodeColumns:
    import pyarrow as pa  # heavy: loaded where it is needed

    names = ("step", "leaf", "turns", "tokens", "reward", "advantage")
    sizes = [len(file) for file in files]
    errors = _concatenate([file.tool_errors.astype(np.float64) for file in files])
    return EpisodeColumns(
        files=files,
        file=np.repeat(np.arange(len(files)), sizes),
        row=np.concatenate([np.arange(size) for size in sizes]) if files else np.arange(0),
        numbers={
            **{name: _concatenate([file.numbers[name] for file in files]) for name in names},
            "tool_errors": np.where(errors < 0, np.nan, errors),
        },
        coded={
            **{name: _join_coded([file.coded[name] for file in files]) for name in (*CODED, "group")},
            "source": _join_coded([CodedColumn([file.source], np.zeros(len(file), np.int64)) for file in files]),
        },
        tree_ids=pa.chunked_array([file.tree_ids for file in files], pa.string()),
        words=pa.chunked_array([file.words for file in files], pa.string()),
    )


def _concatenate(parts: list[Any]) -> Any:  # arrays of one type
    return np.concatenate(parts) if parts else np.empty(0)


def _join_coded(parts: list[CodedColumn]) -> CodedColumn:
    known: dict[str, int] = {}
    codes: list[Ints] = []
    for values, local in parts:
        table = np.array([known.setdefault(value, len(known)) for value in values] + [-1], dtype=np.int64)
        codes.append(table[local])
    return CodedColumn(list(known), np.concatenate(codes) if codes else np.empty(0, np.int64))
