"""Write a recorded run as a data set: data files, card and provenance, as one folder that is complete or absent."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envgym.core.tasks import Split
from envgym.errors import InvalidInput, RunError
from envgym.export.card import licence_head, size_category, write_card
from envgym.export.data_files import Format, RowWriter, complete
from envgym.export.episodes import TEST, RecordedGroup, chosen_files, num_episodes, read_groups
from envgym.export.provenance import PROVENANCE, provenance
from envgym.export.rows import NO_MESSAGES, DataKind, DataRow, RowOptions
from envgym.runs.directory import RunDirectory
from envgym.runs.files import move_into_place, write_atomic, write_json
from envgym.runtime.garbage import rare_collections

Progress = Callable[[str, int, int], object]
"""Called with a phase, the number of episodes that are done, and their total."""
_REPORTED: Final = 256
"""Episodes between two reports of progress."""
_WHERE: Final = "envgym export"


@dataclass(slots=True)
class _Contents:
    """What has been written so far."""

    files: dict[Split, RowWriter] = field(default_factory=dict)
    env_ids: dict[str, None] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    """Lowest and highest reset seed of the episodes."""
    num_episodes: int = 0
    """Episodes in the files, exported or not."""

    def add_source(self, group: RecordedGroup) -> None:
        for recorded in group.trees:
            self.env_ids[recorded.tree.env_id] = None
            seeds = [*self.seeds, recorded.tree.seed]
            self.seeds = [min(seeds), max(seeds)]


def export_data(
    run: RunDirectory,
    kind: DataKind,
    out: Path,
    options: RowOptions,
    *,
    format: Format = "parquet",
    per_task: int | None = None,
    on_progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Write the folder, and return what it holds, as JSON.

    Args:
        run: with saved episodes.
        kind: of data set.
        out: new or empty folder.
        options: which episodes, and how rows are made.
        format: of the data files.
        per_task: most rows of a task; the first are kept. None: all.
        on_progress: called while episodes are read.

    Raises: RunError: the run has no such episodes, or no row is left. InvalidInput: `out` is not empty.
    """
    with new_folder(out) as draft, rare_collections():
        contents = _write_rows(run, kind, draft, options, format, per_task, on_progress)
        if not contents.files:
            raise _nothing_left(run, options, contents.num_episodes)
        parts = [
            {"split": split.value, "rows": file.num_rows, "turns": file.num_turns, "file": f"data/{file.path.name}"}
            for split, file in contents.files.items()
        ]
        record = provenance(
            run,
            kind.name,
            env_ids=contents.env_ids,
            episode_seeds=contents.seeds,
            choices=_choices(kind, options, per_task),
            splits=parts,
            left_out=dict(options.left_out),
        )
        write_json(draft / PROVENANCE, record)
        write_atomic(draft / "README.md", _card(kind, record))
    return {
        "folder": str(out),
        "kind": kind.name,
        "rows": {part["split"]: part["rows"] for part in parts},
        "turns": sum(file.num_turns for file in contents.files.values()),
        "left_out": dict(options.left_out),
    }


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that gets the name `out` if the block ends without an error; otherwise nothing is left of it.

    Raises: InvalidInput: there is something at `out`, or it is below a file.
    """
    is_free = not out.is_symlink() and (not out.exists() or (out.is_dir() and not any(out.iterdir())))
    do = "choose another folder, or delete it yourself"
    InvalidInput.unless(is_free, "OUT", "be new or an empty folder", str(out), where=_WHERE, do=do)
    parent = out.absolute().parent
    new_parents = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    above = new_parents[-1].parent if new_parents else parent
    InvalidInput.unless(above.is_dir(), "OUT", "be in a folder", f"{above}, a file", where=_WHERE, do=do)
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=parent, prefix=f".{out.name}."))
    try:
        yield draft
        draft.chmod(0o755)
        move_into_place(draft, out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):  # something else has been put there
            for folder in new_parents:
                folder.rmdir()
        raise


# ---- rows ------------------------------------------------------------------------------------------------------------


def _write_rows(
    run: RunDirectory,
    kind: DataKind,
    folder: Path,
    options: RowOptions,
    format: Format,
    per_task: int | None,
    on_progress: Progress,
) -> _Contents:
    paths = chosen_files(run, options.choice)
    total = num_episodes(paths)
    contents, num_of_task = _Contents(num_episodes=total), Counter[str]()
    columns = {name: column_type for name, (column_type, _) in kind.columns.items()}
    with ExitStack() as stack:
        done = 0
        for group in read_groups(paths, options.choice, options.left_out, with_tokens=kind.needs_tokens):
            rows = list(_limited(kind.rows(group, options), per_task, num_of_task, options.left_out))
            for row in rows:
                if row.split not in contents.files:
                    path = folder / "data" / f"{row.split.value}.{format}"
                    contents.files[row.split] = RowWriter(path, columns, format)
                    stack.callback(contents.files[row.split].abandon)
                contents.files[row.split].add(row)
            if rows:
                contents.add_source(group)
            before, done = done, done + sum(len(recorded.tree.leaves) for recorded in group.trees)
            if done // _REPORTED > before // _REPORTED:
                on_progress("export", min(done, total - 1), total)
        complete(list(contents.files.values()))
    on_progress("export", total, total)
    return contents


def _limited(
    rows: Iterator[DataRow], per_task: int | None, num_of_task: Counter[str], left_out: Counter[str]
) -> Iterator[DataRow]:
    for row in rows:
        if per_task is not None and num_of_task[row.task_key] >= per_task:
            left_out[f"rows beyond {per_task} of a task"] += 1
            continue
        num_of_task[row.task_key] += 1
        yield row


def _nothing_left(run: RunDirectory, options: RowOptions, num_episodes: int) -> RunError:
    counts = options.left_out.most_common()
    reasons = ", ".join(f"{number} {reason}" for reason, number in counts)
    got = f"none of {num_episodes} episodes" + (f": {reasons}" if reasons else "")
    remedies = {
        TEST: "add --include-test to export test tasks",
        NO_MESSAGES: "export the kind tokens, which needs no messages, or record the run again",
    }
    do = remedies.get(counts[0][0] if counts else "", "choose other steps, another --label, --only or --min-margin")
    return RunError.of("export", "have at least one row", got, where=str(run.path), do=do)


# ---- card ------------------------------------------------------------------------------------------------------------


def _choices(kind: DataKind, options: RowOptions, per_task: int | None) -> dict[str, Any]:
    choice = options.choice
    values: dict[str, Any] = {
        "label": choice.label,
        "steps": f"{choice.first_step} to {'the last' if choice.last_step is None else choice.last_step}",
        "only": choice.only,
        "success_at": choice.success_at,
        "per_task": per_task,
        "include_test": choice.includes_test,
        "redacted": options.redact is not None,
    }
    own = {"min_margin": options.min_margin, "pairs": options.pairs, "span": options.span}
    return values | ({name: own[name] for name in own if name in kind.options})


def _card(kind: DataKind, record: Mapping[str, Any]) -> str:
    num_rows = sum(part["rows"] for part in record["splits"])
    head = {
        **licence_head([env["licence"] for env in record["envs"]]),
        "task_categories": ["text-generation"],
        "tags": ["envgym", "reinforcement-learning", "agents", kind.name],
        "size_categories": [size_category(num_rows)],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": part["split"], "path": part["file"]} for part in record["splits"]],
            }
        ],
    }
    values = {
        "title": f"{record['run']['name']}: {kind.name}",
        "kind": kind,
        "model": record["model"],
        "parts": record["splits"],
        "includes_test": any(part["split"] == Split.TEST.value for part in record["splits"]),
        "choices": [(name, value) for name, value in record["choices"].items() if value is not None],
        "left_out": record["left_out"].items(),
        "columns": [
            {"name": name, "type": column_type, "text": text} for name, (column_type, text) in kind.columns.items()
        ],
        "envs": record["envs"],
    }
    return write_card("dataset_card.md.jinja", values, head)
