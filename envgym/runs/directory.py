"""The run directory: what is in it, how it is written so that nothing is lost, and how it is read back.

    run.json        schema version, name, an id of its own
    config.json     the settings, complete
    history.jsonl   one object per change of them by a resumed run
    versions.json   packages and platform
    metrics.jsonl   one object per train step
    warm_start.json loss of every update of the warm start
    evals/          one JSON file per evaluation
    episodes/       one Parquet file per saved step, a row per episode; readable by `datasets`
    checkpoints/    one directory per checkpoint, written beside its place and renamed
    reference/      the frozen policy of the KL term, where there is one
    logs/           a log per process, where there are several (see `envgym.runtime.processes.log`)
    wall_time.json  device and seconds of every process that worked on the run (see `envgym.runs.wall_time`)
    finished.jsonl  episodes of an evaluation that is not over yet (see `envgym.runs.journal`)
    rescored/       what evaluations held before `envgym eval --rescore`
    report.html
    trees/          pages that `envgym view RUN --tree ID` wrote

Files are replaced whole (written beside, then renamed); `metrics.jsonl` grows by whole lines, and a line that a
crash cut short is ignored by readers.
"""

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

from envgym.runs.episodes import COLUMNS
from envgym.errors import EnvgymError, RunError, SettingsError, near_names, sentence
from envgym.runs.files import LOCK, LOGS, PROBE, SERVERS, WEIGHTS, read_regular, whole_lines, write_atomic, write_json
from envgym.runs.changes import changed_keys, leaves_of
from envgym.runs.migrations import migrate_config, migrate_metrics
from envgym.runs.trust import check_trusted, is_trusted, trust

SCHEMA_VERSION = 4
"""Raised by every change of the layout or of names; earlier versions stay readable (`envgym.runs.migrations`)."""

_ROW_GROUP_SIZE = 256
"""Episodes of a file that are read to see one of them."""

_PACKAGES = ("envgym", "gymnasium", "numpy", "torch", "transformers", "peft", "renderers", "reasoning-gym", "vllm")


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Say where records are that cannot be read as what envgym writes. Raises: RunError."""
    try:
        yield
    except EnvgymError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        got, do = f"{type(error).__name__}: {error}", "restore it, or move it to another folder"
        raise RunError.of("run file", "be as envgym wrote it", got, where=where, do=do) from error


def read_json(path: Path) -> Any:  # any JSON tree
    """Read a JSON file. Raises: RunError: missing or malformed."""
    try:
        text = read_regular(path)
    except OSError as error:
        do = "name a directory that `envgym train` or `envgym eval` wrote"
        raise RunError.of("run file", "be readable", error.strerror, where=str(path), do=do) from None
    with reading(str(path)):
        return json.loads(text)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises: RunError: missing, malformed, or JSON of another kind."""
    data = read_json(path)
    if not isinstance(data, dict):
        do = "restore it, or start a new run"
        raise RunError.of("run file", "be a JSON object", type(data).__name__, where=str(path), do=do)
    return data


@cache
def package_versions() -> dict[str, str]:
    """Return the versions that a run's numbers depend on."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def check_new(path: Path, *, another: str = "choose another directory") -> None:
    """See that a run can begin in a directory. Raises: RunError: it is taken (then do `another`), or cannot be made."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        must, do = "lie where folders can be made", "choose another directory"
        raise RunError.of("run directory", must, str(path), where=f"{above} is no folder one may write to", do=do)
    if path.exists() and (not path.is_dir() or any(not _may_be_there(item.name) for item in path.iterdir())):
        do = f"{another}, continue the run with --resume (in Python: resume=True), or delete it yourself"
        raise RunError.of("run directory", "be new or empty", str(path), where="run", do=do)


def _may_be_there(name: str) -> bool:
    return name in (LOCK, SERVERS, LOGS, WEIGHTS) or name.startswith(PROBE)


def _no_run(path: Path) -> RunError:
    """Say that there is no run at a path, and where one is: in a folder, or beside a name that is misspelled."""
    folder = path if path.is_dir() else path.parent
    runs = {place.parent.name: str(place.parent) for place in sorted(folder.glob("*/run.json"))}
    near = [runs[name] for name in (list(runs)[:3] if path.is_dir() else near_names(path.name, runs))]
    do = "name a directory that `envgym train` or `envgym eval` wrote"
    if near:
        do = f"did you mean {' or '.join(near)}?"
    if path.is_dir():
        return RunError.of("run directory", "hold run.json", "none", where=str(path), do=do)
    got = "a file" if path.exists() else "no such directory"
    return RunError.of("run", "be a directory", got, where=str(path), do=do)


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | PathLike[str], *, name: str, config: Mapping[str, Any]) -> "RunDirectory":
        """Start a run in a new or empty directory. Raises: RunError: something is there already."""
        run, path = cls(path), Path(path)
        check_new(path)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", config)
        write_json(path / "versions.json", package_versions())
        write_json(path / "run.json", {"schema": SCHEMA_VERSION, "name": name, "id": uuid4().hex})
        with suppress(OSError):  # a user without a directory for state has no list
            trust(path)
        return run

    @classmethod
    def open(cls, path: str | PathLike[str], *, trusted: bool = False) -> "RunDirectory":
        """Open a run for reading or resuming, where `trusted` as one of this user's own (`envgym.runs.trust`).

        Raises: RunError: no run, or of a newer schema.
        """
        run = cls(path)
        if not (run.path / "run.json").exists():
            raise _no_run(run.path)
        _ = run.schema
        if trusted:
            trust(run.path)
        return run

    @property
    def schema(self) -> int:
        """The version of its layout and names. Raises: RunError: a newer one, or none."""
        schema = read_object(self.path / "run.json").get("schema")
        if not isinstance(schema, int) or not 1 <= schema <= SCHEMA_VERSION:
            do = "read it with a newer envgym"
            raise RunError.of("run schema", f"be 1..{SCHEMA_VERSION}", schema, where=str(self.path), do=do)
        return schema

    @property
    def id(self) -> str:
        """What tells it from every other run."""
        return str(read_object(self.path / "run.json").get("id", ""))

    @property
    def name(self) -> str:
        return str(read_object(self.path / "run.json").get("name", self.path.name))

    @property
    def config(self) -> dict[str, Any]:
        """The run's settings as plain data, in today's sections whatever the schema."""
        return migrate_config(read_object(self.path / "config.json"), schema=self.schema)

    def trusted_config(self, *sections: str) -> dict[str, Any]:
        """Return the settings, to act on these sections of them; on all, where none is named. The run may have moved.

        Raises: RunError: the run was not begun here, and they name code, a URL or a file (`envgym.runs.trust`).
        """
        config = self.config
        check_trusted(self.path, {name: config.get(name) for name in sections or config})
        with reading(str(self.path / "config.json")):
            return {**config, "run": {**config.get("run", {}), "directory": str(self.path)}}

    def change_config(self, config: Mapping[str, Any], *, step: int) -> None:
        """Go on with other settings after `step` train steps; `history.jsonl` gets what changed, before and after."""
        before = self.config
        changed = [key for key in changed_keys(before, config) if key != "run.directory"]
        if not changed:
            return
        old, new, was_trusted = leaves_of(before), leaves_of(config), is_trusted(self.path)
        values = {key: [old.get(key), new.get(key)] for key in changed}
        with (self.path / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "changed": values}, ensure_ascii=False) + "\n")
        write_json(self.path / "config.json", config)
        if was_trusted:
            trust(self.path)

    @property
    def versions(self) -> dict[str, str]:
        """Packages that the run was made with."""
        return read_object(self.path / "versions.json")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def append_metrics(self, row: Mapping[str, float]) -> None:
        """Add the metrics of a train step; `row["step"]` names it. What is not finite is written as null."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_metrics_line(row))
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, float]]:
        """Return the metrics of every step, in order; null is NaN. Raises: RunError: a whole line holds no metrics."""
        path, schema = self.path / "metrics.jsonl", self.schema
        rows: list[dict[str, float]] = []
        for number, line in enumerate(whole_lines(path), start=1):
            with reading(f"{path}, line {number}"):
                row = migrate_metrics(json.loads(line), schema=schema)
                metrics = {name: math.nan if value is None else value for name, value in row.items()}
                if not all(isinstance(value, int | float) for value in (row["step"], *metrics.values())):
                    raise TypeError("a metric that is no number")
            rows.append(metrics)
        return rows

    def write_warm_start(self, losses: Sequence[Sequence[float]]) -> None:
        """Write the loss of every update of the warm start, phase by phase."""
        write_json(self.path / "warm_start.json", {"losses": [list(phase) for phase in losses]})

    def warm_start(self) -> tuple[tuple[float, ...], ...]:
        """Return the losses of `write_warm_start`, by phase; none without a warm start. Raises: RunError: unreadable."""
        path = self.path / "warm_start.json"
        if not path.exists():
            return ()
        with reading(str(path)):
            return tuple(tuple(map(float, phase)) for phase in read_object(path)["losses"])

    def forget_after(self, step: int) -> None:
        """Drop what was recorded after `step` train steps; a resumed run makes it again."""
        rows = [row for row in self.metrics() if row["step"] <= step]
        write_atomic(self.path / "metrics.jsonl", "".join(map(_metrics_line, rows)))
        for file in (*self._files("evals", ".json"), *self._files("episodes", ".parquet")):
            if file_step(file) > step:
                file.unlink()

    def write_eval(self, step: int, label: str, data: Mapping[str, Any]) -> Path:
        path = self.path / "evals" / f"step-{step:06d}-{file_label(label)}.json"
        write_json(path, data)
        return path

    def evals(self) -> list[dict[str, Any]]:
        records = [(file, read_object(file)) for file in self._files("evals", ".json")]
        for file, data in records:
            if not (isinstance(data.get("step"), int) and isinstance(data.get("label"), str)):
                do = "restore it, or move it to another folder"
                raise RunError.of("evaluation", "have a step and a label", list(data), where=str(file), do=do)
        return [data for _, data in records]

    def write_episodes(self, step: int, rows: Sequence[Mapping[str, Any]], *, label: str = "train") -> Path:
        """Write the episodes of a step as Parquet, a row each, with the columns of `envgym.runs.episodes`."""
        path = self.path / "episodes" / f"step-{step:06d}-{file_label(label)}.parquet"
        write_episode_table(path, rows)
        return path

    def episodes(
        self, steps: Iterable[int] | None = None, *, label: str | None = None, tree_id: str | None = None
    ) -> list[dict[str, Any]]:
        only = None if tree_id is None else [("tree_id", "==", tree_id)]
        files = self.episode_files(steps, label=label)
        return [row for file in files for row in _read_table(file, filters=only).to_pylist()]

    def task_keys(self, label: str, step: int | None = None) -> list[tuple[str, str]]:
        """Return (task id, content hash) of every saved episode of a label, of all steps or of one; no tree is read."""
        files = self.episode_files(None if step is None else [step], label=label)
        tables = [_read_table(file, columns=["task_id", "task_key"]) for file in files]
        return [(row["task_id"], row["task_key"]) for table in tables for row in table.to_pylist()]

    def tree_ids(self) -> list[tuple[str, int, str]]:
        """Return (label, step, tree id) of every saved tree, in order; the trees themselves are not read."""
        return [
            (label_of(file), file_step(file), tree_id)
            for file in self.episode_files()
            for tree_id in dict.fromkeys(_read_table(file, columns=["tree_id"])["tree_id"].to_pylist())
        ]

    def num_episodes(self) -> dict[str, int]:
        """Return label -> number of saved episodes; the episodes themselves are not read."""
        counts: dict[str, int] = {}
        for file in self.episode_files():
            counts[label_of(file)] = counts.get(label_of(file), 0) + len(_read_table(file, columns=["step"]))
        return counts

    def episode_files(self, steps: Iterable[int] | None = None, *, label: str | None = None) -> list[Path]:
        """Return the files of episodes, of all steps or of some, of all labels or of one; by step."""
        step_set = None if steps is None else set(steps)
        named = None if label is None else file_label(label)
        files = self._files("episodes", ".parquet")
        return [
            file for file in files if (step_set is None or file_step(file) in step_set) and named in (None, label_of(file))
        ]

    def episode_steps(self, *, label: str = "train") -> list[int]:
        return [file_step(file) for file in self.episode_files(label=label)]

    def _files(self, folder: str, suffix: str) -> list[Path]:
        names = re.compile(rf"step-[0-9]+(-.*)?{re.escape(suffix)}")
        files = [file for file in (self.path / folder).glob("*") if names.fullmatch(file.name) and file.is_file()]
        return sorted(files, key=lambda file: (file_step(file), file.name))


def write_episode_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the columns of `envgym.runs.episodes` as one Parquet file."""
    import pyarrow as pa  # heavy: loaded where it is needed
    import pyarrow.parquet as pq

    assert all(row.keys() <= COLUMNS.keys() for row in rows), "every column is declared"
    path.parent.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(list(COLUMNS.items())))
    pq.write_table(table, sink, compression="zstd", row_group_size=_ROW_GROUP_SIZE)
    write_atomic(path, sink.getvalue().to_pybytes())


def read_episode_table(path: Path) -> list[dict[str, Any]]:
    """Read what `write_episode_table` wrote. Raises: RunError: it is none, or one of other columns."""
    rows: list[dict[str, Any]] = _read_table(path).to_pylist()
    return rows


def file_step(file: Path) -> int:
    """Return the step in a name such as `step-000012-train.parquet`."""
    return int(file.name.split("-")[1].split(".")[0])


def label_of(file: Path) -> str:
    """Return the label in the name of a file, as `file_label` wrote it."""
    return file.stem.partition("-")[2].partition("-")[2]


def file_label(label: str) -> str:
    """Return how a label is written in the name of a file."""
    return label.replace("/", "_")


def check_labels(names: Iterable[str], *, where: str) -> None:
    """See that every env of a mixture has a name, and files, of its own. Raises: SettingsError: two have not."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(file_label(name))) is not None:
            got = name if name == other else f"{other} and {name}, whose files have one name"
            raise SettingsError.of("env name", "be unique", got, where=where, do="give one of them another `name`")
        seen[file_label(name)] = name


def _read_table(file: Path, **options: Any) -> Any:  # a pyarrow.Table, and what choose its rows and columns
    import pyarrow.parquet as pq  # heavy: loaded where it is needed

    with reading(str(file)):
        return pq.read_table(file, **options)


def _metrics_line(row: Mapping[str, float]) -> str:
    finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
    return json.dumps(finite, allow_nan=False) + "\n"
