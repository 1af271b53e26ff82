"""Fenced blocks of Markdown, as language models write them: read in one pass over the lines.

CommonMark with what models write besides: a fence may be indented by any width, stand behind a list marker or in a
quotation, and carry a title or attributes. `markdown-it-py` takes nine times as long and does not read these.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_OPENING = re.compile(
    r"(?P<prefix>[ \t]*+(?P<quote>(?:>[ \t]?+)*+)[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+)"
    r"(?P<fence>`{3,}|~{3,})(?P<info>.*)"
)
_AFTER_TEXT = re.compile(r"(?P<prefix>[^`]*[^`\s])[ \t]*(?P<fence>`{3,})(?P<info>[ \t]*[\w+#.{}-]*[ \t]*)")
"""A fence at the end of a line of text."""
_QUOTE = re.compile(r"[ \t]*>[ \t]?")
_WORD = re.compile(r"[a-z0-9_+#.-]+")
_VERSION = re.compile(r"(?<=[a-z+])[\d.]+$")
_ALIASES = {
    "py": "python", "ipython": "python", "pypy": "python", "c++": "cpp", "cc": "cpp", "cxx": "cpp", "g++": "cpp",
    "js": "javascript", "node": "javascript", "nodejs": "javascript", "mjs": "javascript", "sh": "bash",
    "shell": "bash", "zsh": "bash", "sqlite": "sql", "postgresql": "sql", "postgres": "sql", "mysql": "sql",
    "rocq": "coq", "gallina": "coq", "ltac": "coq", "v": "coq",
}  # fmt: skip
_MARKDOWN = ("markdown", "md")
_WORDS_OF_PROSE = 3
_CODE_INDENTATION = 4


class FencedBlock(NamedTuple):
    """One fenced block of a text."""

    language: str
    """First word of the info string: lower case, without a version, one name for each language; may be empty."""
    text: str
    """Without the fence's own indentation and quotation marks."""
    first: int
    """Index of the line that opens the block."""
    last: int
    """Index of the line that closes the block, or the number of lines."""
    is_closed: bool


class _Opening(NamedTuple):
    fence: str
    language: str
    indentation: int
    is_quoted: bool


def read_fences(text: str, *, inline: bool = False) -> list[FencedBlock]:
    """Return the fenced blocks of `text` in order; the last one may lack its closing fence.

    Args:
        text: A message, with lines that end in a newline or in CRLF.
        inline: Whether fences may share their line with text, as in `Solution:```python` and `return x```` `.
            A block that is marked as Markdown is then read for the blocks that it holds.
    """
    lines = text.split("\n")
    blocks: list[FencedBlock] = []
    index = 0
    while index < len(lines):
        opening = _opening(lines[index], inline=inline)
        if opening is None or (inline and opening.language in _MARKDOWN):
            index += 1
            continue
        last, rest = _closing(lines, index + 1, opening, inline=inline)
        content = [*lines[index + 1 : last], *([] if rest is None else [rest])]
        code = _content(content, opening, has_crlf=lines[index].endswith("\r"))
        blocks.append(FencedBlock(opening.language, code, index, last, last < len(lines)))
        index = last + 1
    return blocks


def _opening(line: str, *, inline: bool) -> _Opening | None:
    if "```" not in line and "~~~" not in line:
        return None
    match = _OPENING.match(line)
    if match is not None and not (match["fence"][0] == "`" and "`" in match["info"]):
        quote = match["quote"]
        indentation = len(match["prefix"].rpartition(">")[2].removeprefix(" " if quote else ""))
        return _Opening(match["fence"], language_of(match["info"]), indentation, bool(quote))
    match = _AFTER_TEXT.fullmatch(line.rstrip()) if inline else None
    if match is not None and (match["info"].strip() or match["prefix"][-1] in ":>"):
        return _Opening(match["fence"], language_of(match["info"]), 0, is_quoted=False)
    return None


def _closing(lines: Sequence[str], start: int, opening: _Opening, *, inline: bool) -> tuple[int, str | None]:
    """Return the index of the line that closes a block, or the number of lines, and the code on that line.

    As in CommonMark, a fence that is indented by 4 columns more than the opening one is code, such as an example in a
    docstring. If no other line closes the block, the first such line does.
    """
    mark, length = opening.fence[0], len(opening.fence)
    deep: int | None = None
    for index in range(start, len(lines)):
        line = lines[index]
        if opening.fence not in line:
            continue
        bare = (_QUOTE.sub("", line, count=1) if opening.is_quoted else line).strip()
        if not bare.strip(mark):
            if len(line) - len(line.lstrip(" \t")) < opening.indentation + _CODE_INDENTATION:
                return index, None
            deep = index if deep is None else deep
            continue
        if not inline:
            continue
        rest = bare.lstrip(mark)
        if len(bare) - len(rest) >= length and mark not in rest and _is_prose(rest):
            return index, None
        code = bare.rstrip(mark)
        if len(bare) - len(code) >= length and mark not in code:
            return index, line.rstrip().rstrip(mark)
    return len(lines) if deep is None else deep, None


def _is_prose(rest: str) -> bool:
    """Tell whether what follows a fence is text after a block and not the info string of another one."""
    return rest[0] in "<,.;)" or (rest[0] == " " and len(rest.split(maxsplit=_WORDS_OF_PROSE)) >= _WORDS_OF_PROSE)


def _content(lines: Sequence[str], opening: _Opening, *, has_crlf: bool) -> str:
    """Return the lines of a block without what belongs to its fence."""
    if has_crlf:
        lines = [line.removesuffix("\r") for line in lines]
    if opening.is_quoted:
        lines = [_QUOTE.sub("", line, count=1) for line in lines]
    if opening.indentation:
        width = opening.indentation
        lines = [line[:width].lstrip(" \t") + line[width:] for line in lines]
    return "\n".join(lines)


def language_of(info: str) -> str:
    """Return the language that an info string names, such as `{.python title="a.py"}` or `Python 3`; may be empty."""
    first = _WORD.search(info.lower())
    word = first[0].strip(".-") if first else ""
    word = _VERSION.sub("", word.removeprefix("language-").removeprefix("lang-")).rpartition(".")[2]
    return _ALIASES.get(word, word)
