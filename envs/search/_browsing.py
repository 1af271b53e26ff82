"""What search environments share: a corpus, three tools to read it, and limits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import NamedTuple

from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.errors import InvalidInput, ToolError
from envgym.records import Reply
from envgym.retrieval import BadQuery, Document, Retriever
from envgym.retrieval.bm25 import words_of
from envgym.runtime.cache import cached_within
from envgym.tools import tool

MAX_RESULTS = 20
_PAGES_BYTES = 64 << 20
"""Memory for the lines and words of pages that were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsingState:
    """What an episode has looked at so far."""

    searches: int = 0
    pages: int = 0
    """Pages opened or looked through."""
    read: frozenset[int] = frozenset()
    """Which pieces of the task's evidence have been shown."""
    known_pages: Mapping[str, Document] = field(default_factory=dict)
    """Documents of the results, by id: a server may not give them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsingLimits:
    """How much may be looked at."""

    searches: int = 12
    pages: int = 12
    """Pages that may be opened or looked through."""
    results: int = 5
    """Hits of one search."""
    result_chars: int = 300
    """Text shown of one hit."""
    page_chars: int = 3_000
    """Text shown of a page at once."""

    def __post_init__(self) -> None:
        """Refuse limits that allow nothing."""
        limits = {"searches": 1000, "pages": 1000, "results": MAX_RESULTS, "result_chars": 10_000, "page_chars": 15_000}
        for name, limit in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                do = "pass a whole number in this range"
                raise InvalidInput.of(name, f"be 1 to {limit}", value, where="search environment", do=do)


class BrowsingEnv(Env[BrowsingState]):
    """An env whose agent searches, opens pages, and finds text in them."""

    retriever: Retriever
    limits: BrowsingLimits
    evidence_weight: float
    """Share of the reward, in [0, 1), that a right answer earns by the evidence that was read."""

    def browse(self, retriever: Retriever, limits: BrowsingLimits) -> None:
        """Take what is searched, and how much of it may be looked at; a constructor calls this."""
        self.retriever, self.limits = retriever, limits
        self.blocking = retriever.blocking

    def begin(self, task: Task) -> str:
        self.state = BrowsingState()
        return task.prompt

    def scored(self, answer: float, recall: float) -> Reply:
        """End with the reward of an answer, given the share of the evidence that was read."""
        value = answer * (1 - self.evidence_weight + self.evidence_weight * recall)
        return Reply(reward=Scored(value=value, components={"answer": answer, "evidence": recall}), terminated=True)

    def note(self, document: Document, lines: Iterable[int], *, is_opened: bool) -> None:
        """Take notice of lines that were shown; an env whose tasks name evidence overrides this."""

    @tool
    def search(self, query: str) -> str:
        """Find pages. Each result has the page's id and title, and the lines that fit the query best.

        Args:
            query: A few words, such as a name and what you want to know.
        """
        state = self._spend("searches")
        try:
            hits = self.retriever.search(query, self.limits.results)
        except BadQuery as error:
            raise ToolError(str(error)) from error
        self.state = replace(
            state, known_pages={**state.known_pages, **{hit.document.id: hit.document for hit in hits}}
        )
        query_words = frozenset(words_of(query))
        results = [self._result(rank, hit.document, query_words) for rank, hit in enumerate(hits, start=1)]
        return "\n".join(results) or "No page holds any of these words."

    @tool
    def open(self, page: str, line: int = 1) -> str:
        """Read a page, from a line on.

        Args:
            page: The page's id, as search results give it.
            line: Number of the first line to show.
        """
        document = self._page(page)
        lines = document.text.split("\n")
        if not 1 <= line <= len(lines):
            raise ToolError(f"line must be 1 to {len(lines)}, got {line}: {document.id} has {len(lines)} lines.")
        self.state = self._spend("pages")
        last = self._end(lines, line - 1)
        self.note(document, range(line - 1, last), is_opened=True)
        head = f"{document.id} ({document.title}), lines {line} to {last} of {len(lines)}:"
        rest = [] if last == len(lines) else [f"Open line {last + 1} to go on."]
        return "\n".join([head, *_number_lines(lines, range(line - 1, last)), *rest])

    @tool
    def find_in_page(self, page: str, text: str) -> str:
        """Show the lines of a page that hold a text, or all of its words.

        Args:
            page: The page's id, as search results give it.
            text: What to look for, in any case.
        """
        query_words = frozenset(words_of(text))
        if not text.strip() or len(text) > 1_000:
            raise ToolError(f"text must have 1 to 1000 characters, got {len(text.strip())}; look for a few words.")
        document = self._page(page)
        self.state = self._spend("pages")
        lines = document.text.split("\n")
        places = [place for place, line in enumerate(lines) if text.strip().casefold() in line.casefold()]
        if not places and query_words:
            word_places = _indexed(document).places
            places = sorted(set.intersection(*[set(word_places.get(word, ())) for word in query_words]))
        if not places:
            return f"No line of {document.id} holds {text.strip()[:100]!r}."
        shown_places = places[: self._end([lines[place] for place in places], 0)]
        self.note(document, shown_places, is_opened=True)
        rest = [f"Further lines with it: {len(places) - len(shown_places)}."] if len(shown_places) < len(places) else []
        return "\n".join([f"{document.id} ({document.title}):", *_number_lines(lines, shown_places), *rest])

    fork_state = share_state

    def _spend(self, what: str) -> BrowsingState:
        used, most = getattr(self.state, what), getattr(self.limits, what)
        if used >= most:
            raise ToolError(f"The budget of {most} {what} is used up; answer with what you know.")
        return replace(self.state, **{what: used + 1})

    def _page(self, page: str) -> Document:
        name = page.strip()
        document = self.state.known_pages.get(name) or (self.retriever.find(name) if 0 < len(name) <= 500 else None)
        if document is None:
            preview = name if len(name) <= 100 else f"{name[:100]}..."
            raise ToolError(f"There is no page {preview!r}; take an id from the search results, as it stands there.")
        return document

    def _result(self, rank: int, document: Document, query_words: frozenset[str]) -> str:
        """Show a hit, whole or with its best lines, and take notice of the lines that are whole."""
        page, left, snippets = _indexed(document), self.limits.result_chars, dict[int, str]()
        lines, is_short = page.lines, len(document.text) <= left
        for place in range(len(lines)) if is_short else _best_lines(page, query_words):
            if left <= 0:
                break
            line = lines[place]
            snippets[place] = line if len(line) <= left else f"{line[:left]}..."
            left -= len(line)
        self.note(document, [place for place, text in snippets.items() if text == lines[place]], is_opened=False)
        rows = [f"   {place + 1}: {snippets[place]}" for place in sorted(snippets)]
        return "\n".join([f"{rank}. {document.id} ({document.title})", *rows])

    def _end(self, lines: Sequence[str], start: int) -> int:
        """Return the line after the last one that fits on a page; the first always does."""
        left, end = self.limits.page_chars, start
        while end < len(lines) and (end == start or len(lines[end]) <= left):
            left -= len(lines[end])
            end += 1
        return end


def _number_lines(lines: Sequence[str], places: Iterable[int]) -> Iterator[str]:
    return (f"{place + 1}: {lines[place]}" for place in places)


class _IndexedPage(NamedTuple):
    lines: tuple[str, ...]
    places: Mapping[str, tuple[int, ...]]
    """Word -> the lines that hold it, rising."""
    title_words: frozenset[str]


@cached_within(_PAGES_BYTES)
def _indexed(document: Document) -> _IndexedPage:
    lines = tuple(document.text.split("\n"))
    places: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        for word in dict.fromkeys(words_of(line)):
            places.setdefault(word, []).append(place)
    of_words = {word: tuple(line_numbers) for word, line_numbers in places.items()}
    return _IndexedPage(lines, of_words, frozenset(words_of(document.title)))


def _best_lines(page: _IndexedPage, query_words: frozenset[str]) -> list[int]:
    """Return the lines that fit best, best first: at least half as good as the best; the first line where none fits.

    A line is as good as the sum over its wanted words of log(1 + lines of the page / lines with the word); words of the
    title do not count, as the whole page is about them.
    """
    scores: dict[int, float] = {}
    for word in sorted(query_words - page.title_words):
        if places := page.places.get(word):
            worth = log(1 + len(page.lines) / len(places))
            for place in places:
                scores[place] = scores.get(place, 0.0) + worth
    least = max(scores.values(), default=0.0) / 2
    best = [place for place, score in scores.items() if score >= least]
    return sorted(best, key=lambda place: (-scores[place], place)) or [0]
