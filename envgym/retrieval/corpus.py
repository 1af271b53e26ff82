"""A corpus: documents in one JSONL file, read one by one through a memory map."""

import json
import mmap
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from envgym.core.json_types import well_formed
from envgym.errors import InvalidInput
from envgym.retrieval.base import Document
from envgym.runtime.cache import build_once, cache_directory, source_key

_TEXTS, _OFFSETS, _IDS, _ROWS = "documents.jsonl", "offsets.npy", "ids.npy", "rows.npy"
_FORMAT = 1


class Corpus:
    """Documents by number and by id; a folder that `write` made, opened without reading it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
        self._ids = np.load(folder / _IDS, mmap_mode="r")
        self._rows = np.load(folder / _ROWS, mmap_mode="r")
        with (folder / _TEXTS).open("rb") as file:
            self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __reduce__(self) -> tuple[type["Corpus"], tuple[Path]]:
        return Corpus, (self.folder,)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Document]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Document:
        """Return document number `row`. Raises: IndexError: there is none."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        line = self._texts[int(self._offsets[row]) : int(self._offsets[row + 1])]
        identity, title, text = json.loads(line)
        return Document(id=identity, title=title, text=text)

    def find(self, document_id: str) -> Document | None:
        """Return a document by its id, or None: a binary search among the hashes of the ids."""
        digest = _hash(document_id)
        place = int(np.searchsorted(self._ids, digest))
        while place < len(self) and self._ids[place] == digest:
            document = self[int(self._rows[place])]
            if document.id == document_id:
                return document
            place += 1
        return None


def write(documents: Iterable[Document], folder: Path) -> None:
    """Write documents into an existing, empty folder.

    Raises: InvalidInput: there is no document, or two have the same id.
    """
    offsets, ids = [0], list[np.uint64]()
    seen: set[str] = set()
    with (folder / _TEXTS).open("wb") as file:
        for item in documents:
            if item.id in seen:
                raise InvalidInput.of("document id", "be unique", f"{item.id!r} twice", where="corpus", do="rename one")
            seen.add(item.id)
            line = json.dumps([item.id, item.title, well_formed(item.text)], ensure_ascii=False)
            offsets.append(offsets[-1] + file.write(well_formed(line).encode() + b"\n"))
            ids.append(_hash(item.id))
    InvalidInput.unless(ids, "corpus", "hold documents", "none", where="corpus", do="check the source")
    hashes = np.array(ids, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    np.save(folder / _OFFSETS, np.array(offsets, dtype=np.int64))
    np.save(folder / _IDS, hashes[order])
    np.save(folder / _ROWS, order.astype(np.int64))


def corpus_at(name: str, documents: Iterable[Document]) -> Corpus:
    """Return the corpus cached under `name`, written from `documents` where it is not there yet."""
    return Corpus(
        build_once(cache_directory() / "corpora" / f"{name}-{_FORMAT}", lambda folder: write(documents, folder))
    )


def open_corpus(path: Path) -> Corpus:
    """Return the corpus of a JSONL file; it is read once, and again when its size or time changes.

    Raises: InvalidInput: it cannot be read, or a line is no document.
    """
    InvalidInput.unless(path.is_file(), "corpus", "be a JSONL file", str(path), where="corpus", do="check the path")
    return corpus_at(f"{path.stem}-{source_key(str(path))}", read_jsonl(path))


def read_jsonl(path: Path) -> Iterator[Document]:
    """Yield the documents of a JSONL file, in either form: `{"id", "title", "text"}`, or `{"id", "contents"}` with the
    title in the first line of the contents.

    Raises: InvalidInput: a line that is neither.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if line.strip():
                yield document_of(_decode(line, f"{path}:{number + 1}"), str(number), where=f"{path}:{number + 1}")


def _decode(line: str, where: str) -> object:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("line", "be JSON", line, where=where, do="correct it") from error
    return value


def document_of(row: object, default_id: str, *, where: str) -> Document:
    """Read one decoded document in either form. Raises: InvalidInput: it is neither."""
    if isinstance(row, dict):
        title, text, contents = row.get("title"), row.get("text"), row.get("contents")
        if isinstance(contents, str) and text is None:
            first, _, text = contents.partition("\n")
            title = title if isinstance(title, str) else first.strip().strip('"')
        identity = row.get("id", row.get("_id", default_id))
        if isinstance(text, str) and isinstance(identity, str | int):
            return Document(id=str(identity), title=title if isinstance(title, str) else "", text=text)
    do = 'write {"id": ..., "title": ..., "text": ...}'
    raise InvalidInput.of("document", "have a text", row, where=where, do=do)


def _hash(identity: str) -> np.uint64:
    digest = blake2b(well_formed(identity).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest))
