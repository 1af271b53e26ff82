"""Writes plain text."""

from quill.blocks import split
from quill.inline import plain
from quill.wrapping import wrap


def to_text(text, width=72):
    """Return a text without marks, in lines of at most `width` characters; code is indented and not broken."""
    return "\n\n".join("\n".join(_lines(block, width)) for block in split(text))


def _lines(block, width):
    if block.kind == "heading":
        title = plain(block.lines[0])
        lines = wrap(title, width)
        underline = "=" if block.level == 1 else "-"
        return [*lines, underline * max(len(line) for line in lines)]
    if block.kind == "code":
        return [f"    {line}".rstrip() for line in block.lines]
    if block.kind == "quote":
        inner = to_text("\n".join(block.lines), width - 2)
        return [f"> {line}".rstrip() for line in inner.split("\n")]
    if block.kind == "bullets":
        return [line for item in block.lines for line in wrap(plain(item), width, "* ")]
    if block.kind == "numbers":
        return _numbered(block, width)
    return wrap(plain(" ".join(block.lines)), width)


def _numbered(block, width):
    last = block.level + len(block.lines) - 1
    room = len(str(last)) + 2
    lines = []
    for number, item in enumerate(block.lines, block.level):
        lines += wrap(plain(item), width, f"{number}.".ljust(room))
    return lines
