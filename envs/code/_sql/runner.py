"""Queries run in a sandboxed process that holds databases and nothing else; nothing that a query does lasts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.core.json_types import parse_json
from envgym.envs.code._sql.results import QueryError, QueryResult
from envgym.errors import EnvFailure
from envgym.sandbox import MIB, Limits, PythonSession, SessionResult, make_sandbox

_GUEST_SCRIPT = Path(__file__).with_name("guest.py")
_MAX_BYTES = MIB
_MAX_PARTS = MIB
"""Of the JSON of a result: rows of numbers have one for each byte or two."""
"""Of all cells of a result."""
_WALL_FACTOR = 4.0
_DISK = 16 * MIB
_STARTING_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    seconds: float = 2.0
    """Of processor time."""
    rows: int = 10_000


class QueryRunner:
    """A process with some databases, started with the first query and again after one that killed it."""

    def __init__(self, databases: Sequence[bytes], limits: QueryLimits) -> None:
        """Prepare; databases are known by their place."""
        self.databases = tuple(databases)
        self.limits = limits
        self._session: PythonSession | None = None

    def ask(self, sql: str, number: int = 0, rows: int | None = None) -> QueryResult | QueryError:
        """Run a query on one of the databases. Raises: ToolInfraFailure: the sandbox does not work."""
        most = self.limits.rows if rows is None else rows
        result = self._run(f"_sql.answer('{number}.db', {self.limits.seconds}, {sql!r}, {most}, {_MAX_BYTES})")
        reply = _decode(result)
        if not isinstance(reply, dict):
            self.close()
            return QueryError(reason=_failure_reason(result))
        if "error" in reply:
            return QueryError(reason=str(reply["error"]))
        columns = tuple(str(name) for name in reply["columns"])
        cells = tuple(tuple(_unpack(cell) for cell in row) for row in reply["rows"])
        return QueryResult(columns=columns, rows=cells, is_cut=bool(reply["cut"]))

    def tables(self) -> Mapping[str, str]:
        """Return the definition of each table of the first database. Raises: EnvFailure: it is no database."""
        result = self._run(f"_sql.tell('0.db', {self.limits.seconds})")
        reply = _decode(result)
        if not isinstance(reply, list):
            got = result.output.strip().rpartition("\n")[2]
            raise EnvFailure.of("database", "be an SQLite file", got, where="code/sql-v0", do="check the file")
        return dict(reply)

    def fork(self) -> "QueryRunner":
        """Return another runner of the same databases: a query changes nothing."""
        return QueryRunner(self.databases, self.limits)

    def close(self) -> None:
        """End the process; may be called twice."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def __getstate__(self) -> Mapping[str, object]:
        """Leave the process out."""
        return {"databases": self.databases, "limits": self.limits, "_session": None}

    def _run(self, code: str) -> SessionResult:
        if self._session is None:
            self._session = self._start_session()
        return self._session.run(code)

    def _start_session(self) -> PythonSession:
        cpu_s = self.limits.seconds + _STARTING_S
        disk = _DISK + sum(map(len, self.databases))
        session = PythonSession(Limits(wall_s=_WALL_FACTOR * cpu_s, cpu_s=cpu_s, output=8 * _MAX_BYTES, disk=disk))
        session.write_file("_sql.py", _GUEST_SCRIPT.read_bytes())
        for number, content in enumerate(self.databases):
            session.write_file(f"{number}.db", content)
        session.run("import _sql")
        return session


def vary_database(content: bytes, seed: int) -> bytes:
    """Return a file's database with other rows, made in the sandbox. Raises: EnvFailure: it is no database."""
    limits = Limits(wall_s=240.0, cpu_s=60.0, memory=512 * MIB + 8 * len(content), output=2 * len(content) + MIB)
    script = _GUEST_SCRIPT.read_text(encoding="utf-8")
    done = make_sandbox().run(["python3", "-I", "-S", "-c", script, str(seed)], content, {}, limits)
    if not done.is_success:
        got = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or done.ending.value
        raise EnvFailure.of("database", "be an SQLite file", got, where="code/sql-v0", do="check the file")
    return done.stdout


def _decode(result: SessionResult) -> Any:  # Any: decoded JSON, None where the process has not answered
    try:
        return parse_json(result.output, _MAX_PARTS) if result.error is None else None
    except ValueError:
        return None


def _failure_reason(result: SessionResult) -> str:
    return f"it was stopped by a limit: {result.ending.value}" if result.ending.is_limit else "it ended the database"


def _unpack(cell: Any) -> Any:  # Any: what JSON holds
    if isinstance(cell, int) and abs(cell) > 2**63:
        return float("inf")  # SQLite has none: the process is not what it was
    return bytes.fromhex(cell["b"]) if isinstance(cell, dict) else cell
