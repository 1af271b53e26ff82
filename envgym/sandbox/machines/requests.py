"""What may be asked of a machine, whatever carries it out."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from envgym.core.json_types import is_well_formed
from envgym.errors import InvalidInput
from envgym.sandbox.records import MAX_NAME, MAX_PATH, MIB

MAX_COMMAND = 1 << 17
"""Bytes of a command."""
MAX_INPUT = 64 * MIB
"""Bytes of a command's standard input, and of the output that is kept."""
MAX_PUT = 512 * MIB
"""Bytes of the files of one `put`."""
MAX_PUT_FILES = 20_000


def check_command(
    command: str | Sequence[str], *, timeout_s: float, output: int, stdin: bytes, shell: str | None
) -> None:
    """Check a command. Raises: InvalidInput."""
    words = [command] if isinstance(command, str) else [*command]
    is_text = bool(words) and all("\0" not in word and is_well_formed(word) for word in words)
    do = "pass a text for a shell or the words of a program, without NUL"
    InvalidInput.unless(
        is_text and (words[0] or isinstance(command, str)), "command", "be text", words, where="machine", do=do
    )
    size = sum(len(word.encode()) for word in words)
    InvalidInput.unless(
        size <= MAX_COMMAND, "command", f"have at most {MAX_COMMAND} bytes", size, where="machine", do="put a file"
    )
    is_time = 0 < timeout_s < float("inf")
    InvalidInput.unless(is_time, "timeout_s", "be positive and finite", timeout_s, where="machine", do="pass seconds")
    is_size = 0 <= output <= MAX_INPUT
    InvalidInput.unless(
        is_size, "output", f"be from 0 to {MAX_INPUT} bytes", output, where="machine", do="ask for less"
    )
    do = "put a file"
    InvalidInput.unless(
        len(stdin) <= MAX_INPUT, "stdin", f"have at most {MAX_INPUT} bytes", len(stdin), where="machine", do=do
    )
    is_plain = shell is None or (isinstance(command, str) and not stdin)
    do = "pass a text and no standard input"
    InvalidInput.unless(is_plain, "command of a shell", "be a text that reads nothing", words, where="machine", do=do)


def check_files(files: Mapping[str, tuple[bytes, int]], directory: str, *, is_fresh: bool) -> None:
    """Check files with their modes. Raises: InvalidInput."""
    for path in files:
        parts = path.split("/")
        is_inside = is_well_formed(path) and "\0" not in path and not {"", ".", ".."} & set(parts)
        InvalidInput.unless(
            is_inside, "file", "lie in the directory", path, where="put", do="name it as in src/main.py"
        )
        is_short = len(path.encode()) <= MAX_PATH and all(len(part.encode()) <= MAX_NAME for part in parts)
        must = f"have names of at most {MAX_NAME} bytes"
        InvalidInput.unless(is_short, "file", must, path, where="put", do="rename it")
    size = sum(len(content) for content, _ in files.values())
    InvalidInput.unless(
        size <= MAX_PUT, "files", f"have at most {MAX_PUT} bytes", size, where="put", do="put them in parts"
    )
    do = "put them in one archive"
    InvalidInput.unless(
        len(files) <= MAX_PUT_FILES, "files", f"be at most {MAX_PUT_FILES}", len(files), where="put", do=do
    )
    is_below = not is_fresh or directory.strip("/") != ""
    InvalidInput.unless(
        is_below, "directory", "be below the root to be fresh", directory, where="put", do="name a folder"
    )


def read_folder(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return a folder's files: relative path -> content and mode. Raises: InvalidInput: no folder, or a link in it."""
    InvalidInput.unless(path.is_dir(), "folder", "be a folder", str(path), where="put_folder", do="name one")
    return {
        inner.relative_to(path).as_posix(): (inner.read_bytes(), 0o755 if os.access(inner, os.X_OK) else 0o644)
        for inner in folder_files(path, where="put_folder")
    }


def folder_files(path: Path, *, where: str, skipped: Collection[str] = ()) -> list[Path]:
    """Return the files of a folder in their order. Raises: InvalidInput: something in it is no regular file."""
    files = []
    for inner in sorted(path.rglob("*")):
        if inner.relative_to(path).as_posix() in skipped or (inner.is_dir() and not inner.is_symlink()):
            continue
        is_file = inner.is_file() and not inner.is_symlink()
        InvalidInput.unless(
            is_file, "file", "be a regular file", str(inner), where=where, do="copy it in, or remove it"
        )
        files.append(inner)
    return files
