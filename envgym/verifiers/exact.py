"""Equality of texts, after the normalisation that the author asks for."""

import string
import unicodedata
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.verifiers.base import Verdict, right, text_keys_of, wrong
from envgym.verifiers.extract import Extractor, whole_answer

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """1 where the answer equals an accepted text, else 0."""

    key: str = "answer"
    """Payload field: the accepted text, or a list of them."""
    extract: Extractor = whole_answer
    ignore_case: bool = False
    ignore_space: bool = True
    """Runs of white space count as one space."""
    ignore_punctuation: bool = False
    """ASCII punctuation is removed."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field holds no text."""
        keys = text_keys_of(task, self.key)
        extracted = self.extract(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        normal_answer = self.normal(extracted.answer)
        if any(normal_answer == self.normal(key) for key in keys):
            return right()
        return wrong(f"{normal_answer[:60]!r} is not {keys[0][:60]!r}")

    def normal(self, text: str) -> str:
        """Return the form that is compared; Unicode is composed (NFC) in any case."""
        text = unicodedata.normalize("NFC", text)
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            text = text.translate(_NO_PUNCTUATION)
        return " ".join(text.split()) if self.ignore_space else text
