"""Which episodes a table shows, in which order, and the groups they belong to: masks and sorts over an index."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from envgym.viewer.episode_files import Ints
from envgym.viewer.index import EpisodeColumns

Mask = npt.NDArray[np.bool_]
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


def find_episodes(columns: EpisodeColumns, query: EpisodeQuery) -> Ints:
    """Return the positions in `columns` that fit, sorted; episodes without the value that sorts come last."""
    found = np.flatnonzero(_mask(columns, query))
    if not query.sort:
        return found[::-1] if query.descending else found
    if query.sort in ("task", "ending"):
        values, codes = columns.coded["task_id" if query.sort == "task" else "ending"]
        ranks = np.argsort(np.argsort(np.array(values, dtype=str), kind="stable")) if values else np.arange(0)
        keys = ranks[codes[found]].astype(np.float64) if values else np.empty(0)
    else:
        keys = columns.numbers[query.sort][found]
    return found[np.argsort(-keys if query.descending else keys, kind="stable")]


def _mask(columns: EpisodeColumns, query: EpisodeQuery) -> Mask:
    mask = np.ones(len(columns), dtype=np.bool_)
    if query.source:
        mask &= _is(columns, "source", [query.source])
    if query.group:
        mask &= _is(columns, "group", [query.group])
    if query.task:
        mask &= _is(columns, "task_id", [name for name in columns.coded["task_id"].values if query.task in name])
    if query.ending:
        endings = columns.coded["ending"].values
        mask &= _is(columns, "ending", [name for name in endings if name.startswith(query.ending)])
    for name in NUMBERS:
        low, high = getattr(query, f"min_{name}"), getattr(query, f"max_{name}")
        if low is not None:
            mask &= columns.numbers[name] >= low
        if high is not None:
            mask &= columns.numbers[name] <= high
    if query.reward:
        mask &= np.isnan(columns.numbers["reward"]) == (query.reward == "invalid")
    for word in query.text.lower().split():
        mask &= _contains(columns, word)
    return mask


def _is(columns: EpisodeColumns, name: str, wanted: Sequence[str]) -> Mask:
    values, codes = columns.coded[name]
    chosen = set(wanted)
    allowed = np.array([value in chosen for value in values] + [False])  # the last is for what has no value
    found: Mask = allowed[codes]
    return found


def _contains(columns: EpisodeColumns, word: str) -> Mask:
    import pyarrow.compute as pc  # heavy: loaded where it is needed

    found = pc.match_substring(columns.words, word).combine_chunks()
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def episode_row(columns: EpisodeColumns, at: int) -> dict[str, Any]:  # JSON
    """Return what a table shows of an episode."""
    file, row = columns.files[columns.file[at]], int(columns.row[at])
    has_details = file.has_details
    return {
        "source": file.source,
        "step": int(columns.numbers["step"][at]),
        "tree_id": columns.tree_ids[at].as_py(),
        "leaf": int(columns.numbers["leaf"][at]),
        "env_id": _text(columns, "env_id", at),
        "task_id": _text(columns, "task_id", at),
        "group": _text(columns, "group", at),
        "ending": _text(columns, "ending", at),
        "dropped": _text(columns, "dropped", at),
        "reward": _number(columns, "reward", at),
        "advantage": _number(columns, "advantage", at),
        "turns": _number(columns, "turns", at),
        "tokens": _number(columns, "tokens", at),
        "tool_errors": _number(columns, "tool_errors", at),
        "question": file.questions[row] if has_details else "",
        "answer": file.answers[row] if has_details else "",
        "problem": file.problems.get(row, ""),
    }


def _text(columns: EpisodeColumns, name: str, at: int) -> str:
    values, codes = columns.coded[name]
    return values[codes[at]] if codes[at] >= 0 else ""


def _number(columns: EpisodeColumns, name: str, at: int) -> float | None:
    value = float(columns.numbers[name][at])
    return None if math.isnan(value) else value


# ---- groups ------------------------------------------------------------------------------------------------------


def find_groups(columns: EpisodeColumns, query: GroupQuery) -> tuple[int, list[dict[str, Any]]]:  # JSON
    """Return how many groups fit, and those of the page: each with its mean reward and the spread of valid rewards."""
    codes, reward = columns.coded["group"].codes, columns.numbers["reward"]
    num_groups = len(columns.coded["group"].values)
    valid = ~np.isnan(reward) & (codes >= 0)
    episodes = np.bincount(codes[codes >= 0], minlength=num_groups)
    num_valid = np.bincount(codes[valid], minlength=num_groups)
    low, high = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(low, codes[valid], reward[valid])
    np.maximum.at(high, codes[valid], reward[valid])
    with np.errstate(invalid="ignore"):
        mean = np.bincount(codes[valid], weights=reward[valid], minlength=num_groups) / np.where(
            num_valid, num_valid, np.nan
        )
        spread = np.where(num_valid > 0, high - low, np.nan)
    first = np.full(num_groups, len(columns), dtype=np.int64)
    np.minimum.at(first, codes[codes >= 0], np.flatnonzero(codes >= 0))
    kept = np.flatnonzero(_group_mask(columns, query, first, spread))
    keys = {"mean": mean, "spread": spread, "episodes": episodes, "step": columns.numbers["step"][first]}
    if query.sort:
        values = keys[query.sort][kept].astype(np.float64)
        kept = kept[np.argsort(-values if query.descending else values, kind="stable")]
    return len(kept), [
        {
            "group": columns.coded["group"].values[code],
            "source": _text(columns, "source", first[code]),
            "step": int(columns.numbers["step"][first[code]]),
            "task_id": _text(columns, "task_id", first[code]),
            "dropped": _text(columns, "dropped", first[code]),
            "episodes": int(episodes[code]),
            "valid": int(num_valid[code]),
            "mean": None if math.isnan(mean[code]) else float(mean[code]),
            "spread": None if math.isnan(spread[code]) else float(spread[code]),
        }
        for code in kept[query.offset : query.offset + query.limit].tolist()
    ]


def _group_mask(columns: EpisodeColumns, query: GroupQuery, first: Ints, spread: npt.NDArray[np.float64]) -> Mask:
    mask = first < len(columns)
    if query.source:
        mask &= _is(columns, "source", [query.source])[first]
    if query.task:
        names = [name for name in columns.coded["task_id"].values if query.task in name]
        mask &= _is(columns, "task_id", names)[first]
    if query.spread:
        mask &= (spread > 0) if query.spread == "some" else (spread == 0)
    return mask
