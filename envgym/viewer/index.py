"""An index of the episodes of a run, in memory: a filter or a sort looks at columns and at no file.

Each file is read once: its light columns when it appears, its trees in a second pass (`EpisodeIndex.read_details`), the
newest file first, while the first columns are in use.

Arrow's own functions and not SQL of DuckDB: at 100,000 episodes they answer a filter in 1-13 ms, DuckDB in 6-60 ms from
a table in memory and in 140-590 ms from the files. DuckDB would replace the conditions of `query` only: the bounds on
sent files and the reading of trees would stay, and its reader would be a second one that runs of other people reach.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from envgym.errors import EnvgymError
from envgym.report.data import TRAIN
from envgym.report.from_run import sources_of_run
from envgym.runs.directory import RunDirectory, file_step, label_of
from envgym.viewer.episode_files import SCHEMA, EpisodeFile, Table, read_details, read_light

_MAX_WAIT_S: Final = 0.2
"""Reading goes on after so long, however many requests come."""


class _FileKey(NamedTuple):
    name: str
    size: int
    modified_ns: int


class RequestCount:
    """How many requests are being answered: reading ahead waits while there are some."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_for_none(self) -> None:
        """Return when no request is being answered, or after `_MAX_WAIT_S`."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, timeout=_MAX_WAIT_S)


@dataclass(frozen=True)
class EpisodeColumns:
    """The columns of all files together."""

    files: Sequence[EpisodeFile]
    table: Table
    """The rows of the files, in their order."""

    def __len__(self) -> int:
        return len(self.table)

    def locate(self, position: int) -> tuple[EpisodeFile, int]:
        """Return the file of an episode, and its row there. Raises: IndexError."""
        for file in self.files:
            if position < len(file):
                return file, position
            position -= len(file)
        raise IndexError(position)


class EpisodeIndex:
    """The episodes of one run, and of the files that are added while it runs."""

    def __init__(self, run: RunDirectory) -> None:
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
            paths: dict[_FileKey, Path] = {}
            for path in self.run.episode_files():
                with suppress(FileNotFoundError):  # a run that is resumed removes some
                    state = path.stat()
                    paths[_FileKey(path.name, state.st_size, state.st_mtime_ns)] = path
            indexed = {*self._files, *self._problems}
            for key in indexed - paths.keys():
                self._files.pop(key, None)
                self._problems.pop(key, None)
            fresh = paths.keys() - indexed
            sources = self._sources() if fresh else {}
            for key in fresh:
                label = label_of(paths[key])
                try:
                    self._files[key] = read_light(paths[key], sources.get(label, label))
                except (EnvgymError, OSError) as error:
                    self._problems[key] = str(error)
            if fresh or indexed - paths.keys():
                self._columns = None

    def _sources(self) -> dict[str, str]:
        """Return label of a file -> what made its episodes."""
        try:
            return sources_of_run(self.run)
        except EnvgymError:
            return {TRAIN: TRAIN}  # the page of evaluations says what is wrong

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
                files = self.files
                table = pa.concat_tables([SCHEMA.empty_table(), *(file.table for file in files)])
                self._columns, self._num_detailed = EpisodeColumns(files, table.combine_chunks()), detailed
            return self._columns
