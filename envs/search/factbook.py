"""Questions over the World Factbook, to be looked up: `search/factbook-v0`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.envs.search._browsing import BrowsingEnv, BrowsingLimits
from envgym.envs.search._grading import FactbookMatch, check_scoring
from envgym.envs.search._library import chance_of, factbook, load_questions, retriever_of
from envgym.envs.search._questions import KINDS, UNKNOWN
from envgym.envs.world_factbook.countries import LineReference
from envgym.errors import InvalidInput, check_known
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.retrieval import Corpus, Document
from envgym.verifiers.extract import Take

_WHERE = "search/factbook-v0"


class Factbook(BrowsingEnv):
    """The agent searches and reads, then gives its answer as a message, which ends the episode."""

    system_prompt = (
        "Answer the question from the pages that you can search. End with one message that holds the answer alone "
        "between <answer> and </answer>: a name, or one number in digits, in the unit that is asked for. Where the "
        f"pages do not say it, answer {UNKNOWN}."
    )

    def __init__(
        self,
        *,
        kinds: str | Sequence[str] = KINDS,
        fiction: int | None = None,
        text_score: str = "exact",
        take: str = "only",
        tolerance: float = 0.01,
        evidence_weight: float = 0.0,
        searches: int = 12,
        pages: int = 12,
        results: int = 5,
        page_chars: int = 3_000,
        retriever_url: str | None = None,
        max_turns: int | None = 20,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the questions, and what may be looked at.

        Args:
            kinds: one_hop, join, compare, superlative, filter_count, unanswerable: one or several.
            fiction: None: the real world; a number: that fictional world, where memory does not help.
            text_score: How names are scored: `exact` (any accepted name), or `f1`.
            take: Which of several candidate answers counts: `only` (they must all be right) or `last`.
            tolerance: Relative, for numbers; counts must be exact.
            evidence_weight: Share of the reward, in [0, 1), that a right answer earns by the evidence that was read.
            searches: How often the agent may search.
            pages: How many pages it may open or look through.
            results: Hits of a search, 1 to 20.
            page_chars: Text shown of a page at once.
            retriever_url: A retrieval server with the same pages; None: BM25 in this process.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value out of its range, or a package is not installed. UnknownName: no such kind.
        """
        names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in names or ("",):
            check_known("kind", str(kind), KINDS, where=_WHERE)
        check_scoring(take, evidence_weight, where=_WHERE)
        if fiction is not None and fiction < 0:
            do = "pass e.g. 0, or None for the real world"
            raise InvalidInput.of("fiction", "be a whole number of at least 0", fiction, where=_WHERE, do=do)
        super().__init__(max_turns=max_turns, **options)
        limits = BrowsingLimits(searches=searches, pages=pages, results=results, page_chars=page_chars)
        self.browse(retriever_of(fiction, retriever_url), limits)
        self.fiction = fiction
        self.grade = FactbookMatch(text_score=text_score, tolerance=tolerance, take=Take(take))
        self.evidence_weight = evidence_weight
        names = tuple(kind for kind in KINDS if kind in names)
        self.tasks, self.chance_score = load_questions(fiction, names), chance_of(fiction, names, self.grade)

    @property
    def corpus(self) -> Corpus:
        """The pages, as `envgym serve-retriever` serves them."""
        return factbook(self.fiction)

    def respond(self, action: Action) -> Reply:
        """Score the answer, and say how much of the evidence was read."""
        answer = self.grade(action.content, self.task).score
        recall = len(self.state.read) / len(evidence_of(self.task))
        return self.scored(answer, recall)

    def note(self, document: Document, lines: Iterable[int], *, is_opened: bool) -> None:
        """Tick off the evidence that was shown: a line, or, where nothing is said, the page that would say it."""
        line_numbers = set(lines)
        read = {
            number
            for number, place in enumerate(evidence_of(self.task))
            if place.page == document.id and (place.line in line_numbers or (place.line is None and is_opened))
        }
        if not read <= self.state.read:
            self.state = replace(self.state, read=self.state.read | read)

    def oracle(self) -> str:
        """Search for the page of each piece of evidence, open it there, and answer; or answer with what is left."""
        state, limits = self.state, self.limits
        unread = (place for number, place in enumerate(evidence_of(self.task)) if number not in state.read)
        place = next(unread, None)
        if place is None or state.pages >= limits.pages:
            return f"<answer>{self.task.payload['answer']}</answer>"
        page = self.retriever.find(place.page)
        if page is not None and state.searches <= state.pages and state.searches < limits.searches:
            label = page.text.split("\n")[place.line or 0].partition(": ")[0]
            return tool_call_action("search", query=f"{page.title} {label}")
        return tool_call_action("open", page=place.page, line=1 + (place.line or 0))


def evidence_of(task: Task) -> list[LineReference]:
    """Return the lines that must be read to know the answer."""
    rows = cast(list[tuple[str, int | None]], task.payload["evidence"])  # as _questions writes it
    return [LineReference(str(page), line) for page, line in rows]
