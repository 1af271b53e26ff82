"""Open-domain questions of any data set over any corpus: `search/qa-v0`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from envgym.authoring.checked_tasks import checked_tasks
from envgym.authoring.columns import ColumnNames, further_columns
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.envs.search._browsing import BrowsingEnv, BrowsingLimits
from envgym.envs.search._grading import F1_CHANCE, TEXT_SCORES, check_scoring
from envgym.envs.search._qa import FIELDS, QaTasks, context_documents
from envgym.errors import InvalidInput, check_known
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.retrieval import Bm25, Cached, Document, Retriever
from envgym.retrieval.corpus import corpus_at, open_corpus
from envgym.runtime.cache import source_key
from envgym.verifiers.base import Verdict, bad_key, judge_candidates, right, wrong
from envgym.verifiers.extract import Take, final, unwrapped
from envgym.verifiers.f1 import F1, words

CONTEXT = "context"
_WHERE = "search/qa-v0"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordMatch:
    """1 where the answer has the words of an accepted one, in order; case, punctuation and articles aside.

    Source: 1606.05250 (SQuAD), its exact match.
    """

    take: Take = Take.ONLY
    """Which of several candidate answers counts."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        keys = [key_words for key in _accepted_answers(task) if (key_words := words(key))]
        verdicts = {True: right(), False: wrong("no accepted answer")}
        return judge_candidates(final(answer), lambda text: verdicts[words(unwrapped(text)) in keys], self.take)

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: no accepted answer has a word."""
        keys = _accepted_answers(task)
        if not any(map(words, keys)):
            raise bad_key(task, "answers", "hold a text with a word", keys)


class OpenQa(BrowsingEnv):
    """The agent searches and reads, then gives its answer as a message, which ends the episode."""

    system_prompt = (
        "Answer the question from the pages that you can search. End with one message that holds the answer alone, a "
        "few words, between <answer> and </answer>."
    )

    def __init__(
        self,
        *,
        data: str | Mapping[str, str] | None = None,
        corpus: str | None = None,
        config: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        text_score: str = "exact",
        take: str = "only",
        evidence_weight: float = 0.0,
        searches: int = 10,
        pages: int = 10,
        results: int = 3,
        result_chars: int = 700,
        page_chars: int = 3_000,
        retriever_url: str | None = None,
        max_turns: int | None = 15,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose questions and corpus.

        Args:
            data: A `.jsonl` or `.parquet` file, a mapping from split to file, a data set directory, or a hub name.
            corpus: A JSONL file, or `context`: the pages that come with the questions.
            config: Configuration of the data set, where it has several.
            revision: Commit or tag of a hub data set.
            splits: Official split -> train or test; None: the usual names are understood.
            columns: Further columns of the data set: `metadata` has one, a list of them, or `*` (all others); other
                keys are fields of the payload. None: all others are metadata.
            text_score: `exact` (SQuAD's exact match), or `f1`.
            take: Which of several candidate answers counts: `only` (they must all be right) or `last`.
            evidence_weight: Share of the reward, in [0, 1), that a right answer earns by the supporting pages it read.
            searches: How often the agent may search.
            pages: How many pages it may open or look through.
            results: Hits of a search, 1 to 20.
            result_chars: Text shown of each hit.
            page_chars: Text shown of a page at once.
            retriever_url: A retrieval server, instead of `corpus`.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: no data or nothing to search, a value out of its range, a package that is not installed.
        """
        check_known("text_score", text_score, TEXT_SCORES, where=_WHERE)
        check_scoring(take, evidence_weight, where=_WHERE)
        if data is None or (corpus is None) == (retriever_url is None):
            got = f"data={data}, corpus={corpus}, retriever_url={retriever_url}"
            do = "pass data=questions.jsonl and corpus=wiki.jsonl (or corpus=context, or retriever_url)"
            raise InvalidInput.of("data and one of corpus and retriever_url", "be given", got, where=_WHERE, do=do)
        super().__init__(max_turns=max_turns, **options)
        further = further_columns(columns, filled_fields=FIELDS, where=_WHERE)
        place = data if isinstance(data, str) else tuple(data.items())
        source = QuestionSource(place, config, revision, _items(splits), further)
        limits = BrowsingLimits(
            searches=searches, pages=pages, results=results, result_chars=result_chars, page_chars=page_chars
        )
        self.browse(_retriever(source, corpus, retriever_url), limits)
        counts = Take(take)
        self.grade = WordMatch(take=counts) if text_score == "exact" else F1(key="answers", extract=final, take=counts)
        self.tasks = checked_tasks(_load(source), [self.grade])
        self.chance_score = _chance(source, text_score)
        self.evidence_weight = evidence_weight

    def respond(self, action: Action) -> Reply:
        """Score the answer, and say how many of the supporting pages were read."""
        answer = self.grade(action.content, self.task).score
        titles = _titles(self.task)
        recall = len(self.state.read) / len(titles) if titles else 1.0
        return self.scored(answer, recall)

    def note(self, document: Document, lines: Iterable[int], *, is_opened: bool) -> None:
        """Tick off a supporting page that was opened, or shown as a whole."""
        if is_opened or set(lines) >= set(range(document.text.count("\n") + 1)):
            read = {number for number, title in enumerate(_titles(self.task)) if title == document.title}
            self.state = replace(self.state, read=self.state.read | read)

    def oracle(self) -> str:
        """Search for each supporting page by its title, open it where it is found, and answer."""
        state, limits = self.state, self.limits
        unread = [title for number, title in enumerate(_titles(self.task)) if number not in state.read]
        if not unread or state.pages >= limits.pages or state.searches >= limits.searches:
            return f"<answer>{_accepted_answers(self.task)[0]}</answer>"
        documents = [item for item in state.known_pages.values() if item.title == unread[0]]
        return (
            tool_call_action("open", page=documents[0].id) if documents else tool_call_action("search", query=unread[0])
        )


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """Where questions come from."""

    data: str | tuple[tuple[str, str], ...]
    config: str | None
    revision: str | None
    splits: tuple[tuple[str, str], ...] | None
    columns: ColumnNames
    """Further ones."""


@lru_cache(maxsize=8)
def _load(source: QuestionSource) -> QaTasks:
    """Return the questions; nobody changes them, so envs share them."""
    data = source.data if isinstance(source.data, str) else dict(source.data)
    splits = None if source.splits is None else dict(source.splits)
    return QaTasks(data, further=source.columns, config=source.config, revision=source.revision, splits=splits)


@lru_cache(maxsize=8)
def _retriever(source: QuestionSource, corpus: str | None, url: str | None) -> Retriever:
    if url is not None:
        from envgym.retrieval.http_client import HttpRetriever

        return Cached(HttpRetriever(url))
    if corpus != CONTEXT:
        return Cached(Bm25(open_corpus(Path(str(corpus)))))
    files = [source.data] if isinstance(source.data, str) else [path for _, path in source.data]
    parts = [*map(source_key, files), str(source.config), str(source.revision)]
    key = blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
    return Cached(Bm25(corpus_at(f"context-{key}", context_documents(_load(source).rows()))))


@lru_cache(maxsize=16)
def _chance(source: QuestionSource, text_score: str) -> float:
    """Return the share of questions that the most frequent answer is right on, in the worse of the splits."""
    tasks, best = _load(source), 0.0
    for split in Split:
        size = tasks.size(split)
        accepted = [
            {" ".join(words(key)) for key in _accepted_answers(tasks.task(split, index))} for index in range(size)
        ]
        counts = Counter(key for keys in accepted for key in keys)
        best = max([best, *(count / size for count in counts.values())])
    return min(1.0, best + (F1_CHANCE if text_score == "f1" else 0.0))


def _items(splits: Mapping[str, str] | None) -> tuple[tuple[str, str], ...] | None:
    return None if splits is None else tuple(splits.items())


def _accepted_answers(task: Task) -> list[str]:
    return cast(list[str], task.payload["answers"])  # as QaTasks writes it


def _titles(task: Task) -> list[str]:
    return cast(list[str], task.payload["titles"])  # as QaTasks writes it
