"""Finds the headings of a text."""

import re

from quill.blocks import split
from quill.inline import plain


def slug(title):
    """Return a title as a name for links: lower case, words joined by "-"."""
    return "-".join(re.findall(r"\w+", plain(title).lower())) or "section"


class Slugs:
    """Gives each title a name of its own: the second "Notes" becomes "notes-2"."""

    def __init__(self):
        """Begin with no name used."""
        self._used = set()

    def of(self, title):
        """Return a name that was not given before."""
        base = name = slug(title)
        number = 1
        while name in self._used:
            number += 1
            name = f"{base}-{number}"
        self._used.add(name)
        return name


def outline(text, deepest=6):
    """Return (level, title, name) for each heading that is not deeper than `deepest`."""
    slugs = Slugs()
    found = []
    for block in split(text):
        if block.kind == "heading":
            name = slugs.of(block.lines[0])
            if block.level <= deepest:
                found.append((block.level, plain(block.lines[0]), name))
    return found
