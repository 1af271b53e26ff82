"""Overlap of words between answer and key.

F1 = 2 P R / (P + R), with P = shared words / words of the answer, R = shared words / words of the key.
Source: 1606.05250 (SQuAD), with its normalisation: lower case, no punctuation, no articles. Deviations: what would
leave nothing stays (keys such as `A` and `+`), and so do the signs of numbers (`3.5`, `-5`) and of `C++` and `C#`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.verifiers.base import ChecksKey, Verdict, judge_candidates, text_keys_of
from envgym.verifiers.exact import without_punctuation
from envgym.verifiers.extract import Extractor, Take, unwrapped, whole_answer

_ARTICLES = frozenset(("a", "an", "the"))


@dataclass(frozen=True, slots=True, kw_only=True)
class F1(ChecksKey):
    """The best F1 over the accepted answers."""

    key: str = "answer"
    """Payload field: the accepted text, or a list of them."""
    extract: Extractor = whole_answer
    take: Take = Take.ONLY
    """Which of several candidate answers counts."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field holds no text."""
        keys = text_keys_of(task, self.key)
        extracted = self.extract(answer)
        is_one = len(extracted.candidates) > 1 and len({tuple(words(text)) for text in extracted.candidates}) == 1
        return judge_candidates(extracted, lambda text: _judge(text, keys), Take.LAST if is_one else self.take)


def _judge(text: str, keys: Sequence[str]) -> Verdict:
    answer_words = words(unwrapped(text))
    score, key = max((token_f1(answer_words, words(key)), key) for key in keys)
    return Verdict(score=score, reason=f"F1 {score:.3f} with {key[:60]!r}")


def words(text: str) -> list[str]:
    """Return the words that are compared; of a text that is nothing but articles, the articles."""
    all_words = without_punctuation(text.lower()).split()
    return [word for word in all_words if word not in _ARTICLES] or all_words


def token_f1(answer_words: list[str], key: list[str]) -> float:
    """Return F1 of two bags of words; 1 where both are empty, 0 where one is."""
    if not answer_words or not key:
        return float(answer_words == key)
    unmatched, shared = Counter(key), 0
    for word in answer_words:
        if unmatched.get(word):
            unmatched[word] -= 1
            shared += 1
    return 2.0 * shared / (len(answer_words) + len(key))
