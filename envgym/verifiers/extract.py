r"""Where an answer stands in a text: its candidates, in order, without thoughts.

An answer may be marked by `\boxed{...}`, `<answer>...</answer>` or a line `#### ...`. A mark inside another is one
candidate, the inner text. An empty mark is skipped, except the last one. If the mark that begins last is cut off, there
is no answer. A line `#### ...` with more text after it is a Markdown heading, unless it holds a number or a letter
alone. A heading `Answer` of any level marks the rest of its line, or the paragraph under it.
"""

import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from envgym.verifiers.numbers import one_number

_SHOWN = 5


class Take(StrEnum):
    """Which of several candidate answers counts.

    The default of every verifier is ONLY: text that names several answers has not decided, and a policy that may name
    several is paid for guessing. LAST reads corrected answers as most published evaluations do.
    """

    ONLY = "only"
    """There must be one; further candidates must be right too."""
    LAST = "last"
    """The last one, as in a corrected answer, or where a chain of steps ends in the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The candidate answers of a text, or why there is none."""

    candidates: tuple[str, ...]
    """In the order of the text, single-spaced, none of them empty."""
    reason: str = ""
    """Why there is no candidate, or how many different ones there are."""

    @property
    def answer(self) -> str | None:
        """The only candidate; None if there is none, or if there are different ones."""
        return self.candidates[0] if len(set(self.candidates)) == 1 else None


Extractor = Callable[[str], Extracted]
"""Finds the candidate answers in a text; a plain function, so that verifiers can be pickled."""


def whole_answer(text: str) -> Extracted:
    """Take the whole text, stripped."""
    stripped = (without_thoughts(text) if ">" in text or "]" in text else text).strip()
    return Extracted(candidates=(stripped,)) if stripped else Extracted(candidates=(), reason="the answer is empty")


def last_line(text: str) -> Extracted:
    """Take the last line that is not empty."""
    return whole_answer(without_thoughts(text).strip().rpartition("\n")[2])


def answer_line(text: str) -> Extracted:
    """Take the rest of every line that begins with `Answer:`."""
    lines = without_thoughts(text).splitlines()
    answers = [" ".join(line[label.end() :].split()) for line in lines if (label := _LABEL.match(line)) is not None]
    candidates = tuple(filter(None, answers))
    reason = f"there are {len(set(candidates))} different answers" if candidates else "there is no line Answer: ..."
    return Extracted(candidates=candidates, reason=reason)


def boxed(text: str) -> Extracted:
    r"""Take what stands in `\boxed{...}`, braces balanced."""
    return _read(without_thoughts(text), "\\boxed{...}", kind=_BOX)


@dataclass(frozen=True, slots=True)
class Tagged:
    """Take what stands between `<tag>` and `</tag>`."""

    tag: str = "answer"

    def __call__(self, text: str) -> Extracted:
        return _read(without_thoughts(text), f"<{self.tag}>...</{self.tag}>", kind=_TAG, tag=self.tag)


def after_hashes(text: str) -> Extracted:
    """Take the rest of the line after `####`."""
    return _read(without_thoughts(text), "#### ...", kind=_HASHES)


def final(text: str) -> Extracted:
    r"""Take the marked answers (`\boxed{}`, `<answer>`, `####`), and the whole text if none is marked."""
    text = without_thoughts(text)
    inside = _inside_only_mark(text)
    return _read(text, "final answer") if inside is None else Extracted(candidates=(inside,))


def agreed_answer(text: str) -> str | None:
    """Return the `final` answer without marks of type, single-spaced; None if there is none, or if there are several.

    Candidates that are equal numbers, or equal texts in any letter case, are one.
    """
    answers = [" ".join(unwrapped(item).split()) for item in final(text).candidates]
    if len(answers) > 1:
        numbers = map(one_number, answers)
        values = {text.casefold() if number is None else number for text, number in zip(answers, numbers, strict=True)}
        if len(values) > 1:
            return None
    return answers[0] if answers else None


def plain_answer(text: str) -> str:
    """Return the `agreed_answer` in lower case; empty if there is none."""
    return (agreed_answer(text) or "").lower()


_INDICES = frozenset(map(str, range(len(string.ascii_uppercase))))
KEY_FORMS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {
        "alone": lambda text: text.strip() or None,
        "hashes": lambda text: after_hashes(text[max(0, text.rfind("####")) :]).answer,
        "boxed": lambda text: boxed(text[max(0, text.rfind("\\boxed")) :]).answer,
        "index": lambda text: string.ascii_uppercase[int(text)] if text in _INDICES else None,
    }
)
"""How the answer stands in a column of a data set: alone, after the last `####`, in the last box, as the index of an
option, from 0 -> what reads it."""
NO_KEY: Mapping[str, str] = MappingProxyType(
    {
        "alone": "no answer",
        "hashes": "no answer after ####",
        "boxed": r"no answer in \boxed{}",
        "index": "no index from 0 to 25",
    }
)
"""Form -> why a row is left out, in the words of the log."""


# ---- what surrounds an answer ---------------------------------------------------------------------------------------

_THOUGHT = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>|\[(/?)THINK\]")


def without_thoughts(text: str) -> str:
    """Return a text without what stands between `<think>` and `</think>`.

    The opening tag may be missing, as many chat templates write it into the prompt. A thought that never closes takes
    the rest of the text. `<thinking>`, `<thought>`, `<reasoning>` and `[THINK]` are read alike.
    """
    if "hink" not in text and "THINK" not in text and "thought>" not in text and "reasoning>" not in text:
        return text
    parts: list[str] = []
    start, is_thought, has_tag = 0, False, False
    for tag in _THOUGHT.finditer(text):
        closes = bool(tag[1] or tag[2])
        if closes and not has_tag:
            parts.clear()
        elif not is_thought:
            parts.append(text[start : tag.start()])
        start, is_thought, has_tag = tag.end(), not closes, True
    if not has_tag:
        return text
    if not is_thought:
        parts.append(text[start:])
    return "".join(parts)


_WRAPPERS = re.compile(
    r"\s*(?:\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathsf|mbox)\s?\{(?P<latex>[^{}]*)\}"
    r"|\*\*(?P<bold>[^*]+)\*\*|\*(?P<italic>[^*]+)\*|__(?P<strong>[^_]+)__|`(?P<code>[^`]+)`"
    r"|\$\$(?P<display>[^$]+)\$\$|\$(?P<inline>[^$]+)\$|\\\((?P<round>[^\\]+)\\\)|\"(?P<quoted>[^\"]+)\""
    r"|\u201c(?P<curly>[^\u201c\u201d]+)\u201d)\s*+\.?\s*+"
)


def unwrapped(text: str) -> str:
    r"""Return a text without the marks of type around the whole of it: `\text{}`, `**`, `$`, quotes."""
    while text and text.lstrip()[:1] in '\\*_`$"\u201c' and (match := _WRAPPERS.fullmatch(text)) is not None:
        text = match[match.lastgroup or 0]
    return text


# ---- marks ----------------------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    """A mark of an answer, and where its content stands."""

    start: int
    end: int
    inner_start: int
    inner_end: int
    kind: str
    is_closed: bool = True


_BOX, _TAG, _HASHES = "box", "tag", "hashes"
_BOX_OPENS = re.compile(r"\\(?:f|frame)?box(?:ed)?\s{0,3}\{")
_BRACE = re.compile(r"\\(?:f|frame)?box(?:ed)?\s{0,3}\{|\\[{}\\]|[{}]")
_HEADING = re.compile(r"^[ \t]*(#{1,6})(?!#)(.*)$", re.MULTILINE)
_TRAILER = re.compile(r"(?:\s|</?[A-Za-z]{1,20}>){0,99}")
"""What may follow the last line of an answer."""
_BARE = re.compile(r"[\s*$({\\[+\u2212\u2013-]{0,8}(?:[0-9][0-9.,/%]{0,40}(?<![.,/])|[A-Z])[\s*$}]{0,8}")
"""A number or a letter alone, which is no title."""
_LABEL = re.compile(
    r"[ \t*_]{0,9}(?:the )?(?:final |correct |my )?answer(?:[ \t]is\b:?|[ \t*_]{0,9}(?::|$))(?:\*\*|__)?[ \t]*",
    re.IGNORECASE,
)
_PARAGRAPH = re.compile(r"\s*((?!- )\S.*(?:\n[ \t]*[^\s#].*)*)")
"""It does not begin with a dash, which may be a bullet or a sign."""
_PLACEHOLDERS = frozenset(("", "...", "\u2026", "\\ldots", "\\dots"))


def _inside_only_mark(text: str) -> str | None:
    r"""Return the content of the only mark, in its most frequent forms; `_read` would read it alike."""
    if "<" in text:
        start = text.find("<answer>") + 8
        end = text.find("</answer>", start)
        is_only = start >= 8 and text.count("<") == 2 and "#" not in text and "box" not in text
    elif "#" in text:
        start = text.find("\n####") + 5
        end = len(text)
        is_only = start >= 5 and text.count("#") == 4 and text.find("\n", start) < 0 and "box" not in text
        is_only = is_only and "nswer" not in text[start:] and "NSWER" not in text[start:]
    else:
        start = text.find("\\boxed{") + 7
        end = text.find("}", start)
        is_only = start >= 7 and text.find("box") == text.rfind("box") == start - 6
    inside = text[start:end] if is_only and end > 0 else ""
    return None if "{" in inside or "\\" in inside or inside.strip() in _PLACEHOLDERS else " ".join(inside.split())


def _read(text: str, form: str, *, kind: str = "", tag: str = "answer") -> Extracted:
    """Return the candidates in the marks of a kind, and in those inside them; without a kind in all, or the text."""
    marks: list[_Mark] = []
    if "box" in text:
        marks += _boxes(text)
    if "<" in text:
        marks += _tags(text, tag)
    if "#" in text:
        marks += _hashes(text.rstrip())
    if len(marks) > 1 or kind:
        marks = _marks_of(kind, marks)
    if not any(mark.is_closed for mark in marks) and (kind or not marks):
        return Extracted(candidates=(), reason=f"there is no {form}") if kind else whole_answer(text)
    if not marks[-1].is_closed:
        return Extracted(candidates=(), reason=f"the last {form} is cut off")
    if _is_empty(marks[-1], text):
        return Extracted(candidates=(), reason=f"the {form} is empty")
    innermost = _innermost(marks, text) if len(marks) > 1 else marks
    candidates = tuple(" ".join(text[mark.inner_start : mark.inner_end].split()) for mark in innermost)
    if not all(candidates):  # only spaces, many of them
        return Extracted(candidates=(), reason=f"the {form} is empty")
    distinct = list(dict.fromkeys(candidates)) if len(candidates) > 1 else candidates
    if len(distinct) == 1:
        return Extracted(candidates=candidates[:1])
    examples = ", ".join(repr(item[:40]) for item in distinct[:_SHOWN])
    return Extracted(candidates=candidates, reason=f"there are {len(distinct)} different answers: {examples}")


def _marks_of(kind: str, marks: list[_Mark]) -> list[_Mark]:
    """Return marks in the order of the text: those of a kind, and those inside them."""
    ordered = sorted(marks)
    if not kind:
        return ordered
    own: list[_Mark] = []
    end = 0
    for mark in ordered:
        if mark.kind == kind:
            end = max(end, mark.end)
        if mark.start < end:
            own.append(mark)
    return own


def _innermost(marks: list[_Mark], text: str) -> list[_Mark]:
    """Return the closed marks that hold something, and no other such mark."""
    closed = [mark for mark in marks if mark.is_closed and not _is_empty(mark, text)]
    following = [*closed[1:], None]
    return [mark for mark, after in zip(closed, following, strict=True) if after is None or after.start >= mark.end]


def _is_empty(mark: _Mark, text: str) -> bool:
    """Return whether a mark holds nothing, or dots, as where a text says how it will mark its answer."""
    return mark.inner_end - mark.inner_start < 20 and text[mark.inner_start : mark.inner_end].strip() in _PLACEHOLDERS


def _boxes(text: str) -> Iterator[_Mark]:
    opening = _BOX_OPENS.search(text)
    while opening is not None:
        stack: list[tuple[int, int] | None] = [opening.span()]
        end = len(text)
        for brace in _BRACE.finditer(text, opening.end()):
            token = brace.group()
            if token == "{":
                stack.append(None)
            elif token == "}":
                box = stack.pop()
                if box is not None:
                    yield _Mark(box[0], brace.end(), box[1], brace.start(), _BOX)
                if not stack:
                    end = brace.end()
                    break
            elif len(token) > 2:
                stack.append(brace.span())
        for box in filter(None, stack):
            yield _Mark(box[0], len(text), box[1], len(text), _BOX, is_closed=False)
        opening = _BOX_OPENS.search(text, end)


def _tags(text: str, tag: str) -> Iterator[_Mark]:
    """Yield the pairs of tags, and the last tag if it is not closed; a pair begins at the last opening tag before."""
    opening: re.Match[str] | None = None
    for match in _tag_pattern(tag).finditer(text):
        if not (match[1] or match[2]):
            opening = match
        elif opening is not None:
            yield _Mark(opening.start(), match.end(), opening.end(), match.start(), _TAG)
            opening = None
    if opening is not None:
        yield _Mark(opening.start(), len(text), opening.end(), len(text), _TAG, is_closed=False)


@lru_cache(maxsize=64)
def _tag_pattern(tag: str) -> re.Pattern[str]:
    """Match a tag, or the tokens around an answer that GLM models have; a group matches if it closes."""
    return re.compile(rf"<(/?){re.escape(tag)}\s{{0,3}}>|<\|(?:begin|(end))_of_box\|>", re.IGNORECASE)


def _hashes(text: str) -> Iterator[_Mark]:
    """Yield the lines `#### ...` that are no headings, and the paragraphs under headings such as `#### Answer`."""
    for line in _HEADING.finditer(text):
        label = _LABEL.match(text, line.start(2), line.end()) if "answer" in line[2].lower() else None
        start, end = label.end() if label is not None else line.start(2), line.end()
        is_last = end == len(text) or _TRAILER.fullmatch(text, end) is not None
        if label is not None and start == end and not is_last:
            paragraph = _PARAGRAPH.match(text, end)
            if paragraph is not None:
                yield _Mark(line.start(), paragraph.end(), *paragraph.span(1), _HASHES)
        elif label is not None or (len(line[1]) == 4 and (is_last or _BARE.fullmatch(text, start, end))):
            yield _Mark(line.start(), end, start, end, _HASHES)
