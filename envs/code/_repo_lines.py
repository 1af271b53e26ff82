"""Lines of files that anybody may have written: found and shown without a copy of the file, or a list of its lines."""

from codecs import utf_8_decode
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice

MAX_LINE = 2000
"""Bytes of a line that are shown."""


def count_lines(content: bytes) -> int:
    """Return the number of lines; the last one need not end in a line break."""
    return content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))


def read_lines(content: bytes, first: int, last: int) -> Sequence[str]:
    """Return lines `first` to `last`, counted from 1, without their ends. Raises: UnicodeDecodeError."""
    return [_show(line.rstrip(b"\r\n"), "strict") for line in islice(BytesIO(content), first - 1, last)]


def find_lines(content: bytes, text: bytes) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that holds `text`, counted from 1, and the line around it.

    Each search goes on after the line of the one before, so all of them together read the content a few times.
    """
    number, start = 1, 0
    while (place := content.find(text, start)) >= 0:
        number += content.count(b"\n", start, place)
        begin = content.rfind(b"\n", start, place) + 1 or start
        end = content.find(b"\n", place) % (len(content) + 1)  # -1: the content's end
        yield number, _show(content[max(begin, place - MAX_LINE // 2) : end].strip(), "replace")
        number, start = number + 1, end + 1


def _show(line: bytes, errors: str) -> str:
    text, used = utf_8_decode(line[:MAX_LINE], errors, len(line) <= MAX_LINE)
    return text if used == len(line) else f"{text}... ({len(line) - used} bytes more)"
