"""Questions and databases as Spider and BIRD lay them out: a JSON list, and a folder with a file for each id."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.authoring import ListTasks, TaskDraft
from envgym.authoring.sources import task_from_draft
from envgym.core.json_types import JsonObject, content_hash
from envgym.core.tasks import Split, Task
from envgym.envs.code._sql.runner import vary_database
from envgym.errors import InvalidInput
from envgym.runtime.cache import cached_within, source_key
from envgym.sandbox import MIB

MAX_DATABASE = 64 * MIB
"""Bytes of one file."""
_WHERE = "code/sql-v0"
_ENDINGS = ("sqlite", "db", "sqlite3")
_BRACKETS = re.compile(r"\([^()]*\)")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_ORDER = re.compile(r"\border\s+by\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DatabaseFolder:
    """`<folder>/<id>/<id>.sqlite`; their variants are made in the sandbox."""

    path: str

    def database(self, name: str, variant: int) -> bytes:
        """Return a database. Raises: InvalidInput: there is none of this name, or it is too large. EnvFailure."""
        path = self.find(name)
        return _content(str(path), source_key(str(path)), variant)

    def find(self, name: str) -> Path:
        """Return the file of a database. Raises: InvalidInput: there is none, or it is too large."""
        folder = Path(self.path)
        if not re.fullmatch(r"\w[\w .-]*", name):
            raise InvalidInput.of("db_id", "be a plain name", name, where=_WHERE, do="rename the folder")
        places = [place / f"{name}.{ending}" for place in (folder / name, folder) for ending in _ENDINGS]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise InvalidInput.of("database", "be in the folder", name, where=_WHERE, do=f"put it at {places[0]}")
        size = path.stat().st_size
        must, do = f"have at most {MAX_DATABASE} bytes", "leave its questions out"
        InvalidInput.unless(size <= MAX_DATABASE, f"database {name}", must, size, where=_WHERE, do=do)
        return path


def questions_in(source: str | Mapping[str, str], folder: DatabaseFolder) -> ListTasks:
    """Read questions; a mapping names the file of each split, else the content decides.

    Raises: InvalidInput: a file or row that is none, or a database that is not there.
    """
    if isinstance(source, str):
        return ListTasks(_rows(source, folder))
    tasks: list[Task] = []
    hashes: set[str] = set()
    for split in sorted((Split.parse(name, where=_WHERE) for name in source), key=lambda split: split is Split.TRAIN):
        drafts = _rows(source[split.value], folder)
        new = [draft for draft in drafts if content_hash(draft.payload) not in hashes]
        tasks += [task_from_draft(draft, split, f"{split}/{number}") for number, draft in enumerate(new)]
        hashes |= {content_hash(draft.payload) for draft in new}
    return ListTasks(tasks)


def is_ordered(sql: str) -> bool:
    """Tell whether a query itself, and not one inside it, asks for an order."""
    text = _QUOTED.sub("''", sql)
    while (shorter := _BRACKETS.sub(" ", text)) != text:
        text = shorter
    return _ORDER.search(text) is not None


def _rows(source: str, folder: DatabaseFolder) -> list[TaskDraft]:
    try:
        rows = json.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        do = "name a JSON file as Spider's dev.json"
        raise InvalidInput.of("source", "be a JSON list of questions", str(error), where=source, do=do) from None
    if not isinstance(rows, list):
        do = "write a list of objects"
        raise InvalidInput.of("source", "be a JSON list of questions", type(rows).__name__, where=source, do=do)
    drafts: dict[str, TaskDraft] = {}
    for number, row in enumerate(rows):
        draft = _draft(row, f"row {number} of {source}")
        drafts.setdefault(content_hash(draft.payload), draft)
    for name in {str(draft.payload["database"]) for draft in drafts.values()}:
        folder.find(name)
    return list(drafts.values())


def _draft(row: Any, where: str) -> TaskDraft:  # Any: decoded JSON
    fields = row if isinstance(row, dict) else {}
    question, name = fields.get("question"), fields.get("db_id")
    sql = fields.get("query", fields.get("SQL"))
    if not (isinstance(question, str) and isinstance(name, str) and isinstance(sql, str)):
        must, do = "have question, query (or SQL) and db_id as texts", "correct the row"
        raise InvalidInput.of("row", must, sorted(fields), where=where, do=do)
    evidence = fields.get("evidence")
    hint = f"\nHint: {evidence}" if isinstance(evidence, str) and evidence.strip() else ""
    payload: JsonObject = {"database": name, "question": question, "sql": sql, "ordered": is_ordered(sql)}
    level = fields.get("difficulty")
    metadata: JsonObject = {"schema": name, "difficulty": level if isinstance(level, str) else None}
    return TaskDraft(prompt=question + hint, payload=payload, metadata=metadata)


@cached_within(4 * MAX_DATABASE)
def _content(path: str, key: str, variant: int) -> bytes:
    content = Path(path).read_bytes()
    return vary_database(content, variant) if variant else content
