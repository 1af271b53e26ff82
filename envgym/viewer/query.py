"""Which episodes a table shows, in which order, and the groups they belong to: conditions and sorts over an index."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from envgym.viewer.episode_files import Table
from envgym.viewer.index import EpisodeColumns

Number = Literal["reward", "advantage", "turns", "tokens", "tool_errors", "step"]
NUMBERS: tuple[Number, ...] = ("reward", "advantage", "turns", "tokens", "tool_errors", "step")
MAX_ROWS = 200
"""Of one page of a table."""


class EpisodeQuery(BaseModel):
    """What a table of episodes shows; a field at its default asks for nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field("", max_length=500)
    """Words that all stand in the question, the answer, the ids, the ending or the reason."""
    task: str = Field("", max_length=500)
    """A part of the task's id."""
    source: str = Field("", max_length=500)
    """`train`, or the label of an evaluation."""
    ending: str = Field("", max_length=50)
    """An ending, or the beginning of several, such as ERROR."""
    group: str = Field("", max_length=1000)
    """The name of a group."""
    reward: Literal["", "valid", "invalid"] = ""
    min_reward: float | None = None
    max_reward: float | None = None
    min_advantage: float | None = None
    max_advantage: float | None = None
    min_turns: float | None = None
    max_turns: float | None = None
    min_tokens: float | None = None
    max_tokens: float | None = None
    min_tool_errors: float | None = None
    max_tool_errors: float | None = None
    min_step: float | None = None
    max_step: float | None = None
    sort: Literal["", "task", "ending", "reward", "advantage", "turns", "tokens", "tool_errors", "step"] = ""
    """Empty: in the order in which they were recorded."""
    descending: bool = False
    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=MAX_ROWS)


class GroupQuery(BaseModel):
    """What a table of groups shows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field("", max_length=500)
    task: str = Field("", max_length=500)
    spread: Literal["", "some", "none"] = ""
    """Groups whose valid rewards differ, or those whose rewards are all equal."""
    sort: Literal["", "mean", "spread", "episodes", "step"] = ""
    descending: bool = False
    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=MAX_ROWS)


def find_episodes(columns: EpisodeColumns, query: EpisodeQuery) -> npt.NDArray[np.int64]:
    """Return the positions in `columns` that fit, sorted; episodes without the value that sorts come last."""
    table = columns.table
    conditions = [
        pc.equal(table[name], value) for name, value in (("source", query.source), ("group", query.group)) if value
    ]
    if query.task:
        conditions.append(pc.match_substring(table["task_id"], query.task))
    if query.ending:
        conditions.append(pc.starts_with(table["ending"], query.ending))
    for name in NUMBERS:
        low, high = getattr(query, f"min_{name}"), getattr(query, f"max_{name}")
        if low is not None:
            conditions.append(pc.greater_equal(table[name], low))
        if high is not None:
            conditions.append(pc.less_equal(table[name], high))
    if query.reward:
        is_invalid = pc.is_null(table["reward"])
        conditions.append(is_invalid if query.reward == "invalid" else pc.invert(is_invalid))
    conditions += [pc.match_substring(table["words"], word) for word in query.text.lower().split()]
    positions = pa.array(np.arange(len(table)))
    if conditions:
        positions = pc.indices_nonzero(reduce(pc.and_, conditions))
    if query.sort:
        keys = table["task_id" if query.sort == "task" else query.sort].take(positions)
        positions = positions.take(_order(keys, descending=query.descending))
    elif query.descending:
        positions = positions[::-1]
    return np.asarray(positions, dtype=np.int64)


def _order(keys: Table, *, descending: bool) -> Table:
    return pc.sort_indices(keys, sort_keys=[("", "descending" if descending else "ascending")])


def episode_rows(columns: EpisodeColumns, positions: Sequence[int]) -> list[dict[str, Any]]:  # JSON
    """Return the rows of a table of episodes."""
    rows: list[dict[str, Any]] = columns.table.drop_columns("words").take(pa.array(positions, pa.int64())).to_pylist()
    return rows


# ---- groups ------------------------------------------------------------------------------------------------------

_GROUP_COLUMNS = {
    "group": "group", "source": "source_first", "step": "step_first", "task_id": "task_id_first",
    "dropped": "dropped_first", "episodes": "count_all", "valid": "reward_count", "mean": "reward_mean",
}  # fmt: skip
"""Column of the table of groups -> its name after the aggregation."""


def find_groups(columns: EpisodeColumns, query: GroupQuery) -> tuple[int, list[dict[str, Any]]]:  # JSON
    """Return how many groups fit, and those of the page: each with its mean reward and the spread of valid rewards."""
    firsts = [(name, "first") for name in ("source", "step", "task_id", "dropped")]
    rewards = [("reward", aggregate) for aggregate in ("count", "mean", "min", "max")]
    table = columns.table.select(["group", "reward", *(name for name, _ in firsts)])
    grouping = table.filter(pc.not_equal(table["group"], "")).group_by("group", use_threads=False)  # keeps the order
    totals = grouping.aggregate([*firsts, *rewards, ([], "count_all")])
    spread = pc.subtract(totals["reward_max"], totals["reward_min"])
    groups = pa.table({**{name: totals[column] for name, column in _GROUP_COLUMNS.items()}, "spread": spread})
    if query.source:
        groups = groups.filter(pc.equal(groups["source"], query.source))
    if query.task:
        groups = groups.filter(pc.match_substring(groups["task_id"], query.task))
    if query.spread:
        groups = groups.filter((pc.greater if query.spread == "some" else pc.equal)(groups["spread"], 0))
    if query.sort:
        groups = groups.take(_order(groups[query.sort], descending=query.descending))
    return len(groups), groups.slice(query.offset, query.limit).to_pylist()
