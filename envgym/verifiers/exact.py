"""Equality of texts, after the normalisation that the author asks for."""

import re
import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.verifiers.base import ChecksKey, Verdict, judge_candidates, right, text_keys_of, wrong
from envgym.verifiers.extract import Extractor, Take, unwrapped, whole_answer

_SIGNIFICANT = frozenset(".+-#:/,")
_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys(set(string.punctuation) - _SIGNIFICANT, None),
        **dict.fromkeys("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u00b4\u2026\u00bf\u00a1", None),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    }
)
_INSIGNIFICANT = re.compile(
    r"\.(?![0-9])|(?<=[^\s0-9])\."  # 3.5 and .5 are no 35 and no 5
    r"|[:/](?![0-9])|(?<![0-9])[:/]"  # 3:15 is no 315
    r"|,(?![0-9])|(?<![0-9]),|,(?=[0-9]{3}(?![0-9]))"  # 1,5 is no 15, but 1,000 is 1000
    r"|(?<![A-Za-z+])\+|\+(?=[^\s+])"  # C++ is no C
    r"|(?<![A-Za-z])\#|\#(?=\S)"  # nor is C#
    r"|(?<=\S\S\S)-|(?<=[^\sA-Za-z])-|(?<=\s)-(?![0-9])|^-(?![0-9])|(?<=\S)-(?=\S)"  # -5 is no 5, O- is no O
)


def without_punctuation(text: str) -> str:
    """Remove punctuation, except inside and before numbers (`3.5`, `3:15`, `-5`), and at the end of `C++` and `C#`.

    A text that is nothing but punctuation stays as it is.
    """
    bare = text.translate(_PUNCTUATION)
    if not _SIGNIFICANT.isdisjoint(bare):
        bare = _INSIGNIFICANT.sub("", bare)
    return bare if bare and not bare.isspace() else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact(ChecksKey):
    r"""1 where the answer equals an accepted text, else 0; `\text{}`, `**`, `$` and quotes around it do not count."""

    key: str = "answer"
    """Payload field: the accepted text, or a list of them."""
    extract: Extractor = whole_answer
    take: Take = Take.ONLY
    """Which of several candidate answers counts."""
    ignore_case: bool = False
    ignore_space: bool = True
    """Runs of white space count as one space."""
    ignore_punctuation: bool = False
    """Punctuation is removed, as `without_punctuation` describes."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field holds no text."""
        keys = text_keys_of(task, self.key)
        return judge_candidates(self.extract(answer), lambda text: self._judge(text, keys), self.take)

    def _judge(self, text: str, keys: Sequence[str]) -> Verdict:
        normal_answer, normal_keys = self.normal(text), [self.normal(key) for key in keys]
        if normal_answer in normal_keys or (
            text[:1] in '\\*_`$"\u201c' and self.normal(unwrapped(text)) in normal_keys
        ):
            return right()
        return wrong(f"{normal_answer[:60]!r} is not {keys[0][:60]!r}")

    def normal(self, text: str) -> str:
        """Return the form that is compared; Unicode is composed (NFC) in any case."""
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            text = without_punctuation(text)
        return " ".join(text.split()) if self.ignore_space else text
