"""A text and its parts: words, sentences, paragraphs, bullets; the definitions are those that the agent is told.

A word is a run of letters and digits, with apostrophes and hyphens inside it. A sentence ends with . ! ? or an ellipsis
before a space, with the full-width marks of Chinese and Japanese anywhere, and with its line; it has a word. A
paragraph is a run of lines none of which is blank. A bullet is a line that begins with "- " or "* ". Words are
compared without letter case.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache

DEFINITIONS = (
    'A word is a run of letters and digits, also with hyphens or apostrophes inside. A sentence ends with ".", "!" or '
    '"?" before a space, or with its line. Paragraphs are separated by blank lines. A bullet is a line that begins '
    'with "- " or "* ". Letter case does not matter unless a constraint is about it.'
)
_ASCII_LETTER = re.compile("[a-zA-Z0-9]")
_OUTER_JOINER = re.compile(r"['-](?![a-zA-Z0-9])|(?<![a-zA-Z0-9])['-]")
"""An apostrophe or a hyphen that is not inside a word."""
_TO_SPACES = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) in "'-")}
_ENDS, _CLOSERS, _WIDE_ENDS = r".!?\u2026", r"\"'\u201d\u2019\u00bb)\]*_", r"\u3002\uff01\uff1f"
_SENTENCE_END = re.compile(rf"(?<![{_ENDS}])[{_ENDS}]++[{_CLOSERS}]*+(?=\s|$)|[{_WIDE_ENDS}]+|[\r\n]+")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_BULLET = re.compile(r"^[^\S\n]*[-*][^\S\n]+(\S.*)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLE = re.compile(r"^[^\S\n]*<<([^<>\n]+)>>[^\S\n]*$", re.MULTILINE)
_HEADING = re.compile(r"^[^\S\n]*part (\d+)[^\S\n]*$", re.MULTILINE)


class WrittenText:
    """A text, taken apart once for all constraints."""

    def __init__(self, text: str) -> None:
        """Compose characters and marks (NFC), and leave out white space around the text."""
        self.text = (text if text.isascii() else unicodedata.normalize("NFC", text)).strip()
        self.folded = self.text.lower()

    @cached_property
    def words(self) -> list[str]:
        return split_words(self.folded)

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        return frozenset(self.words)

    @cached_property
    def num_sentences(self) -> int:
        return count_sentences(self.text)

    @cached_property
    def paragraphs(self) -> list[str]:
        """The paragraphs that have a word, in lower case."""
        return [part for part in _BLANK_LINES.split(self.folded.replace("\r\n", "\n")) if split_words(part)]

    @cached_property
    def bullets(self) -> list[str]:
        return _BULLET.findall(self.folded)

    @cached_property
    def placeholders(self) -> list[str]:
        return _PLACEHOLDER.findall(self.folded)

    @cached_property
    def titles(self) -> list[str]:
        """What stands in double angle brackets alone on a line."""
        return [title for title in _TITLE.findall(self.folded) if split_words(title)]

    @cached_property
    def headings(self) -> list[str]:
        """The numbers of the lines "Part 1", "Part 2" ..."""
        return _HEADING.findall(self.folded)


def split_words(text: str) -> list[str]:
    """Return the words of a text; of ASCII, without a match for each word, which takes a third of the time."""
    if not text.isascii():
        return _unicode_word().findall(text)
    if "'" in text or "-" in text:
        text = _OUTER_JOINER.sub(" ", text)
    return text.translate(_TO_SPACES).split()


def count_sentences(text: str) -> int:
    """Count the pieces between ends of sentences that have a word."""
    has_word = (_ASCII_LETTER if text.isascii() else _unicode_word()).search
    return sum(has_word(piece) is not None for piece in _SENTENCE_END.split(text))


def has_copied_run(words: Sequence[str], source: Sequence[str], vocabulary: frozenset[str], length: int) -> bool:
    """Tell whether `length` words in a row stand in the source, too, whose different words are `vocabulary`."""
    source_text, num = f" {' '.join(source)} ", len(words)
    for at in range(length - 1, num, length):  # one of them is in every run
        low, high = at, at
        while low > at - length and words[low] in vocabulary:
            low -= 1
        while low < at and high < min(at + length, num) and words[high] in vocabulary:
            high += 1
        for first in range(low + 1, high - length + 1):
            if f" {' '.join(words[first : first + length])} " in source_text:
                return True
    return False


@lru_cache(maxsize=1)
def _unicode_word() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M"))
    letter = rf"[^\W_][{marks}]*+"
    return re.compile(rf"(?:{letter})++(?:['\u2019\u2011-](?:{letter})++)*+")
