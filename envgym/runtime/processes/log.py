"""One log per process of a run: a JSON object per line, each with the run, the role and the ids of what it is about.

    {"time": "2026-01-31T12:00:00.123456Z", "run": "demo", "role": "policy-server-0", "level": "INFO",
     "episode": "step-000003/001/02", "branch": 4, "event": "generate", "tokens": 37}

`open_log` begins it; without it, `log_event` costs one comparison. Warnings and errors of all libraries are lines too.
The ids are those of the code that runs (`about`), in every thread and task that it starts; they travel to other
processes as the header `HEADER`. `envgym trace RUN GROUP` (`read_trace`) joins the logs of a run by time.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from envgym.errors import RunError
from envgym.runs.files import LOGS

HEADER: Final = "X-Envgym-Ids"
"""Of a request to another process: the ids as `Ids.header` writes them."""
LOG_VARIABLE, RUN_VARIABLE, ROLE_VARIABLE = "ENVGYM_LOG", "ENVGYM_RUN", "ENVGYM_ROLE"
"""Environment variables by which a process is told where to log (a file, or `-` for standard error) and who it is."""
_MAX_TEXT = 10_000
"""Characters of a message that are kept."""


class Ids(NamedTuple):
    """What a line is about; empty where it is about none."""

    episode: str = ""
    """Id of the tree that the episode belongs to, which begins with the key of its group; or that key."""
    branch: int | None = None
    """Number of the branch within its tree."""

    def header(self) -> str:
        """Write the ids for a header."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def of_header(cls, text: str | None) -> "Ids":
        """Read what `header` wrote; what is nothing of the kind, as any client may send, names nothing."""
        try:
            episode, branch = json.loads(text or "null")
        except (ValueError, TypeError, RecursionError):
            return cls()
        return cls(episode[:200], branch) if isinstance(episode, str) and isinstance(branch, int | None) else cls()


class _Log(NamedTuple):
    stream: TextIO
    run: str
    role: str


_ids: ContextVar[Ids] = ContextVar("ids", default=Ids())  # noqa: B039  # a tuple: it cannot change
_log: _Log | None = None


def is_open() -> bool:
    """Return whether this process has a log."""
    return _log is not None


def current_ids() -> Ids:
    """The ids of the code that runs now."""
    return _ids.get()


@contextmanager
def about(ids: Ids) -> Iterator[None]:
    """Let the lines of a block, and of what it starts, be about these."""
    if _log is None:
        yield
        return
    token = _ids.set(ids)
    try:
        yield
    finally:
        _ids.reset(token)


def log_event(event: str, **fields: object) -> None:
    """Write a line: what happened, and its numbers; nothing where no log is open."""
    if _log is not None:
        _write(_log, "INFO", {"event": event, **fields})


def open_log(to: Path | None, *, run: str, role: str) -> None:
    """Begin this process's log, in a file that grows or, without one, on standard error."""
    global _log  # noqa: PLW0603  # a process has one log, as it has one standard error
    if to is None:
        stream: TextIO = sys.stderr
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        stream = to.open("a", encoding="utf-8", buffering=1)
    _log = _Log(stream, run, role)
    root = logging.getLogger()
    root.addHandler(_LogHandler(logging.WARNING))
    logging.captureWarnings(capture=True)


def close_log() -> None:
    """End the log; may be called without one."""
    global _log  # noqa: PLW0603  # as above
    if _log is not None and _log.stream is not sys.stderr:
        _log.stream.close()
    _log = None
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LogHandler)]:
        root.removeHandler(handler)
    logging.captureWarnings(capture=False)


def open_log_of_environment() -> None:
    """Begin the log that the environment variables name, if they do: whoever started this process set them."""
    to = os.environ.get(LOG_VARIABLE)
    if to:
        run, role = os.environ.get(RUN_VARIABLE, ""), os.environ.get(ROLE_VARIABLE, f"process-{os.getpid()}")
        open_log(None if to == "-" else Path(to), run=run, role=role)


class _LogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if _log is not None:
            text = self.format(record)
            _write(_log, record.levelname, {"logger": record.name, "message": text[:_MAX_TEXT]})


def _write(log: _Log, level: str, fields: Mapping[str, object]) -> None:
    line = line_of(log.run, log.role, level, {**_ids.get()._asdict(), **fields})
    try:
        log.stream.write(line)
        log.stream.flush()
    except (OSError, ValueError):  # a full disk, or a stream that is closed: a log never ends a run
        return


def line_of(run: str, role: str, level: str, fields: Mapping[str, object]) -> str:
    """Return a line of a log, as of now; fields that are empty are left out."""
    now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    values = {key: value for key, value in fields.items() if value not in ("", None)}
    return json.dumps({"time": now, "run": run, "role": role, "level": level, **values}, default=str) + "\n"


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_line(line: bytes | str) -> dict[str, Any] | None:
    """Read a line of a log; None: it is another process's bare output, or was cut short."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("time"), str) and "role" in entry else None


def read_trace(run: Path, group: str) -> list[dict[str, Any]]:
    """Return the lines about a group and its episodes, of all processes, by time.

    Args:
        run: a run directory.
        group: key of a group, such as `step-000003/001`, or the id of one of its episodes.

    Raises: RunError: the run has no logs, or they do not name the group.
    """
    files = sorted((run / LOGS).glob("*.jsonl"))
    do = "train with --learners, --servers or --env-servers, or with ENVGYM_LOG=FILE set"
    RunError.unless(files, "run", "have logs of its processes", "none", where=str(run / LOGS), do=do)
    entries = [entry for path in files for line in _lines(path) if (entry := read_line(line)) is not None]
    of_group = [entry for entry in entries if _is_about(entry, group)]
    if not of_group:
        episodes = sorted({str(entry["episode"]) for entry in entries if entry.get("episode")})
        span = f"{episodes[0]} to {episodes[-1]}" if episodes else "no episode"
        do = "name one of them"
        raise RunError.of("group", f"be in the logs, which have {span}", repr(group), where=str(run / LOGS), do=do)
    return sorted(of_group, key=lambda entry: str(entry["time"]))


def _lines(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        yield from file


def _is_about(entry: Mapping[str, Any], name: str) -> bool:
    groups = entry.get("groups", ())
    ids = (entry.get("episode", ""), *(groups if isinstance(groups, list) else ()))
    return any(own == name or str(own).startswith(f"{name}/") for own in ids)
