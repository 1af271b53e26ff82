"""The columns of a file of episodes: the light ones at once, what stands in the trees alone in a second pass."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from envgym.core.json_types import well_formed
from envgym.core.serialize import action_from_json, message_from_json, segment_from_json
from envgym.errors import EnvgymError, RunError
from envgym.report.text import action_line, question_line
from envgym.runs.directory import reading

_INTEGERS: Final = ("step", "leaf", "turns")
_TEXTS: Final = ("env_id", "task_id", "ending", "dropped")
_LIGHT: Final = (*_INTEGERS, *_TEXTS, "tree_id", "reward", "sampled_tokens", "invalid_reason", "advantages")
"""All but the trees."""
_DETAILS: Final = {"question": pa.string(), "answer": pa.string(), "problem": pa.string(), "tool_errors": pa.int64()}
SCHEMA: Final = pa.schema({
    "source": pa.string(), **dict.fromkeys((*_INTEGERS, "tokens"), pa.int64()), **dict.fromkeys(_TEXTS, pa.string()),
    "tree_id": pa.string(), "group": pa.string(), "reward": pa.float64(), "advantage": pa.float64(),
    "words": pa.string(), **_DETAILS,
})  # fmt: skip
"""Columns of a file in memory; a text is empty and a number null where there is none, or is not read yet.

`source` is `TRAIN`, or the label of the evaluation; `words` is what a search looks at, in lower case; `problem` is why
the tree of the row cannot be read.
"""
_BATCH_ROWS: Final = 64
"""Rows of a file whose trees are in memory at a time."""
_SIZED_ROWS: Final = 8192
MAX_LIGHT_BYTES: Final = 1 << 30
"""Of the light columns of one file, when they are unfolded."""
MAX_TREE_BYTES: Final = 256 << 20
"""Of the JSON of one tree."""
MAX_NODES: Final = 20_000
"""Of a tree that is shown."""
_MAX_TOOL_ERRORS: Final = 1 << 31
_FITS: Final = f"have at most {MAX_LIGHT_BYTES:,} bytes of columns without trees"

Table = Any  # pyarrow has no types


@dataclass(kw_only=True)
class EpisodeFile:
    """One Parquet file; a row is an episode, in the order of the file."""

    path: Path
    source: str
    table: Table
    """Of `SCHEMA`."""
    has_details: bool = False
    """Whether `read_details` has filled in what stands in the trees."""

    def __len__(self) -> int:
        return len(self.table)


def read_light(path: Path, source: str) -> EpisodeFile:
    """Read the light columns of a file. Raises: RunError: it is no Parquet file, or lacks a column."""
    with reading(str(path)):
        check_size(path, _LIGHT)
        table = pq.read_table(path, columns=list(_LIGHT)).combine_chunks()
        missing = [name for name in _LIGHT if name not in table.column_names]
        do = "restore it, or move it to another folder"
        must, got = f"have the columns {', '.join(_LIGHT)}", f"none named {', '.join(missing)}"
        RunError.unless(not missing, "episode file", must, got, where=str(path), do=do)
        try:
            return EpisodeFile(path=path, source=source, table=_light_columns(table, source))
        except pa.ArrowNotImplementedError as error:  # a column of another type
            raise TypeError(str(error)) from error


def _light_columns(table: Table, source: str) -> Table:
    prompt = pc.replace_substring_regex(table["tree_id"], pattern="/[^/]*$", replacement="")
    group = pc.binary_join_element_wise(pa.scalar(source), table["step"].cast("string"), prompt, "/")
    texts = [table[name].fill_null("") for name in ("task_id", "tree_id", "ending", "invalid_reason")]
    rewards = table["reward"].cast("float64").to_numpy()
    columns = {
        **{name: table[name].fill_null(0) for name in _INTEGERS},
        **{name: table[name].fill_null("") for name in _TEXTS},
        "source": pa.repeat(source, len(table)),
        "tokens": table["sampled_tokens"].fill_null(0),
        "tree_id": table["tree_id"],
        "group": group.fill_null(""),
        "reward": pa.array(rewards, from_pandas=True),  # in which NaN is null
        "advantage": pa.array(map(mean_advantage, table["advantages"].to_pylist()), pa.float64(), from_pandas=True),
        "words": pc.utf8_lower(pc.binary_join_element_wise(*texts, "\n")),
        **{name: pa.nulls(len(table), kind).fill_null("") for name, kind in _DETAILS.items() if name != "tool_errors"},
        "tool_errors": pa.nulls(len(table), pa.int64()),
    }
    return pa.table(columns, SCHEMA)


def check_size(path: Path, columns: Sequence[str]) -> None:
    """Check that columns of a file fit into memory, before they are unfolded; a few bytes may stand for gigabytes.

    Text is read as a dictionary, in which every value stands once, and its lengths are added up by row.

    Raises: RunError: they are too large, or the file is no regular one.
    """
    do = "restore it, or move it to another folder"
    RunError.unless(path.is_file(), "episode file", "be a regular file", "another", where=str(path), do=do)
    with pq.ParquetFile(path) as file:
        names = [name for name in columns if name in file.schema_arrow.names]
        texts = [name for name in names if pa.types.is_string(file.schema_arrow.field(name).type)]
        meta = file.metadata
        parts = [meta.row_group(i).column(j) for i in range(meta.num_row_groups) for j in range(meta.num_columns)]
        size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema in names)
        _check_bytes(size + meta.num_rows * len(names), path)
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        total = 0
        for batch in file.iter_batches(batch_size=_SIZED_ROWS, columns=texts):
            for column in batch.columns:
                lengths = pc.binary_length(column.dictionary).cast("int64")
                total += pc.sum(lengths.take(column.indices)).as_py() or 0
            _check_bytes(total, path)


def _check_bytes(size: int, path: Path) -> None:
    do = "move it to another folder, or write it with fewer episodes"
    RunError.unless(size <= MAX_LIGHT_BYTES, "episode file", _FITS, f"{size:,}", where=str(path), do=do)


def mean_advantage(text: str | None) -> float:
    """Return the mean over the nodes of an episode's path below the root; NaN where it was not trained on."""
    if not text:
        return math.nan
    try:
        entries = json.loads(text)
        values = [value for entry in entries[1:] for value in (entry if isinstance(entry, list) else [entry])]
        return float(sum(values) / len(values)) if values else math.nan
    except (ValueError, TypeError):
        return math.nan


# ---- details -----------------------------------------------------------------------------------------------------


class RowDetails(NamedTuple):
    """What the tree of an episode says of it."""

    question: str = ""
    answer: str = ""
    problem: str = ""
    tool_errors: int | None = None


def read_details(file: EpisodeFile, pause: Callable[[], None] = lambda: None) -> None:
    """Read the trees of a file, `_BATCH_ROWS` at a time; a row whose tree is broken gets a sentence instead.

    Args:
        file: whose columns of details, and `words`, are set.
        pause: called before each batch.
    """
    rows = list(_details(file, pause))
    columns = {
        name: pa.array([getattr(row, name) for row in rows], SCHEMA.field(name).type) for name in RowDetails._fields
    }
    more = [pc.utf8_lower(columns[name]) for name in ("question", "answer")]
    old = {name: file.table[name] for name in SCHEMA.names}
    columns["words"] = pc.binary_join_element_wise(old["words"], *more, "\n")
    file.table, file.has_details = pa.table({**old, **columns}, SCHEMA), True


def _details(file: EpisodeFile, pause: Callable[[], None]) -> Iterator[RowDetails]:
    tree: Mapping[str, Any] | None = None
    problem = ""
    rows = iter(_trees(file.path))
    for row in range(len(file)):
        where = f"{file.path}, row {row}"
        if row % _BATCH_ROWS == 0:
            pause()
        try:
            with reading(where):
                tree_id, leaf, text = next(rows)
                if text is not None:
                    tree, problem = None, ""
                    tree = json.loads(text)
                if tree is None or tree["id"] != tree_id:
                    do = "restore the file, or move it to another folder"
                    raise RunError.of("episode", "have its tree in its row or above", "none", where=where, do=do)
                yield details_of(tree, leaf)
        except (EnvgymError, OSError, StopIteration) as error:
            problem = problem or well_formed(str(error) if isinstance(error, EnvgymError) else f"{where}: {error}")
            yield RowDetails(problem=problem)


def details_of(tree: Mapping[str, Any], leaf: int) -> RowDetails:
    """Return the details of the episode that ended at `leaf` from a tree's JSON, without building the tree."""
    nodes = tree["nodes"]
    outcomes: list[Mapping[str, Any]] = []
    at: int | None = leaf
    for _ in nodes:  # a path is no longer than its tree, unless parents go in a circle
        if at is None:
            break
        if "outcome" in nodes[at]:
            outcomes.append(nodes[at]["outcome"])
        at = nodes[at]["parent"]
    messages = [message_from_json(item) for item in tree.get("messages", ())[-1:]]
    prompt = [segment_from_json(item) for item in nodes[0]["segments"]]
    tool_errors = sum(outcome["tool_errors"] for outcome in outcomes)
    if not (isinstance(tool_errors, int) and 0 <= tool_errors < _MAX_TOOL_ERRORS):
        raise ValueError(f"{tool_errors} is no number of tool errors")
    return RowDetails(
        question=well_formed(question_line(messages, prompt)),
        answer=well_formed(action_line(action_from_json(outcomes[0]["action"]))) if outcomes else "",
        tool_errors=tool_errors,
    )


def _trees(path: Path) -> Iterator[tuple[str, int, str | None]]:
    with pq.ParquetFile(path, read_dictionary=["tree"]) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["tree_id", "leaf", "tree"]):
            ids, leaves, trees = batch["tree_id"].to_pylist(), batch["leaf"].to_pylist(), batch["tree"]
            for row, (tree_id, leaf) in enumerate(zip(ids, leaves, strict=True)):
                yield tree_id, leaf, _text_of(trees[row], path)  # one at a time: they may be large


def _text_of(value: Any, path: Path) -> str | None:  # a pyarrow.DictionaryScalar
    """Return a text of a column that was read as a dictionary. Raises: RunError: it is too long."""
    if not value.is_valid:
        return None
    text = value.value
    _check_tree_bytes(text.as_buffer().size, "tree", path)
    string: str = text.as_py()
    return string


def _check_tree_bytes(size: int, what: str, path: Path) -> None:
    do, must = "move the file to another folder", f"have at most {MAX_TREE_BYTES:,} bytes"
    RunError.unless(size <= MAX_TREE_BYTES, what, must, f"{size:,}", where=str(path), do=do)


def read_tree_rows(file: EpisodeFile, row: int) -> Sequence[Mapping[str, Any]]:
    """Return the rows of the tree that a row belongs to, all columns; only row groups with some of them are read.

    Raises: RunError: the file cannot be read any more.
    """
    tree_ids = file.table["tree_id"]
    first, last = row, row
    while first > 0 and tree_ids[first - 1] == tree_ids[row]:
        first -= 1
    while last + 1 < len(file) and tree_ids[last + 1] == tree_ids[row]:
        last += 1
    with reading(str(file.path)):
        try:
            with pq.ParquetFile(file.path, read_dictionary=["tree"]) as parquet:
                sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
                starts = [sum(sizes[:i]) for i in range(len(sizes))]
                groups = [i for i, start in enumerate(starts) if start <= last and start + sizes[i] > first]
                start = starts[groups[0]]
                table = parquet.read_row_groups(groups).slice(first - start, last - first + 1)
                _check_tree_bytes(table.nbytes, "rows of a tree", file.path)
                rows: list[dict[str, Any]] = table.to_pylist()
        except OSError as error:
            do = "restore it, or reload the page if the run goes on"
            raise RunError.of("episode file", "be readable", str(error), where=str(file.path), do=do) from error
    return rows
