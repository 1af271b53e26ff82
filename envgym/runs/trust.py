"""Whose settings a run directory has: those of a run that this user began may name code, all others may not.

A run directory can come from anywhere. What its settings name is looked up in tables and among installed plug-ins. An
import path, a file or a command is code, a URL or a Space of Hugging Face may get keys and data, `unsafe` lets
programs out of their sandbox, the wrapper `record` writes to any file, and so does a link. A path may be written to, or
the folder that it names may be emptied: only paths below the run itself are its own. None of these is used unless the
run is in this user's list, which a run enters as it begins.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from itertools import chain, pairwise, starmap
from pathlib import Path
from typing import Any, Final

from envgym.errors import RunError
from envgym.runs.files import read_regular, whole_lines, write_atomic

_MAX_RUNS: Final = 10_000
"""Runs in the list; the oldest leave it."""
_PATH_NAMES: Final = frozenset({"adapter", "dir", "directory", "file", "folder", "out", "output", "path", "weights"})
"""Names of settings whose text is a path, also one of a single word."""
_DATA_NAMES: Final = frozenset({"corpus", "data", "databases", "source"})
"""Names of settings whose text is a path where it has a suffix, and else the name of something built in."""
_MAX_PATH: Final = 4096
_COMMANDS: Final = (".agent.program.run.", ".command.")
"""Parts of the keys of commands; a function is an import path."""
_BEFORE_COLON: Final = re.compile(r"[\w.]*")
_LETTER: Final = re.compile(r"[A-Za-z_]")
_AFTER_COLON: Final = re.compile(r"[\w-]")


def trusted_runs() -> Path:
    """Return the file with the list: a line for each run, the newest last."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "envgym" / "trusted_runs"


def trust(run: Path) -> None:
    """Enter a run, with the settings that it has now, into this user's list."""
    listed = trusted_runs()
    key = _key(run)
    if key in (lines := whole_lines(listed)):
        return
    listed.parent.mkdir(parents=True, exist_ok=True)
    if len(lines) < _MAX_RUNS:
        with listed.open("ab") as file:  # one write: what other processes add stays
            file.write(key + b"\n")
    else:
        write_atomic(listed, b"".join(line + b"\n" for line in [*lines[-_MAX_RUNS // 2 :], key]))


def is_trusted(run: Path) -> bool:
    """Return whether a run, with the settings that it has now, is in this user's list."""
    return _key(run) in whole_lines(trusted_runs())


def check_trusted(run: Path, config: Any) -> None:  # any part of the run's settings
    """See that settings of a run may be used. Raises: RunError: they reach outside, and the run is not in the list."""
    links = (f"a link, {path.relative_to(run)}" for path in run.rglob("*") if path.is_symlink())
    breach = next(chain(_reaching(config, "", run), links), None)
    if breach is not None and not is_trusted(run):
        do = "read its config.json, and pass --trust if you trust its author"
        raise RunError.of("untrusted run", "name no code, URL or file outside itself", breach, where=str(run), do=do)


def names_code(value: Any) -> bool:  # a JSON tree
    """Return whether a text in it may hold an import path."""
    if isinstance(value, dict | list | tuple):
        return any(map(names_code, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and ":" in value and any(starmap(_is_code, pairwise(value.split(":"))))


def _is_code(before: str, after: str) -> bool:
    """Return whether the parts of a text around a colon may be an import path, in linear time.

    They may in `package.module:Class`, `file.py:Class`, and `module:family/name-v0`; in some other texts, too.
    """
    if _LETTER.match(after):
        return True
    if not _AFTER_COLON.match(after):
        return False
    word = _BEFORE_COLON.match(before[::-1])
    return word is not None and _LETTER.search(word[0]) is not None


def _key(run: Path) -> bytes:
    parts = [hashlib.sha256(read_regular(run / name)).digest() for name in ("run.json", "config.json")]
    return hashlib.sha256(b"".join(parts)).hexdigest().encode()


def _reaching(value: Any, key: str, run: Path) -> Iterator[str]:  # a JSON tree
    """Yield every setting that reaches outside of a run, as `key: value`."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _reaching(part, f"{key}.{name}" if key else str(name), run)
    elif key == "run.directory":  # whoever reads the settings puts the run's own place there
        return
    else:
        is_code = (
            names_code(value)
            or any(part in f".{key}." for part in _COMMANDS)
            or "://" in str(value)
            or (value and key.endswith((".unsafe", ".space_id")))
            or value == "record"
        )
        if is_code or (isinstance(value, str) and _is_path(value, key) and not _is_below(value, run)):
            yield f"{key}: {value}"


def _is_path(text: str, key: str) -> bool:
    """Return whether a setting is a path: by its form, by its name, or because there is such a file."""
    name = key.rpartition(".")[2]
    is_named = name in _PATH_NAMES or (name in _DATA_NAMES and "." in text)
    if is_named or text.startswith("~") or os.path.isabs(text):
        return text != ""
    has_folder = "/" in text or os.sep in text
    return has_folder and (".." in re.split(r"[/\\]", text) or (len(text) < _MAX_PATH and os.path.lexists(text)))


def _is_below(text: str, run: Path) -> bool:
    try:
        return Path(text).resolve().is_relative_to(run.resolve())
    except (OSError, ValueError, RuntimeError):  # too long, a zero character, or links in a circle
        return False
