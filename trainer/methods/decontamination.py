"""Train tasks whose text overlaps with held-out tasks, found by word n-grams, and a supply of tasks without them."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from envgym.core.tasks import Split, Task, TaskSource
from envgym.errors import InvalidInput

_WORD: Final = re.compile(r"\w+")
_MOST_SKIPPED: Final = 1000
"""Tasks in a row that an endless supply may have to leave out."""


class HeldOutTexts:
    """An index of held-out texts by their n-grams of words.

    The overlap of a text with a held-out one is the share of the held-out words that lie in an n-gram which both have.
    Words are compared without case and punctuation; a text of fewer than n words is one n-gram.

    Source: 2411.15124 (TÜLU 3). Its numbers are not in our notes: 8 words and half of the held-out text are our choice.
    """

    def __init__(self, texts: Iterable[str], *, ngram: int) -> None:
        """Index texts.

        Args:
            texts: held out.
            ngram: n, in words, at least 1.
        """
        InvalidInput.unless(ngram >= 1, "ngram", "be at least 1", ngram, where="decontamination", do="pass e.g. 8")
        self._lengths: list[int] = []
        self._places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        """n-gram -> (number of the text, place of its first word)."""
        for number, text in enumerate(texts):
            words = _words(text)
            self._lengths.append(len(words))
            for place, gram in _ngrams(words, min(ngram, len(words))):
                self._places.setdefault(gram, []).append((number, place))
        self._sizes = sorted({len(gram) for gram in self._places})

    def overlap(self, text: str) -> float:
        """Return the largest overlap of a text with a held-out one, in [0, 1].

        Example: of the held-out "a b c d" the words a, b, c lie in 2-grams of "x a b c y": 3/4.
        """
        words, covered = _words(text), dict[int, set[int]]()
        for size in self._sizes:
            for _, gram in _ngrams(words, size):
                for number, place in self._places.get(gram, ()):
                    covered.setdefault(number, set()).update(range(place, place + size))
        return max((len(places) / self._lengths[number] for number, places in covered.items()), default=0.0)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _ngrams(words: Sequence[str], size: int) -> list[tuple[int, tuple[str, ...]]]:
    """Return the n-grams of some words with their places; none where there are fewer words, or none at all."""
    last = len(words) - size if size else -1
    return [(place, tuple(words[place : place + size])) for place in range(last + 1)]


class DecontaminatedTasks:
    """A supply of tasks without the train tasks that overlap with held-out ones by more than `share`."""

    def __init__(self, tasks: TaskSource, held_out: Iterable[Task], *, ngram: int, share: float, where: str) -> None:
        """Look at every train task where they end; at each as it is asked for where they do not.

        Args:
            tasks: any supply.
            held_out: tasks of it that training must not know.
            ngram: as for `HeldOutTexts`.
            share: largest overlap that is kept.
            where: names the supply in errors.

        Raises: InvalidInput: no train task is left.
        """
        self._tasks, self._share, self._where = tasks, share, where
        self._texts = HeldOutTexts((task.prompt for task in held_out), ngram=ngram)
        size = tasks.size(Split.TRAIN)
        self._indices = None if size is None else [index for index in range(size) if self._is_clean(index)]
        if size and not self._indices:
            raise self._nothing_left(size)

    def size(self, split: Split) -> int | None:
        return len(self._indices) if split is Split.TRAIN and self._indices is not None else self._tasks.size(split)

    def task(self, split: Split, index: int) -> Task:
        """Return a task. In an endless train split it is the first clean one from `index` on.

        Raises: InvalidInput: beyond the end, or no clean one comes.
        """
        if split is not Split.TRAIN:
            return self._tasks.task(split, index)
        if self._indices is not None:
            must, do = f"lie in [0, {len(self._indices)})", "choose a smaller one"
            InvalidInput.unless(0 <= index < len(self._indices), "index", must, index, where=self._where, do=do)
            return self._tasks.task(split, self._indices[index])
        for candidate in range(index, index + _MOST_SKIPPED):
            if self._is_clean(candidate):
                return self._tasks.task(split, candidate)
        raise self._nothing_left(_MOST_SKIPPED)

    def _is_clean(self, index: int) -> bool:
        return self._texts.overlap(self._tasks.task(Split.TRAIN, index).prompt) <= self._share

    def _nothing_left(self, count: int) -> InvalidInput:
        must, got = f"overlap with held-out ones by at most {self._share:g}", f"more in all of {count}"
        do = "raise decontamination.share or decontamination.ngram: texts of one template overlap"
        return InvalidInput.of("train tasks", must, got, where=self._where, do=do)
