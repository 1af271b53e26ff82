"""Question answering data in the forms in which it is shared: NQ, TriviaQA, HotpotQA, 2Wiki, MuSiQue, Bamboogle.

A row is read by the columns it has: the question (`question`, `Question`, `problem`), the answers (`golden_answers`,
`answer` as a text, a list or TriviaQA's record, with `answer_aliases`), the pages that support it (`supporting_facts`,
or `paragraphs` marked as supporting), and the pages that come with it (`context`, `paragraphs`). The other columns
become metadata.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from envgym.authoring.columns import ColumnNames, read_metadata, read_payload
from envgym.authoring.files import FileTasks
from envgym.authoring.sources import TaskDraft
from envgym.authoring.tables import Row, rows_of
from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput
from envgym.retrieval import Document

_QUESTIONS = ("question", "Question", "problem")
_ANSWERS = ("golden_answers", "answer", "Answer", "answers")
_READ = (*_ANSWERS, "answer_aliases", "supporting_facts", "context", "paragraphs")
"""Columns that are read besides the question."""
FIELDS = ("question", "answers", "titles")
"""Fields of the payload of every question; further columns add fields to the payload."""
MAX_ANSWERS = 100


class QaTasks(FileTasks):
    """The questions of a data set that have an answer; the official split wins where there is one."""

    _content_fields = FIELDS

    def __init__(self, source: str | Mapping[str, str], *, further: ColumnNames, **options: Any) -> None:
        """Prepare to read; `further` names columns of metadata and payload, `options` are those of `FileTasks`."""
        super().__init__(source, **options)
        self._further = further

    def rows(self) -> Iterator[Row]:
        """Yield every row of every table, answered or not."""
        for _, rows in super()._tables():
            yield from rows_of(rows)

    def _tables(self) -> Iterator[tuple[str, Iterable[Row]]]:
        """Leave out rows without an answer, as in a hidden test set, and tables of nothing else; count the rows."""
        for name, rows in super()._tables():
            every = list(rows_of(rows))
            answered = [row for row in every if read_answers(row)]
            self._left_out["no answer"] += len(every) - len(answered)
            if answered:
                yield name, answered

    def _draft(self, row: Row, where: str) -> TaskDraft:
        column = next((name for name in _QUESTIONS if isinstance(row.get(name), str)), None)
        if column is None:
            must = f"have a column {' or '.join(_QUESTIONS)}"
            raise InvalidInput.of("row", must, sorted(row), where=where, do="rename the column")
        titles: list[JsonValue] = [*supporting_titles(row)]
        answers: list[JsonValue] = [*read_answers(row)]
        question = row[column]
        metadata = read_metadata(row, self._further, where, read=(column, *_READ))
        prompt = question.strip() if question.strip().endswith("?") else f"{question.strip()}?"
        payload: dict[str, JsonValue] = {"question": question, "answers": answers, "titles": titles}
        payload |= read_payload(row, self._further, where)
        return TaskDraft(prompt=prompt, payload=payload, metadata={**metadata, "num_facts": len(titles)})


def read_answers(row: Row) -> list[str]:
    """Return the accepted answers, the main one first."""
    answers: list[str] = []
    for name in _ANSWERS:
        answers += _texts(row.get(name))
    aliases = _texts(row.get("answer_aliases"))
    return list(dict.fromkeys(text.strip() for text in [*answers, *aliases] if text.strip()))[:MAX_ANSWERS]


def supporting_titles(row: Row) -> list[str]:
    """Return the titles of the pages that support the answer, each once."""
    facts, paragraphs = row.get("supporting_facts"), row.get("paragraphs")
    titles: list[object] = []
    if isinstance(facts, Mapping):
        titles = list(facts.get("title") or ())
    elif isinstance(facts, Sequence) and not isinstance(facts, str):
        titles = [fact[0] for fact in facts if isinstance(fact, Sequence) and len(fact)]
    elif isinstance(paragraphs, Sequence):
        titles = [item.get("title") for item in paragraphs if isinstance(item, Mapping) and item.get("is_supporting")]
    return list(dict.fromkeys(title for title in titles if isinstance(title, str) and title))


def context_documents(rows: Iterable[Row]) -> Iterator[Document]:
    """Yield the pages that come with the questions, each once, called by title; a second one by title and number."""
    seen: set[tuple[str, str]] = set()
    counts: dict[str, int] = {}
    for row in rows:
        for title, text in _context(row):
            if (title, text) not in seen and text:
                seen.add((title, text))
                counts[title] = counts.get(title, 0) + 1
                name = title if counts[title] == 1 else f"{title} ({counts[title]})"
                yield Document(id=name, title=title, text=text)


def _context(row: Row) -> Iterator[tuple[str, str]]:
    context, paragraphs = row.get("context"), row.get("paragraphs")
    if isinstance(context, Mapping):
        texts = context.get("sentences") or context.get("content") or ()
        yield from ((str(title), _lines(text)) for title, text in zip(context.get("title") or (), texts, strict=False))
    elif isinstance(context, Sequence) and not isinstance(context, str):
        yield from ((str(item[0]), _lines(item[1])) for item in context if len(item) == 2)
    if isinstance(paragraphs, Sequence):
        for item in paragraphs:
            if isinstance(item, Mapping):
                yield str(item.get("title", "")), _lines(item.get("paragraph_text", ""))


def _lines(text: object) -> str:
    parts = [text] if isinstance(text, str) else list(text) if isinstance(text, Sequence) else []
    return "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())


def _texts(value: Any) -> list[str]:  # a decoded cell: whatever the file holds
    """Return the texts of an answer cell: a text, a number, a list of them, or TriviaQA's record."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, str | int | float):
        return [str(value)]
    if isinstance(value, Mapping):
        return [text for name in ("value", "aliases", "text") for text in _texts(value.get(name))]
    return [text for item in value for text in _texts(item)] if isinstance(value, Sequence) else []
