"""Splits a text into blocks."""

import re
from dataclasses import dataclass

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_ITEM = re.compile(r"(?:(?P<bullet>[-*])|(?P<number>\d+)\.)\s+(?P<text>.*)")
_FENCE = re.compile(r"```\s*(\w*)\s*$")


@dataclass
class Block:
    """A heading, paragraph, bullets, numbers, code or quote."""

    kind: str
    lines: list
    """Of a list: one text for each item."""
    level: int = 0
    """Of a heading: 1 to 6; of numbers: the first one."""
    language: str = ""
    """Of code."""


def split(text):
    """Return the blocks of a text."""
    blocks = []
    lines = text.expandtabs(4).splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        if not line.strip():
            index += 1
            continue
        if fence := _FENCE.match(line):
            index = _code(lines, index + 1, fence.group(1), blocks)
        elif heading := _HEADING.match(line):
            blocks.append(Block("heading", [heading.group(2)], level=len(heading.group(1))))
            index += 1
        elif line.startswith(">"):
            index = _quote(lines, index, blocks)
        elif _ITEM.match(line):
            index = _items(lines, index, blocks)
        else:
            index = _paragraph(lines, index, blocks)
    return blocks


def _code(lines, index, language, blocks):
    """Take lines up to the closing fence, or the end; they are kept as they are."""
    taken = []
    while index < len(lines) and lines[index].rstrip() != "```":
        taken.append(lines[index])
        index += 1
    blocks.append(Block("code", taken, language=language))
    return index + 1


def _quote(lines, index, blocks):
    taken = []
    while index < len(lines) and lines[index].startswith(">"):
        taken.append(lines[index][1:].removeprefix(" "))
        index += 1
    blocks.append(Block("quote", taken))
    return index


def _items(lines, index, blocks):
    """Take the items of a list; an indented line goes on with the item above it."""
    first = _ITEM.match(lines[index])
    kind = "bullets" if first.group("bullet") else "numbers"
    block = Block(kind, [], level=0 if kind == "bullets" else int(first.group("number")))
    while index < len(lines):
        item = _ITEM.match(lines[index])
        if item and (item.group("bullet") is not None) == (kind == "bullets"):
            block.lines.append(item.group("text").strip())
        elif block.lines and lines[index].startswith("  ") and lines[index].strip():
            block.lines[-1] += " " + lines[index].strip()
        else:
            break
        index += 1
    blocks.append(block)
    return index


def _paragraph(lines, index, blocks):
    taken = []
    while index < len(lines) and lines[index].strip() and not _begins_block(lines[index]):
        taken.append(lines[index].strip())
        index += 1
    blocks.append(Block("paragraph", taken))
    return index


def _begins_block(line):
    return bool(_FENCE.match(line) or _HEADING.match(line) or line.startswith(">"))
