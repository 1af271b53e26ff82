"""Long episodes in parts: a page gets the beginning of every long text, and asks for the rest piece by piece."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from envgym.errors import InvalidInput
from envgym.report.data import TOKEN_COLUMNS

Json = dict[str, Any]
MAX_SEGMENT_TOKENS: Final = 1_500
"""Of a segment at a time."""
MAX_TOKENS: Final = 12_000
"""Of an episode before anything is asked for; later segments are empty until they are."""
MAX_CHARACTERS: Final = 12_000
"""Of a text at a time."""
PartField = Literal["segment", "text", "action", "observation"]
_TOKEN_COLUMNS: Final = ("token_ids", "token_strings", *TOKEN_COLUMNS)


def clip_episode(episode: Mapping[str, Any]) -> Json:
    """Return an episode's JSON with every segment and text cut; `num_tokens` and `num_characters` tell the whole."""
    left = [MAX_TOKENS]
    return {
        **episode,
        "prompt": [_clip_segment(segment, left) for segment in episode["prompt"]],
        "messages": [{**message, **_clip_text(message, "text")} for message in episode["messages"]],
        "turns": [clip_turn(turn, left) for turn in episode["turns"]],
    }


def clip_turn(turn: Mapping[str, Any], left: list[int] | None = None) -> Json:
    """Return a turn's JSON, cut; `left` holds how many tokens the page still takes, and is lowered."""
    left = [MAX_TOKENS] if left is None else left
    return {
        **turn,
        "segments": [_clip_segment(segment, left) for segment in turn["segments"]],
        **_clip_text(turn, "action"),
        **_clip_text(turn, "observation"),
    }


def _clip_segment(segment: Mapping[str, Any], left: list[int]) -> Json:
    size = min(MAX_SEGMENT_TOKENS, left[0])
    left[0] -= min(size, len(segment["token_ids"]))
    return {**slice_segment(segment, 0, size), "num_tokens": len(segment["token_ids"])}


def slice_segment(segment: Mapping[str, Any], start: int, size: int = MAX_SEGMENT_TOKENS) -> Json:
    """Return the JSON of some of a segment's tokens."""
    return {**segment, **{name: segment[name][start : start + size] for name in _TOKEN_COLUMNS}}


def _clip_text(record: Mapping[str, Any], name: str) -> Json:
    return {name: record[name][:MAX_CHARACTERS], f"{name}_characters": len(record[name])}


def part_of(episode: Mapping[str, Any], *, turn: int, segment: int, field: PartField, start: int) -> Json:
    """Return the next piece of an episode's JSON.

    Args:
        episode: whole.
        turn: index of the turn; -1: the prompt, or its messages.
        segment: index of the segment or message; read where `field` is `segment` or `text`.
        field: `segment`, or the text: `action`, `observation`, `text`.
        start: tokens or characters that the page has.

    Raises: InvalidInput: the episode has no such part.
    """
    where = f"turn {turn}, {field} {segment}"
    try:
        record = episode["turns"][turn] if turn >= 0 else {"segments": episode["prompt"], "texts": episode["messages"]}
        if field == "segment":
            return slice_segment(record["segments"][segment], start)
        text = record["texts"][segment]["text"] if field == "text" else record[field]
    except LookupError as error:
        do = "reload the page"
        raise InvalidInput.of("part", "be one of the episode", where, where="part of an episode", do=do) from error
    return {"text": text[start : start + MAX_CHARACTERS]}
