"""A directory as a value: immutable, shared between the sessions that go on from it, changed by making another one.

Nothing of it lies on the host's disk, so no link can lead anywhere. What comes out of a sandbox is checked here, word
by word: it was written by whoever ran there.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from envgym.core.json_types import parse_json
from envgym.errors import ToolError

MAX_ENTRIES = 10_000
"""Files, links and directories of a session."""
MAX_PATH = 1000
"""Characters."""
MAX_HEAD = 8 * 1024**2
"""Bytes of the list of all entries."""


_MAX_PARTS = 20 * MAX_ENTRIES
"""Of that list: an entry has 3 strings, and 8 brackets and commas."""


class InvalidTree(Exception):
    """What came out of a sandbox is no directory."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    kind: str
    """file, link or directory."""
    content: bytes = b""
    """Of a file; where a link leads to."""
    mode: int = 0o644
    mtime_ns: int = 0


Tree = Mapping[str, TreeEntry]
"""Relative path -> entry, each after the directory it lies in; paths are decoded as `os.fsdecode` does."""
EMPTY: Tree = MappingProxyType({})


class TreeCommandResult(NamedTuple):
    """How a command ended, and the directory after it."""

    code: int
    ending: str
    cwd: str
    seconds: float
    output: bytes
    tree: Tree
    reason: str | None
    """Why the directory could not be kept."""


def checked_path(path: str) -> str:
    """Return a path without "./" and trailing slash. Raises: ToolError: it leads out of the directory."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path or not parts or len(path) > MAX_PATH:
        raise ToolError(f"{path[:100]!r} is not a path inside the directory. Write it as in src/main.py.")
    return "/".join(parts)


def add_files(tree: Tree, files: Mapping[str, bytes]) -> Tree:
    """Return the tree with files written, and the directories above them made. Raises: ToolError: it cannot be."""
    entries = dict(tree)
    for path, content in files.items():
        _put(entries, checked_path(path), content)
    return MappingProxyType(entries)


def _put(entries: dict[str, TreeEntry], path: str, content: bytes) -> None:
    before = entries.get(path)
    if before is not None and before.kind != "file":
        raise ToolError(f"{path} is a {before.kind}, not a file.")
    parent = ""
    for part in path.split("/")[:-1]:
        parent = f"{parent}/{part}" if parent else part
        kind = entries.setdefault(parent, TreeEntry("directory", mode=0o755)).kind
        if kind != "directory":
            raise ToolError(f"{parent} is a {kind}, not a directory.")
    mode = before.mode if before is not None else 0o755 if content.startswith(b"#!") else 0o644
    entries[path] = TreeEntry("file", content, mode, time.time_ns())


def size_of(tree: Tree) -> int:
    return sum(len(entry.content) for entry in tree.values() if entry.kind == "file")


def pack_tree(tree: Tree, head: Mapping[str, object]) -> bytes:
    listed = [[path, entry.kind, entry.mode, entry.mtime_ns, len(entry.content)] for path, entry in tree.items()]
    line = json.dumps({**head, "entries": listed}).encode() + b"\n"
    return b"".join([line, *(entry.content for entry in tree.values())])


def read_result(reply: bytes, before: Tree, max_size: int) -> TreeCommandResult:
    """Read what `_shell_guest` wrote. Raises: InvalidTree: the format is wrong."""
    end = reply.find(b"\n", 0, MAX_HEAD)
    try:
        head = parse_json(reply[:end], _MAX_PARTS) if end > 0 else None
    except ValueError:
        head = None
    if not isinstance(head, dict):
        raise InvalidTree
    code, ending, cwd, seconds, output_size = (head.get(key) for key in ("code", "ending", "cwd", "seconds", "size"))
    reason, listed = head.get("reason"), head.get("entries")
    if not (_is_count(code, 256) and isinstance(ending, str) and isinstance(cwd, str) and len(cwd) <= 4096):
        raise InvalidTree
    if not (isinstance(seconds, float) and 0 <= seconds < 1e6 and _is_count(output_size, len(reply))):
        raise InvalidTree
    if not (reason is None or isinstance(reason, str)) or not isinstance(listed, list) or "\0" in cwd:
        raise InvalidTree
    assert isinstance(code, int)
    assert isinstance(output_size, int)
    start = end + 1 + output_size
    tree = before if reason is not None else MappingProxyType(dict(_entries(listed, reply, start, before, max_size)))
    return TreeCommandResult(code, ending, cwd, seconds, reply[end + 1 : start], tree, reason)


def _entries(
    listed: list[object], reply: bytes, start: int, before: Tree, max_size: int
) -> Iterator[tuple[str, TreeEntry]]:
    if len(listed) > MAX_ENTRIES:
        raise InvalidTree
    old = list(before.values())
    entries: dict[str, TreeEntry] = {}
    total = 0
    for row in listed:
        if not (isinstance(row, list) and len(row) == 7):
            raise InvalidTree
        path, kind, mode, mtime_ns, size, index, target = row
        if not (isinstance(path, str) and _is_count(mode, 0o777) and _is_count(mtime_ns, 2**62)):
            raise InvalidTree
        if not (isinstance(target, str) and _is_count(size, max_size) and isinstance(index, int)):
            raise InvalidTree
        content = b""
        if kind == "link":
            content = target.encode(errors="surrogateescape")
        elif kind == "file" and 0 <= index < len(old):
            content = old[index].content
        elif kind == "file":
            content = reply[start : start + size]
            start += size
        elif kind != "directory":
            raise InvalidTree
        total += len(content)
        if total > max_size or (kind == "file" and len(content) != size):
            raise InvalidTree
        entries[path] = TreeEntry(kind, content, mode, mtime_ns)
    for path in sorted(entries, key=lambda path: (path.count("/"), path)):
        parent = path.rpartition("/")[0]
        is_inside = not parent or (parent in entries and entries[parent].kind == "directory")
        if not is_inside or not _is_plain(path):
            raise InvalidTree
        yield path, entries[path]


def _is_plain(path: str) -> bool:
    return "\0" not in path and len(path) <= 4 * MAX_PATH and not {"", ".", ".."} & set(path.split("/"))


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
