"""Whose settings a run directory has: those of a run that this user began may name code, all others may not.

A run directory can come from anywhere. What its settings name is looked up in tables and among installed plug-ins. An
import path or a file is code, a URL may get keys and data, `unsafe` lets programs out of their sandbox, the wrapper
`record` writes to any file, and so does a link. None of these is used unless the run is in this user's list, which a
run enters as it begins.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from envgym.errors import RunError
from envgym.files import whole_lines, write_atomic

_MAX_RUNS: Final = 10_000
"""Runs in the list; the oldest leave it."""
_CODE: Final = re.compile(r":[A-Za-z_]|[A-Za-z_][\w.]*:[\w-]")
"""In `package.module:Class`, `file.py:Class`, and `module:family/name-v0`; in some other texts, too."""


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
    found = next(chain(_reaching(config, ""), links), None)
    if found is not None and not is_trusted(run):
        do = "read its config.json, and pass --trust if you trust its author"
        must = "name no code, URL or file outside itself"
        raise RunError.of("untrusted run", must, found, where=str(run), do=do)


def names_code(value: Any) -> bool:  # a JSON tree
    """Return whether a text in it may hold an import path."""
    if isinstance(value, dict | list | tuple):
        return any(map(names_code, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and _CODE.search(value) is not None


def _key(run: Path) -> bytes:
    """Return what the list has of a run: a digest of its id and its settings."""
    parts = [hashlib.sha256((run / name).read_bytes()).digest() for name in ("run.json", "config.json")]
    return hashlib.sha256(b"".join(parts)).hexdigest().encode()


def _reaching(value: Any, key: str) -> Iterator[str]:  # a JSON tree
    """Yield every setting that reaches outside, as `key: value`."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _reaching(part, f"{key}.{name}" if key else str(name))
    elif names_code(value) or "://" in str(value) or (value and key.endswith(".unsafe")) or value == "record":
        yield f"{key}: {value}"
