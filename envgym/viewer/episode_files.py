"""The columns of a file of episodes: the light ones at once, what stands in the trees alone in a second pass."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from envgym.core.serialize import action_from_json, message_from_json, segment_from_json
from envgym.errors import EnvgymError, RunError
from envgym.report.text import action_line, question_line
from envgym.runs import reading

_INTEGERS: Final = ("step", "leaf", "turns", "sampled_tokens")
CODED: Final = ("env_id", "task_id", "ending", "dropped")
"""Text columns with few values."""
_LIGHT: Final = (*_INTEGERS, *CODED, "tree_id", "reward", "invalid_reason", "advantages")
"""All but the trees."""
_BATCH_ROWS: Final = 64
"""Rows of a file whose trees are in memory at a time."""
UNKNOWN: Final = -1
"""`tool_errors` of a row whose tree was not read yet, or cannot be read."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Strings = Any  # a pyarrow array of strings; pyarrow has no types


class CodedColumn(NamedTuple):
    """A column of few values."""

    values: list[str]
    codes: Ints
    """[N] index in `values`; -1 where there is none."""


@dataclass(kw_only=True)
class EpisodeFile:
    """The columns of one Parquet file, [N] each: a row is an episode, in the order of the file."""

    path: Path
    source: str
    """`TRAIN`, or the label of the evaluation."""
    numbers: Mapping[str, Floats]
    """`step`, `leaf`, `turns`, `tokens`; `reward` and `advantage`, NaN where there is none."""
    coded: Mapping[str, CodedColumn]
    """Of each name in `CODED`, and of `group`."""
    tree_ids: Strings
    words: Strings
    """What a search looks at, in lower case."""
    tool_errors: Ints
    """`UNKNOWN` before `read_details`."""
    questions: list[str] = field(default_factory=list)
    """Empty before `read_details`."""
    answers: list[str] = field(default_factory=list)
    """Empty before `read_details`."""
    problems: dict[int, str] = field(default_factory=dict)
    """Row -> why its tree cannot be read."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tool_errors)

    @property
    def has_details(self) -> bool:
        """Whether `read_details` was here."""
        return len(self.questions) == len(self)


def read_light(path: Path, source: str) -> EpisodeFile:
    """Read the light columns of a file. Raises: RunError: it is no Parquet file, or lacks a column."""
    import pyarrow as pa  # heavy: loaded where it is needed
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with reading(str(path)):
        table = pq.read_table(path, columns=list(_LIGHT)).combine_chunks()
        missing = [name for name in _LIGHT if name not in table.column_names]
        do = "restore it, or move it to another folder"
        must, got = f"have the columns {', '.join(_LIGHT)}", f"none named {', '.join(missing)}"
        RunError.unless(not missing, "episode file", must, got, where=str(path), do=do)
        numbers = {name: table[name].fill_null(0).to_numpy().astype(np.float64) for name in _INTEGERS}
        numbers["tokens"] = numbers.pop("sampled_tokens")
        numbers["reward"] = table["reward"].cast("float64").to_numpy().astype(np.float64)
        numbers["advantage"] = np.array([mean_advantage(text) for text in table["advantages"].to_pylist()], dtype=float)
        prompt = pc.replace_substring_regex(table["tree_id"], pattern="/[^/]*$", replacement="")
        group = pc.binary_join_element_wise(pa.scalar(source), table["step"].cast("string"), prompt, "/")
        texts = [table[name].fill_null("") for name in ("task_id", "tree_id", "ending", "invalid_reason")]
        return EpisodeFile(
            path=path,
            source=source,
            numbers=numbers,
            coded={**{name: _coded(table[name]) for name in CODED}, "group": _coded(group)},
            tree_ids=_joined(table["tree_id"]),
            words=_joined(pc.utf8_lower(pc.binary_join_element_wise(*texts, "\n"))),
            tool_errors=np.full(len(table), UNKNOWN, dtype=np.int64),
        )


def _joined(column: Any) -> Strings:  # a pyarrow.ChunkedArray
    chunks = column.combine_chunks()
    return chunks.chunk(0) if hasattr(chunks, "chunk") else chunks


def _coded(column: Any) -> CodedColumn:  # a pyarrow.ChunkedArray
    encoded = _joined(column.dictionary_encode())
    return CodedColumn(encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy().astype(np.int64))


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

    question: str
    answer: str
    tool_errors: int


_BROKEN = RowDetails("", "", UNKNOWN)


def read_details(file: EpisodeFile, pause: Callable[[], None] = lambda: None) -> None:
    """Read the trees of a file, `_BATCH_ROWS` at a time; a row whose tree is broken gets a sentence instead.

    Args:
        file: whose `tool_errors`, `questions`, `answers`, `words` and `problems` are set.
        pause: called before each batch.
    """
    import pyarrow as pa  # heavy: loaded where it is needed
    import pyarrow.compute as pc

    found = list(_details(file, pause))
    more = pa.array([f"{question}\n{answer}" for question, answer, _ in found], pa.string())
    file.words = pc.binary_join_element_wise(file.words, pc.utf8_lower(more), "\n")
    file.tool_errors = np.array([details.tool_errors for details in found], dtype=np.int64)
    file.answers = [details.answer for details in found]
    file.questions = [details.question for details in found]


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
            problem = problem or (str(error) if isinstance(error, EnvgymError) else f"{where}: {error}")
            file.problems[row] = problem
            yield _BROKEN


def details_of(tree: Mapping[str, Any], leaf: int) -> RowDetails:
    """Return what a tree's JSON says of the episode that ended at `leaf`, without building the tree."""
    nodes = tree["nodes"]
    outcomes: list[Mapping[str, Any]] = []
    at: int | None = leaf
    while at is not None:
        if "outcome" in nodes[at]:
            outcomes.append(nodes[at]["outcome"])
        at = nodes[at]["parent"]
    messages = [message_from_json(item) for item in tree.get("messages", ())[-1:]]
    prompt = [segment_from_json(item) for item in nodes[0]["segments"]]
    return RowDetails(
        question=question_line(messages, prompt),
        answer=action_line(action_from_json(outcomes[0]["action"])) if outcomes else "",
        tool_errors=sum(outcome["tool_errors"] for outcome in outcomes),
    )


def _trees(path: Path) -> Iterator[tuple[str, int, str | None]]:
    """Yield tree id, leaf and tree of each row."""
    import pyarrow.parquet as pq  # heavy: loaded where it is needed

    names = ("tree_id", "leaf", "tree")
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
            yield from zip(*(batch[name].to_pylist() for name in names), strict=True)


def read_tree_rows(file: EpisodeFile, row: int) -> Sequence[Mapping[str, Any]]:
    """Return the rows of the tree that a row belongs to, all columns; only row groups with some of them are read.

    Raises: RunError: the file cannot be read any more.
    """
    import pyarrow.parquet as pq  # heavy: loaded where it is needed

    wanted = file.tree_ids[row].as_py()
    first, last = row, row
    while first > 0 and file.tree_ids[first - 1].as_py() == wanted:
        first -= 1
    while last + 1 < len(file) and file.tree_ids[last + 1].as_py() == wanted:
        last += 1
    with reading(str(file.path)):
        try:
            with pq.ParquetFile(file.path) as parquet:
                sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
                starts = [sum(sizes[:i]) for i in range(len(sizes))]
                groups = [i for i, start in enumerate(starts) if start <= last and start + sizes[i] > first]
                start = starts[groups[0]]
                rows: list[dict[str, Any]] = (
                    parquet.read_row_groups(groups).slice(first - start, last - first + 1).to_pylist()
                )
        except OSError as error:
            do = "restore it, or reload the page if the run goes on"
            raise RunError.of("episode file", "be readable", str(error), where=str(file.path), do=do) from error
    return rows
