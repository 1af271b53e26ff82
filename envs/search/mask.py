"""Texts with masked words, to be found in the pages of a corpus: `search/mask-v0`. Source: 2505.20285."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from envgym.authoring.sources import GeneratedTasks, SplitTasks, TaskDraft, check_range
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task, split_of
from envgym.core.turns import Scored
from envgym.envs.search._browsing import BrowsingEnv, BrowsingLimits
from envgym.envs.search._library import factbook
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.retrieval import Bm25, Cached, Corpus, Document, Retriever
from envgym.retrieval.corpus import open_corpus
from envgym.runtime.cache import source_key
from envgym.verifiers.extract import unwrapped, without_thoughts
from envgym.verifiers.f1 import token_f1, words

MOST_MASKS: Final = 8
_WHERE: Final = "search/mask-v0"
_SHORTEST, _LONGEST = 40, 800
"""Characters of a text with masks."""
_MAX_DRAWS: Final = 2000
_SAMPLE: Final = 300
"""Test tasks of which the chance score is computed."""
_SPAN = re.compile(r"\d[\d,.]*\d|\d|[A-Z][\w'\u2019-]+(?: (?:of |the |de )?[A-Z][\w'\u2019-]+)*")
"""A number, or a name of one or several words."""
_HIDDEN = re.compile(r"\([^()]*\)|(?:^|[.?!]\s+)[A-Z][\w'\u2019-]*")
"""Where no mask begins: in brackets, which often have the year of a number, and at the capital of a sentence."""
_MARKED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LINE = re.compile(r"\s*\[?(?:mask\s+)?(\d{1,3})\]?\s*(?::|[.)](?=\s))\s*(\S.*)", re.IGNORECASE)


class Masked(BrowsingEnv):
    """The agent searches for a text some of whose words are masked, and gives the words, which ends the episode."""

    system_prompt = (
        "Some words of a text are masked. Find them in the pages that you can search. End with one message that has a "
        "line for each mask between <answer> and </answer>: the number of the mask, a colon, and the words alone."
    )

    def __init__(
        self,
        *,
        masks: int | Sequence[int] = (1, 2, 3, 4),
        corpus: str | None = None,
        fiction: int | None = None,
        titles: bool = True,
        format_weight: float = 0.1,
        searches: int = 10,
        pages: int = 10,
        results: int = 5,
        page_chars: int = 3_000,
        max_turns: int | None = 15,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the corpus, and how many words are masked.

        Args:
            masks: Masks of a text, 1 to 8: the difficulty; of several numbers each task draws one.
            corpus: A JSONL file of documents; None: the pages of the World Factbook.
            fiction: Number of a fictional world of the factbook, where memory does not help; None: the real world.
            titles: Whether a task says the title of the page that has the text.
            format_weight: Share of the reward, in [0, 1), for a line for each mask.
            searches: How often the agent may search.
            pages: How many pages it may open or look through.
            results: Hits of a search, 1 to 20.
            page_chars: Text shown of a page at once.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value out of its range, a corpus without texts for so many masks, or a package is not
            installed.
        """
        numbers = (masks,) if isinstance(masks, int) else tuple(sorted(set(masks)))
        for number in numbers or (0,):
            check_range("masks", number, 1, MOST_MASKS, where=_WHERE)
        is_share, do = 0.0 <= format_weight < 1.0, "pass e.g. 0.1, or 0 for none"
        InvalidInput.unless(is_share, "format_weight", "lie in [0, 1)", format_weight, where=_WHERE, do=do)
        do = "pass one of them"
        is_one = corpus is None or fiction is None
        InvalidInput.unless(is_one, "corpus and fiction", "not both be given", corpus, where=_WHERE, do=do)
        super().__init__(max_turns=max_turns, **options)
        self.corpus, retriever = supply_of(corpus, None if corpus is None else source_key(corpus), fiction)
        limits = BrowsingLimits(searches=searches, pages=pages, results=results, page_chars=page_chars)
        self.browse(retriever, limits)
        self.format_weight, self.evidence_weight = format_weight, 0.0
        draw = MaskDraws(self.corpus, numbers, titles)
        self.tasks = SplitTasks(
            train=GeneratedTasks(partial(draw, Split.TRAIN), name=_WHERE, test_fraction=0.0),
            test=GeneratedTasks(partial(draw, Split.TEST), name=_WHERE, test_fraction=1.0),
        )
        self.chance_score = chance_of(draw, format_weight)

    def respond(self, action: Action) -> Reply:
        """Score the words of each mask, and say whether the page of the text was read."""
        spans = spans_of(self.task)
        answers = read_lines(action.content, len(spans))
        scores = [
            token_f1(words(unwrapped(answers[number])), words(span)) if number in answers else 0.0
            for number, span in enumerate(spans, start=1)
        ]
        mean, form = sum(scores) / len(scores), float(len(answers) == len(spans))
        value = (1 - self.format_weight) * mean + self.format_weight * form
        parts = {
            "answer": mean,
            "format": form,
            "exact": float(min(scores) == 1.0),
            "evidence": float(len(self.state.read)),
        }
        return Reply(reward=Scored(value=value, components=parts), terminated=True)

    def note(self, document: Document, lines: Iterable[int], *, is_opened: bool) -> None:
        """Tick off the line of the text."""
        if document.id == self.task.payload["page"] and self.task.payload["line"] in set(lines):
            self.state = replace(self.state, read=frozenset({0}))

    def oracle(self) -> str:
        """Search for the words that are not masked, open the page, and answer."""
        state, payload = self.state, self.task.payload
        if not state.read and state.searches == 0:
            text = self.task.prompt.partition(":\n\n")[2]
            return tool_call_action("search", query=" ".join(re.sub(r"\[mask \d+\]", " ", text).split())[:500])
        if not state.read and state.pages == 0:
            return tool_call_action("open", page=payload["page"], line=1 + cast(int, payload["line"]))
        lines = [f"{number}: {span}" for number, span in enumerate(spans_of(self.task), start=1)]
        return "<answer>\n" + "\n".join(lines) + "\n</answer>"


@dataclass(frozen=True, slots=True)
class MaskDraws:
    """Draws texts of a corpus and masks of them; a page is on one side of the split with all of its texts."""

    corpus: Corpus
    masks: tuple[int, ...]
    titles: bool

    def __call__(self, split: Split, rng: np.random.Generator) -> TaskDraft:
        """Draw a task. Raises: InvalidInput: the corpus has no text for so many masks, as far as was looked."""
        count = int(rng.choice(self.masks))
        for _ in range(_MAX_DRAWS):
            document = self.corpus[int(rng.integers(len(self.corpus)))]
            if split_of({"page": document.id}) is split:
                title = document.title if self.titles else ""
                lines = enumerate(document.text.split("\n"))
                texts = [(line, text) for line, text in lines if _is_fit(text, title, count)]
                if texts:
                    line, text = texts[int(rng.integers(len(texts)))]
                    return self._draft(document, line, text, count, rng)
        must, do = f"hold texts with {count} names or numbers", "lower masks, or take another corpus"
        raise InvalidInput.of("corpus", must, f"none in {_MAX_DRAWS} pages", where=_WHERE, do=do)

    def _draft(self, document: Document, line: int, text: str, count: int, rng: np.random.Generator) -> TaskDraft:
        spans = salient(text, document.title if self.titles else "")
        masked_spans = [spans[place] for place in sorted(rng.choice(len(spans), size=count, replace=False))]
        masked, end = "", 0
        for number, span in enumerate(masked_spans, start=1):
            masked += f"{text[end : span.start()]}[mask {number}]"
            end = span.end()
        title = f" from the page {document.title!r}" if self.titles else ""
        payload: JsonObject = {"page": document.id, "line": line, "spans": [span.group() for span in masked_spans]}
        prompt = f"Fill the masks of this text{title}:\n\n{masked}{text[end:]}"
        return TaskDraft(prompt=prompt, payload=payload, metadata={"difficulty": count})


@lru_cache(maxsize=8)
def supply_of(corpus: str | None, key: str | None, fiction: int | None) -> tuple[Corpus, Retriever]:
    """Return a corpus and its search, the same for all envs; `key` changes with the file. Raises: as `open_corpus`."""
    pages = factbook(fiction) if corpus is None else open_corpus(Path(corpus))
    return pages, Cached(Bm25(pages))


def salient(text: str, title: str = "") -> list[re.Match[str]]:
    """Return the names and numbers of a text that may be masked: outside brackets, once in it, and not in the title."""
    hidden = [match.span() for match in _HIDDEN.finditer(text)]
    spans = [match for match in _SPAN.finditer(text) if not any(begin <= match.start() < end for begin, end in hidden)]
    return [span for span in spans if text.count(span.group()) == 1 and span.group() not in title]


def _is_fit(text: str, title: str, count: int) -> bool:
    return _SHORTEST <= len(text) <= _LONGEST and len(salient(text, title)) >= count


def spans_of(task: Task) -> list[str]:
    """Return the masked words of a task, in the order of the masks."""
    return cast(list[str], task.payload["spans"])  # as `MaskDraws` writes it


def read_lines(text: str, count: int) -> Mapping[int, str]:
    """Return the words that an answer gives for each mask, by number.

    A mask with two different lines has none. One mask needs no number. Without `<answer>` there is no answer.
    """
    marked = _MARKED.findall(without_thoughts(text))
    lines = [line.strip() for line in marked[-1].splitlines() if line.strip()] if marked else []
    texts_of: dict[int, set[str]] = {}
    for line in lines:
        if match := _LINE.fullmatch(line):
            texts_of.setdefault(int(match[1]), set()).add(match[2].strip())
    if count == 1 and 1 not in texts_of and len(lines) == 1:
        return {1: lines[0]}
    return {number: next(iter(texts)) for number, texts in texts_of.items() if len(texts) == 1 and 1 <= number <= count}


@lru_cache(maxsize=16)
def chance_of(draw: MaskDraws, format_weight: float) -> float:
    """Return the score of the best constant answer of the right form, of some test tasks."""
    tasks = GeneratedTasks(partial(draw, Split.TEST), name=f"{_WHERE} chance", test_fraction=1.0)
    spans = [span for index in range(_SAMPLE) for span in spans_of(tasks.task(Split.TEST, index))]
    common = [words(span) for span, _ in Counter(spans).most_common(20)]
    keys = [words(span) for span in spans]
    best = max(sum(token_f1(guess, key) for key in keys) / len(keys) for guess in common)
    return (1 - format_weight) * best + format_weight
