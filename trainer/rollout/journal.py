"""The journal: every turn that was sampled for steps which no checkpoint holds yet, so that none is sampled again.

    RUN/journal/owner.json                            the run that it is of
                turns-00000012.jsonl                  a line for each generation whose newest token is of version 12
                turns-00000012.rollout-worker-1.jsonl the same, of what this rollout worker sampled

A resumed run begins its groups anew, with the seeds that they had. Where it asks for a continuation that the journal
has (same context, same sampling, same seed), it gets that one: finished episodes and branches come back whole,
unfinished ones go on after their last finished turn, and only what is left is sampled. Envs take their steps again; one
that answers otherwise than before makes another context, which the journal does not have.

Turns of weights that the resumed run does not know, as no checkpoint holds them, are dropped. Only the run's process
drops files. Rollout workers write their own, and read those of the others: a group of a worker that died goes on from
its turns.

A process keeps in memory where the turns are in the files, not the turns.
"""

import hashlib
import json
import re
import warnings
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from envgym.agents.policies.wrapped import WrappedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy
from envgym.errors import RunError, sentence
from envgym.runs.directory import RunDirectory, read_object
from envgym.runs.files import write_json
from envgym.trainer.metrics.update import Metrics

FOLDER: Final = "journal"
"""Of the run directory."""
_OWNER: Final = "owner.json"
_HEAD_BYTES: Final = 256
_KEY: Final = slice(2, 66)
"""Place of the hexadecimal key in a line."""
_NAME: Final = re.compile(r"turns-(\d{8,})(?:\.([\w-]+))?\.jsonl")


class ReusedTurns(NamedTuple):
    """What was taken from a journal instead of being sampled."""

    turns: int = 0
    tokens: int = 0


class _TurnsFile(NamedTuple):
    version: int
    """Of the weights that sampled."""
    path: Path
    worker: str | None
    """The rollout worker that writes it; None: the run's process does."""


class _Line(NamedTuple):
    """Where a turn is."""

    path: Path
    start: int
    length: int


class _ReadFile(NamedTuple):
    """How far a file was read."""

    head: bytes
    """Its first bytes: a file that begins otherwise is another one of the same name."""
    end: int


class TurnJournal:
    """The journal of one run, as one process reads and writes it."""

    def __init__(self, folder: Path, *, run: str, version: int, staleness: int, worker: str | None = None) -> None:
        """Read what the run may use again, drop the rest, and get ready to write.

        Args:
            folder: made where it is missing.
            run: id of the run.
            version: of the weights from which the run goes on; what newer ones sampled is dropped.
            staleness: versions by which a sample may be older than the weights that it trains.
            worker: name of the rollout worker that this process is, which drops nothing; None: it is the run's process.

        Raises: RunError: it is the journal of another run.
        """
        self._folder, self._staleness, self._worker = folder, staleness, worker
        self._lines: dict[bytes, _Line] = {}
        self._found: dict[str | None, dict[bytes, _Line]] = {}
        """Lines that trees have used, by tree; of trees that were begun and have not ended."""
        self._read_files: dict[Path, _ReadFile] = {}
        self._files: dict[int, TextIO] = {}
        self._reused = ReusedTurns()
        self._is_full = False
        """Whether it was said that the disk takes no more."""
        owner = folder / _OWNER
        if owner.exists():
            theirs, do = read_object(owner).get("run"), "move it elsewhere; what is pending is then sampled again"
            RunError.unless(theirs == run, "journal", f"be of the run {run}", theirs, where=str(folder), do=do)
        for file in self._all_files():
            if version - staleness <= file.version <= version:
                self._read(file)
            elif worker is None:
                file.path.unlink()
        if worker is None:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(owner, {"run": run})

    def around(self, policy: Policy, *, tree_id: str | None = None) -> Policy:
        """Return a policy that asks `policy` only for what the journal does not have, and notes what it samples.

        `tree_id` is the tree that the policy grows, between `begin_tree` and `end_tree`; None: it grows any tree.
        """
        return JournaledPolicy(policy, self, tree_id)

    def begin_tree(self, tree_id: str) -> None:
        """Get ready to grow a tree in this process; all its turns are found if it was begun before and not ended."""
        if tree_id in self._found:
            self._lines |= self._found[tree_id]
            self._read_of(self._worker)  # what the tree has sampled since
        self._found[tree_id] = {}

    def end_tree(self, tree_id: str) -> None:
        """Note that a tree is whole, and is not begun again."""
        self._found.pop(tree_id, None)

    def find(self, request: GenerateRequest, tree_id: str | None = None) -> Generation | None:
        """Return the generation that was sampled for a request before, once; None: there is none.

        `tree_id` as of `around`.
        """
        key = _key(request) if self._lines else b""
        line = self._lines.pop(key, None)
        if line is not None and tree_id in self._found:
            self._found[tree_id][key] = line
        generation = None if line is None else _generation_of(line, key)
        if generation is not None:
            self.count_reused(ReusedTurns(1, len(generation.token_ids)))
        return generation

    def read_turns_of(self, worker: str) -> None:
        """Read what another rollout worker has written since the last call, whose groups go on here."""
        self._read_of(worker)

    def _read_of(self, worker: str | None) -> None:
        for file in self._all_files():
            if file.worker == worker:
                self._read(file)

    def add(self, request: GenerateRequest, generation: Generation) -> None:
        """Note what was sampled for a request."""
        newest = max(span.policy_version for span in generation.spans)
        line = json.dumps([_key(request).hex(), generation.to_data()], separators=(",", ":")) + "\n"
        try:
            file = self._files.get(newest)
            if file is None:
                file = self._files[newest] = self._path(newest).open("a", encoding="utf-8")
            file.write(line)
            file.flush()
        except OSError as error:  # a run needs no journal to go on
            if not self._is_full:
                do = "make room; what is sampled meanwhile would be sampled again after a crash"
                warnings.warn(sentence("journal", "be writable", error, where=str(self._folder), do=do), stacklevel=2)
            self._is_full = True

    def forget(self, step: int) -> None:
        """Drop what no group can use any more, as a checkpoint holds what `step` train steps gave."""
        for version in [version for version in self._files if version < step]:
            self._files.pop(version).close()
        for item in self._all_files():
            if item.version < step - self._staleness:
                item.path.unlink()

    def drop(self, version: int) -> None:
        """Drop what a version sampled, as other weights have this version from now on."""
        file = self._files.pop(version, None)
        if file is not None:
            file.close()
        for item in self._all_files():
            if item.version == version:
                item.path.unlink()

    def count_reused(self, reused: ReusedTurns) -> None:
        """Add to the counts of what was reused, here or in a rollout worker."""
        self._reused = ReusedTurns(self._reused.turns + reused.turns, self._reused.tokens + reused.tokens)

    def take_reused(self) -> ReusedTurns:
        """Return the counts of what was reused since the last call."""
        reused, self._reused = self._reused, ReusedTurns()
        return reused

    def take_metrics(self) -> Metrics:
        """Return the counts of turns and tokens that were reused instead of sampled since the last call."""
        return {f"journal/{name}": float(count) for name, count in self.take_reused()._asdict().items() if count}

    def close(self) -> None:
        """Close the files, which are opened again when they are needed; may be called twice."""
        while self._files:
            self._files.popitem()[1].close()

    def _path(self, version: int) -> Path:
        worker = "" if self._worker is None else f".{self._worker}"
        return self._folder / f"turns-{version:08d}{worker}.jsonl"

    def _all_files(self) -> list[_TurnsFile]:
        matches = [(_NAME.fullmatch(path.name), path) for path in self._folder.glob("turns-*.jsonl")]
        return sorted(_TurnsFile(int(match[1]), path, match[2]) for match, path in matches if match)

    def _read(self, file: _TurnsFile) -> None:
        """Read a file; only the run's process, before others write, and the writer itself may mend its last line."""
        with suppress(FileNotFoundError):  # which the run's process has dropped meanwhile
            before = self._read_files.get(file.path, _ReadFile(b"", 0))
            read, lines = _read(file.path, before, mends=self._worker in (None, file.worker))
            self._read_files[file.path] = read
            self._lines.update(lines)


def open_journal(run: RunDirectory, *, staleness: int, version: int) -> TurnJournal:
    """Open the journal of a run that goes on from a version of its weights. Raises: RunError: it is another run's."""
    return TurnJournal(run.path / FOLDER, run=run.id, version=version, staleness=staleness)


class JournaledPolicy(WrappedPolicy):
    """A policy that is asked only for what its journal does not have."""

    def __init__(self, policy: Policy, journal: TurnJournal, tree_id: str | None) -> None:
        super().__init__(policy)
        self._journal, self._tree_id = journal, tree_id

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return a continuation: that of the journal, or one that is sampled now. Raises: as the policy."""
        recorded = self._journal.find(request, self._tree_id)
        if recorded is not None:
            return recorded
        generation = await self._policy.generate(request)
        if generation.finish_reason is not FinishReason.ABORT:
            self._journal.add(request, generation)
        return generation


def _key(request: GenerateRequest) -> bytes:
    """Return the digest of all that decides what is sampled, but for the weights."""
    hasher = hashlib.sha256(repr((request.seed, request.sampling)).encode())
    hasher.update(array("q", request.token_ids).tobytes())
    return hasher.digest()


def _read(path: Path, before: _ReadFile, *, mends: bool) -> tuple[_ReadFile, dict[bytes, _Line]]:
    """Return how far a file is read now, and where its turns after those read before are.

    A last line that a crash has cut is left out, and with `mends` taken off the file.
    """
    lines: dict[bytes, _Line] = {}
    with path.open("r+b" if mends else "rb") as file:
        head = file.read(_HEAD_BYTES)
        place = before.end if head.startswith(before.head) else 0
        file.seek(place)
        for line in file:
            if not line.endswith(b"\n"):
                if mends:
                    file.truncate(place)
                break
            with suppress(ValueError):  # after a power failure: what the line held is sampled again
                lines[bytes.fromhex(line[_KEY].decode("ascii"))] = _Line(path, place, len(line))
            place += len(line)
    return _ReadFile(head[:place], place), lines


def _generation_of(line: _Line, key: bytes) -> Generation | None:
    """Return the turn of a line; None: the file has gone, or has something else there."""
    try:
        with line.path.open("rb") as file:
            file.seek(line.start)
            key_hex, fields_of = json.loads(file.read(line.length))
            return Generation.from_data(fields_of) if key_hex == key.hex() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
