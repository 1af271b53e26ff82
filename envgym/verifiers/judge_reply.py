r"""The score in a judge's reply, read only if the reply has one reading.

The last line states the score: `Score: 0.8`, also with Markdown marks, a word before it (`Final score`, `Rating`), a
largest value after it (`8/10`, `0.8 out of 1`, `80%`), in `\boxed{}`, `[[]]` or `<score>` tags, or as the field `score`
of a JSON object. A bare number is a score under a title such as `### Score`; else nothing says what it counts.
"""

import json
import re
from collections.abc import Iterator, Mapping

from envgym.errors import PartyFailure

Scale = tuple[float, float]
"""The lowest and the highest grade that a judge may give."""
UNIT: Scale = (0.0, 1.0)
MAX_LINE_CHARS = 300
"""A longer line states no score."""

_LABEL = r"(?:score|rating|grade)"
_WORDS = (
    r"(?:(?:so|thus|therefore|hence|my|the|a|final|overall|total|correctness|correct|equivalence|evaluation|assigned|"
    r"answer|answer's|numeric|numerical|judge|judge's|i|would|give|it|this)\b,? ){0,8}"
)
_NUMBER = r"(?P<grade>[0-9]{1,6}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})"
_TOP = r"(?: ?/ ?| (?:out )?of )(?P<top>[0-9]{1,6}(?:\.[0-9]{1,6})?)"
_END = r"(?: points?)?(?: \([^()0-9]{0,120}\))?[.!]?"
_STATEMENT = re.compile(
    rf"{_WORDS}{_LABEL}(?: ?[:=|] ?| - | is:? | of )[\"']?{_NUMBER}(?:{_TOP}|(?P<percent> ?%))?[\"']?{_END}",
    re.IGNORECASE,
)
_CLAIM = re.compile(rf"{_WORDS}{_LABEL} ?(?:[:=|]|- ).*", re.IGNORECASE)
"""A line that looks like a score, readable or not."""
_TITLE = re.compile(rf"{_WORDS}{_LABEL} ?:?", re.IGNORECASE)
"""A line that is the title of the score under it."""
_SUMMARY = re.compile(r"\b(?:final|overall|total)\b", re.IGNORECASE)
_MARKED = re.compile(
    r"(?:\\boxed ?\{|\[\[)(?P<boxed>[^{}\[\]]{1,40})(?:\}|\]\])[.!]?"
    r"|<(score|rating|grade)>(?P<tagged>[^<>]{1,40})</\2>",
    re.IGNORECASE,
)
_INNER_MARKS = (
    (re.compile(r"\\boxed ?\{([^{}]{1,40})\}"), r"\1"),
    (re.compile(r"\[\[?([^\[\]]{1,40})\]?\]"), r"\1"),
    (re.compile(r"<((?:score|rating|grade))>([^<>]{1,40})</\1>", re.IGNORECASE), r"\2"),
)
_EMPHASIS = re.compile(r"\*\*|__|[*`$]|\\\(|\\\)")
_LIST_MARK = re.compile(r"^(?:#{1,6}|>|[-•]) +")
_FENCE = re.compile(r"```[a-z]*|~~~[a-z]*")
_LAST_TOKEN = re.compile(r"(?:<[|\uff5c][A-Za-z0-9_\u2581]{1,40}[|\uff5c]>|</s>)$")
"""A special token that ends a turn, as `<|im_end|>`."""


def read_score(reply: str, scale: Scale = UNIT) -> float:
    """Return the score in [0, 1] that the end of a reply states.

    Raises: PartyFailure: it states none, one outside the scale, or different ones.
    """
    text = _LAST_TOKEN.sub("", reply.rpartition("</think>")[2].rstrip()).strip()
    score = _json_score(text, scale)
    if score is None:
        score = _line_score(text, scale)
    elif any(_stated(line, scale) != score for line in text.splitlines() if _is_claim(line.strip())):
        score = None
    if score is None:
        low, high = scale
        must = f'end with its only line "Score: X", X from {low:g} to {high:g}'
        do = "choose another judge, or correct the template"
        raise PartyFailure.of("reply of the judge", must, repr(reply[-120:]), where="LlmJudge", do=do)
    return score


def _line_score(text: str, scale: Scale) -> float | None:
    """Return the score of the last line; None: it states none, or an earlier line states another one."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not _FENCE.fullmatch(line)]
    if not lines:
        return None
    score = _stated(lines[-1], scale)
    if score is None and len(lines) > 1 and _TITLE.fullmatch(_plain(lines[-2]) or ""):
        score = _stated(f"score: {_plain(lines[-1])}", scale)
    others = [line for line in lines[:-1] if _is_claim(line) and not _TITLE.fullmatch(_plain(line) or "")]
    if _SUMMARY.search(lines[-1]):
        others = [line for line in others if _SUMMARY.search(line)]
    return score if all(_stated(line, scale) == score for line in others) else None


def _is_claim(line: str) -> bool:
    plain = _plain(line)
    return plain is not None and (_CLAIM.fullmatch(plain) is not None or _MARKED.fullmatch(line) is not None)


def _plain(line: str) -> str | None:
    if len(line) > MAX_LINE_CHARS:
        return None
    line = _LIST_MARK.sub("", _EMPHASIS.sub("", line).strip())
    if line.startswith("|") and line.endswith("|"):  # a row of a table
        line = line.strip("| ")
    for mark, inside in _INNER_MARKS:
        line = mark.sub(inside, line)
    return " ".join(line.split())


def _stated(line: str, scale: Scale) -> float | None:
    plain = _plain(line)
    if plain is None:
        return None
    marked = _MARKED.fullmatch(_EMPHASIS.sub("", line).strip())
    if marked is not None:
        plain = f"score: {(marked['boxed'] or marked['tagged']).strip()}"
    return _value(plain, scale)


def _value(statement: str, scale: Scale) -> float | None:
    """Return the score of a statement, scaled to [0, 1]; None: it is none, or its number is outside the scale."""
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        return None
    low, high = scale
    grade = float(match["grade"])
    top = 100.0 if match["percent"] else float(match["top"] or high)
    if top != high:  # another scale: it has one reading only if both begin at 0
        if low != 0.0 or top <= 0.0:
            return None
        grade = grade * high / top
    return (grade - low) / (high - low) if low <= grade <= high else None


def _json_score(text: str, scale: Scale) -> float | None:
    """Return the score of the JSON object that a reply is, or ends with; None: there is none."""
    for candidate in _objects(text):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, Mapping):
            continue
        stated = [item for name, item in value.items() if str(name).casefold() in ("score", "rating", "grade")]
        if len(stated) == 1 and isinstance(stated[0], int | float | str) and not isinstance(stated[0], bool):
            return _value(f"score: {stated[0]}".strip(), scale)
    return None


def _objects(text: str) -> Iterator[str]:
    """Yield the text of a JSON object at the end of a reply, in a fence or without one."""
    lines = text.splitlines()
    if lines and _FENCE.fullmatch(lines[-1].strip()):
        lines = lines[:-1]
    body = "\n".join(lines).rstrip()
    if body.endswith("}"):
        starts = [0] if body.startswith("{") else []
        starts += [match.end() - 1 for match in re.finditer(r"\n[ \t]*\{", body)][-1:]
        yield from (body[start:] for start in starts)
