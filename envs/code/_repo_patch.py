"""Unified diffs: read, turned round, applied; strictly, so that a patch fits as it is or not at all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envgym.errors import InvalidInput

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
Files = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines, ends included, that take the place of others."""

    path: str
    start: int
    """Of the old lines, counted from 0."""
    old: tuple[str, ...]
    new: tuple[str, ...]


def read_patch(text: str) -> Sequence[Hunk]:
    """Return the hunks of a patch of files that exist before and after it. Raises: InvalidInput: it is none."""
    hunks: list[Hunk] = []
    path, head, old, new = "", None, [], []  # type: tuple[str, re.Match[str] | None, list[str], list[str]]
    for line in [*text.splitlines(keepends=True), "@@ end"]:
        if head is not None and line[:1] in (" ", "-", "+") and not line.startswith("--- "):
            old += [line[1:]] if line[0] != "+" else []
            new += [line[1:]] if line[0] != "-" else []
            continue
        if head is not None:
            hunks.append(Hunk(path, int(head.group(1)) - 1, tuple(old), tuple(new)))
            head, old, new = None, [], []
        if line.startswith("+++ "):
            path = line[4:].strip().removeprefix("b/")
        elif line.startswith("@@") and path:
            head = _HUNK.match(line)
    InvalidInput.unless(hunks, "patch", "hold a hunk", text, where="patch", do="write it with diff -u")
    return hunks


def reverse_patch(hunks: Sequence[Hunk]) -> Sequence[Hunk]:
    """Return the patch that takes a patch back."""
    return [Hunk(hunk.path, hunk.start + _shift_before(hunks, hunk), hunk.new, hunk.old) for hunk in hunks]


def _shift_before(hunks: Sequence[Hunk], hunk: Hunk) -> int:
    """Return by how many lines the hunks in front of one move it."""
    before = (other for other in hunks if other.path == hunk.path and other.start < hunk.start)
    return sum(len(other.new) - len(other.old) for other in before)


def apply_patch(files: Files, hunks: Sequence[Hunk]) -> dict[str, str]:
    """Return the files with a patch applied. Raises: InvalidInput: it does not fit."""
    changed = dict(files)
    for hunk in hunks:
        lines = changed.get(hunk.path, "").splitlines(keepends=True)
        start = hunk.start + _shift_before(hunks, hunk)
        end = start + len(hunk.old)
        if tuple(lines[start:end]) != hunk.old:
            do = "create the patch again"
            raise InvalidInput.of("patch", "fit the file", f"other lines at {start + 1}", where=hunk.path, do=do)
        changed[hunk.path] = "".join([*lines[:start], *hunk.new, *lines[end:]])
    return changed
