"""Overlap of words between answer and key.

F1 = 2 P R / (P + R), with P = shared words / words of the answer, R = shared words / words of the key.
Source: 1606.05250 (SQuAD), with its normalisation: lower case, no punctuation, no articles.
"""

import re
import string
from collections import Counter
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.verifiers.base import Verdict, text_keys_of, wrong
from envgym.verifiers.extract import Extractor, whole_answer

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class F1:
    """The best F1 over the accepted answers."""

    key: str = "answer"
    """Payload field: the accepted text, or a list of them."""
    extract: Extractor = whole_answer

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field holds no text."""
        keys = text_keys_of(task, self.key)
        extracted = self.extract(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        answer_words = words(extracted.answer)
        score, key = max((token_f1(answer_words, words(key)), key) for key in keys)
        return Verdict(score=score, reason=f"F1 {score:.3f} with {key[:60]!r}")


def words(text: str) -> list[str]:
    """Return the words that are compared."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def token_f1(answer_words: list[str], key: list[str]) -> float:
    """Return F1 of two bags of words; 1 where both are empty, 0 where one is."""
    if not answer_words or not key:
        return float(answer_words == key)
    shared = sum((Counter(answer_words) & Counter(key)).values())
    return 2.0 * shared / (len(answer_words) + len(key))
