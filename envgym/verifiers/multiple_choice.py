"""Multiple choice: one letter, or the text of one option. Several letters are no answer."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.verifiers.base import Verdict, bad_key, key_of, right, wrong
from envgym.verifiers.extract import Extractor, final

_LETTER = re.compile(r"(?<![A-Za-z0-9'])([A-Z])(?![A-Za-z0-9'])")
_EDGES = string.whitespace + string.punctuation


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleChoice:
    """1 where the answer names the right option and no other, else 0.

    A capital letter that stands alone names its option (so does the article "A": ask for a marked answer); a text
    without one names the option whose text it is, or whose letter it is in lower case.
    """

    key: str = "answer"
    """Payload field: the right option's letter, or its whole text."""
    options: str = "options"
    """Payload field: the list of option texts, in the order A, B, C ..."""
    extract: Extractor = final

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload holds no options, or a key that is none of them."""
        options = self._options(task)
        letters = string.ascii_uppercase[: len(options)]
        key = str(key_of(task, self.key))
        key_letter = key if len(key) == 1 and key in letters else _letter_of(key, options)
        if key_letter is None:
            raise bad_key(task, self.key, f"name one of the options {letters[0]} to {letters[-1]}", key)
        extracted = self.extract(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        named = sorted({letter for letter in _LETTER.findall(extracted.answer) if letter in letters})
        if len(named) > 1:
            return wrong(f"several options are named: {', '.join(named)}")
        bare = extracted.answer.strip(_EDGES)
        chosen = named[0] if named else _letter_of(bare, options)
        if chosen is None and len(bare) == 1 and bare.upper() in letters:
            chosen = bare.upper()
        if chosen is None:
            return wrong("no option is named")
        return right(f"option {chosen}") if chosen == key_letter else wrong(f"option {chosen} is not {key_letter}")

    def _options(self, task: Task) -> list[str]:
        options = key_of(task, self.options)
        if not isinstance(options, list) or not 2 <= len(options) <= len(string.ascii_uppercase):
            raise bad_key(task, self.options, "be a list of 2 to 26 texts", options)
        return [str(option) for option in options]


def _letter_of(text: str, options: Sequence[str]) -> str | None:
    """Return the letter of the one option that reads as `text`, edges and case aside."""
    hits = [index for index, option in enumerate(options) if _bare(option) == _bare(text)]
    return string.ascii_uppercase[hits[0]] if len(hits) == 1 else None


def _bare(text: str) -> str:
    return " ".join(text.casefold().split()).strip(_EDGES)
