"""Where an answer stands in a text. More than one different final answer is no answer."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """An answer, or why there is none."""

    answer: str | None
    reason: str = ""


Extractor = Callable[[str], Extracted]
"""Finds the one final answer in a text; a plain function, so that verifiers can be pickled."""


def whole_answer(text: str) -> Extracted:
    """Take the whole text, stripped."""
    stripped = text.strip()
    return Extracted(answer=stripped) if stripped else Extracted(answer=None, reason="the answer is empty")


def last_line(text: str) -> Extracted:
    """Take the last line that is not empty."""
    return whole_answer(text.strip().rpartition("\n")[2])


def boxed(text: str) -> Extracted:
    r"""Take what stands in `\boxed{...}`, braces balanced."""
    return _one(_boxes(text), "\\boxed{...}")


@dataclass(frozen=True, slots=True)
class Tagged:
    """Take what stands between `<tag>` and `</tag>`."""

    tag: str = "answer"

    def __call__(self, text: str) -> Extracted:
        """Find the one answer in `text`."""
        return _one(_between(text, self.tag), f"<{self.tag}>...</{self.tag}>")


def after_hashes(text: str) -> Extracted:
    """Take the rest of the line after `####`."""
    return _one(_after_hashes(text), "#### ...")


def final(text: str) -> Extracted:
    r"""Take the marked answer (`\boxed{}`, `<answer>`, `####`), and the whole text where none is marked."""
    marked = [*_boxes(text), *_between(text, "answer"), *_after_hashes(text)]
    return _one(marked, "final answer") if marked else whole_answer(text)


def plain_answer(text: str) -> str:
    """Return the `final` answer in lower case and single-spaced; empty where there is none, or several."""
    return " ".join((final(text).answer or "").lower().split())


def _one(parts: Iterable[str], form: str) -> Extracted:
    """Return the only answer among `parts`, spaces aside."""
    distinct = list(dict.fromkeys(" ".join(item.split()) for item in parts))
    if not distinct:
        return Extracted(answer=None, reason=f"there is no {form}")
    if len(distinct) > 1:
        shown = ", ".join(repr(item[:40]) for item in distinct[:_SHOWN])
        return Extracted(answer=None, reason=f"there are {len(distinct)} different answers: {shown}")
    if not distinct[0]:
        return Extracted(answer=None, reason=f"the {form} is empty")
    return Extracted(answer=distinct[0])


_BOX = re.compile(r"\\f?box(?:ed)?\s{0,3}\{|[{}]")


def _boxes(text: str) -> list[str]:
    """Return the contents of the outermost closed boxes; escaped braces do not count."""
    parts: list[str] = []
    depth, start = 0, None
    for mark in _BOX.finditer(text):
        if start is None:
            if mark.group() not in "{}":
                depth, start = 1, mark.end()
            continue
        if mark.group() in "{}" and text[mark.start() - 1] == "\\":
            continue
        depth += -1 if mark.group() == "}" else 1
        if depth == 0:
            parts.append(text[start : mark.start()])
            start = None
    return parts


def _between(text: str, tag: str) -> list[str]:
    """Return what stands in each closed pair of tags; a pair that holds an opening tag begins at the last of them."""
    parts: list[str] = []
    opening, closing = f"<{tag}>", f"</{tag}>"
    pieces = text.split(closing)
    for piece in pieces[:-1]:
        _, opened, inside = piece.rpartition(opening)
        if opened:
            parts.append(inside)
    return parts


def _after_hashes(text: str) -> list[str]:
    return [line.strip()[4:] for line in text.splitlines() if line.strip().startswith("####")]
