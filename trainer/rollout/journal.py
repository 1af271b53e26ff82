"""The journal: every turn that was sampled for steps which no checkpoint holds yet, so that none is sampled again.

    RUN/journal/owner.json                  the run that it is of
                turns-00000012.jsonl        a line for each generation whose newest token is of version 12

A resumed run begins its groups anew, with the seeds that they had. Where it asks for a continuation that the journal
has (same context, same sampling, same seed), it gets that one: finished episodes and branches come back whole,
unfinished ones go on after their last finished turn, and only what is left is sampled. Envs take their steps again; one
that answers otherwise than before makes another context, which the journal does not have.

Turns of weights that the resumed run does not know, as no checkpoint holds them, are dropped.
"""

import hashlib
import json
import re
import warnings
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from envgym.agents.policies.wrapped import WrappedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy
from envgym.errors import RunError, sentence
from envgym.runs.directory import RunDirectory, read_object
from envgym.runs.files import write_json
from envgym.trainer.metrics.update import Metrics

_FOLDER: Final = "journal"
_OWNER: Final = "owner.json"
_NAME: Final = re.compile(r"turns-(\d{8,})\.jsonl")


class _Reused(NamedTuple):
    turns: int = 0
    tokens: int = 0


class TurnJournal:
    """The journal of one run, with one writer."""

    def __init__(self, folder: Path, *, run: str, version: int, staleness: int) -> None:
        """Read what the run may use again, drop the rest, and get ready to write.

        Args:
            folder: made where it is missing.
            run: id of the run.
            version: of the weights from which the run goes on; what newer ones sampled is dropped.
            staleness: versions by which a sample may be older than the weights that it trains.

        Raises: RunError: it is the journal of another run.
        """
        self._folder, self._staleness = folder, staleness
        self._turns: dict[bytes, Generation] = {}
        self._files: dict[int, TextIO] = {}
        self._reused = _Reused()
        self._is_full = False
        """Whether it was said that the disk takes no more."""
        owner = folder / _OWNER
        if owner.exists():
            theirs, do = read_object(owner).get("run"), "move it elsewhere; what is pending is then sampled again"
            RunError.unless(theirs == run, "journal", f"be of the run {run}", theirs, where=str(folder), do=do)
        for number, path in self._versions():
            if version - staleness <= number <= version:
                self._turns.update(_read(path))
            else:
                path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(owner, {"run": run})

    def around(self, policy: Policy) -> Policy:
        """Return a policy that asks `policy` only for what the journal does not have, and notes what it samples."""
        return JournaledPolicy(policy, self)

    def find(self, request: GenerateRequest) -> Generation | None:
        """Return the generation that was sampled for a request before, once; None: there is none."""
        generation = self._turns.pop(_key(request), None) if self._turns else None
        if generation is not None:
            turns, tokens = self._reused
            self._reused = _Reused(turns + 1, tokens + len(generation.token_ids))
        return generation

    def add(self, request: GenerateRequest, generation: Generation) -> None:
        """Note what was sampled for a request."""
        newest = max(span.policy_version for span in generation.spans)
        line = json.dumps([_key(request).hex(), generation.to_data()], separators=(",", ":")) + "\n"
        try:
            file = self._files.get(newest)
            if file is None:
                path = self._folder / f"turns-{newest:08d}.jsonl"
                file = self._files[newest] = path.open("a", encoding="utf-8")
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
        for version, path in self._versions():
            if version < step - self._staleness:
                path.unlink()

    def drop(self, version: int) -> None:
        """Drop what a version sampled, as other weights have this version from now on."""
        file = self._files.pop(version, None)
        if file is not None:
            file.close()
        (self._folder / f"turns-{version:08d}.jsonl").unlink(missing_ok=True)

    def take_metrics(self) -> Metrics:
        """Return the counts of turns and tokens that were reused instead of sampled since the last call."""
        reused, self._reused = self._reused, _Reused()
        return {f"journal/{name}": float(count) for name, count in reused._asdict().items() if count}

    def close(self) -> None:
        """Close the files; may be called twice."""
        while self._files:
            self._files.popitem()[1].close()

    def _versions(self) -> list[tuple[int, Path]]:
        matches = [(_NAME.fullmatch(path.name), path) for path in self._folder.glob("turns-*.jsonl")]
        return sorted((int(match[1]), path) for match, path in matches if match)


def open_journal(run: RunDirectory, *, staleness: int, version: int) -> TurnJournal:
    """Open the journal of a run that goes on from a version of its weights. Raises: RunError: it is another run's."""
    return TurnJournal(run.path / _FOLDER, run=run.id, version=version, staleness=staleness)


class JournaledPolicy(WrappedPolicy):
    """A policy that is asked only for what its journal does not have."""

    def __init__(self, policy: Policy, journal: TurnJournal) -> None:
        super().__init__(policy)
        self._journal = journal

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return a continuation: that of the journal, or one that is sampled now. Raises: as the policy."""
        recorded = self._journal.find(request)
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


def _read(path: Path) -> Iterator[tuple[bytes, Generation]]:
    """Yield the turns of a file; a last line that a crash has cut is taken off it."""
    with path.open("r+b") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        file.truncate(whole)
    for line in data[:whole].splitlines():
        try:
            key, fields_of = json.loads(line)
            turn = bytes.fromhex(key), Generation.from_data(fields_of)
        except (ValueError, TypeError, KeyError):  # after a power failure: what it held is sampled again
            continue
        yield turn
