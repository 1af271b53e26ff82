"""Write a text that meets an outline: plain clauses on the topic, put together by their numbers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from envgym.envs.data_files import read_toml
from envgym.envs.math._instructions.outline import Outline
from envgym.envs.math._instructions.written import WrittenText, split_words

DATA: Mapping[str, Any] = read_toml("math/data/instructions.toml")
MAX_ROUNDS = 6
"""A second round of filling is usual, where clauses were joined; more are not needed."""


class OutlineTooNarrow(Exception):
    """No clauses are left that the outline allows."""


def write_text(outline: Outline) -> str:
    """Write a text for an outline. Raises: OutlineTooNarrow: it asks for too much."""
    return _Writer(outline).write()


class _Writer:
    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.carriers = self._allowed(DATA["carriers"])
        self.openers = self._allowed(DATA["openers"])
        self.names = self._allowed(DATA["placeholders"])
        start = crc32(outline.fixed_text.encode()) % len(DATA["clauses"])
        turned = (*DATA["clauses"][start:], *DATA["clauses"][:start])
        allowed = [clause.replace("{}", outline.topic) for clause in self._allowed(turned)]
        letters = [letter for letter, _ in outline.letters]
        self.fillers = iter(sorted(allowed, key=lambda clause: -sum(clause.count(letter) for letter in letters)))
        if not (self.carriers and self.openers):
            raise OutlineTooNarrow
        self.num_slots = len(outline.keys) or outline.sections or outline.paragraphs

    def write(self) -> str:
        outline = self.outline
        clauses = list(self._required())
        for _ in range(MAX_ROUNDS):
            text = self._arrange(clauses)
            written = WrittenText(text)
            missing = outline.min_words - len(written.words)
            lacks_letters = any(written.folded.count(letter) < count for letter, count in outline.letters)
            if missing <= 0 and not lacks_letters:
                return text
            if lacks_letters:
                clauses.append(self._filler())
            while missing > 0:
                clauses.append(self._filler())
                missing -= len(split_words(clauses[-1]))
        raise OutlineTooNarrow

    def _allowed(self, texts: Sequence[str]) -> list[str]:
        """Keep texts without what is avoided, and without words whose number counts."""
        outline = self.outline
        banned, letters = outline.reserved - {outline.topic}, frozenset(outline.avoided_letters)
        return [text for text in texts if letters.isdisjoint(text) and banned.isdisjoint(_vocabulary(text))]

    def _filler(self) -> str:
        try:
            return next(self.fillers)
        except StopIteration:
            raise OutlineTooNarrow from None

    def _required(self) -> Iterator[str]:
        """Yield the clauses without which no constraint on words holds; the first one names the topic."""
        outline = self.outline
        if outline.placeholders > len(self.names):
            raise OutlineTooNarrow
        for word, count in ((outline.topic, outline.topic_count), *outline.words):
            yield from (self._carry(word, number) for number in range(count))
        yield from (self._carry(f"[{name}]", number) for number, name in enumerate(self.names[: outline.placeholders]))

    def _carry(self, word: str, number: int) -> str:
        return self.carriers[number % len(self.carriers)].replace("{}", word)

    def _arrange(self, clauses: list[str]) -> str:
        """Put clauses into the slots of the text; more are added where a slot would stay empty."""
        outline = self.outline
        word = outline.bullet_word
        bullets = [self._carry(word, number) if word else "" for number in range(outline.bullets)]
        quotas = self._quotas()
        least = sum(max(quota, 1) for quota in quotas)
        num_taken = sum(not bullet for bullet in bullets)
        while len(clauses) < least + num_taken:
            clauses.append(self._filler())
        rest = iter(clauses[least : least + num_taken])
        bullets = [bullet or next(rest) for bullet in bullets]
        slots: list[list[str]] = [[] for _ in quotas]
        fitting = [*clauses[:least], *clauses[least + num_taken :]]
        for number, quota in enumerate(quotas):
            slots[number], fitting = fitting[: max(quota, 1)], fitting[max(quota, 1) :]
        for number, clause in enumerate(fitting):
            slots[number % len(slots)].append(clause)
        place, first = outline.opening
        if place:
            slots[place - 1][0] = f"{self.openers[0].replace('{}', first)} and {slots[place - 1][0]}"
        sentences = [_sentences(slot, quota) for slot, quota in zip(slots, quotas, strict=True)]
        if outline.keys:
            texts = (" ".join(part) for part in sentences)
            text = json.dumps(dict(zip(outline.keys, texts, strict=True)), ensure_ascii=False)
        else:
            text = self._join(sentences, bullets)
        return text.lower() if outline.is_lower else text.upper() if outline.is_upper else text

    def _quotas(self) -> list[int]:
        """Return how many sentences each slot has; 0: one for each clause."""
        outline, num = self.outline, self.num_slots
        if outline.paragraph_sentences:
            quotas = [outline.paragraph_sentences] * num
            quotas[0] -= bool(outline.start)
            quotas[-1] -= bool(outline.end)
        elif outline.sentences:
            fixed = outline.has_title + outline.sections + outline.bullets + bool(outline.start) + bool(outline.end)
            each, more = divmod(outline.sentences - fixed, num)
            quotas = [each + (number < more) for number in range(num)]
        else:
            return [0] * num
        if min(quotas) < 1:
            raise OutlineTooNarrow
        return quotas

    def _join(self, sentences: Sequence[Sequence[str]], bullets: Sequence[str]) -> str:
        outline = self.outline
        blocks = [
            [*([f"Part {number}"] if outline.sections else []), " ".join(part)]
            for number, part in enumerate(sentences, start=1)
        ]
        if outline.has_title:
            blocks[0].insert(0, f"<<{_capitalized(outline.topic)}>>")
        if outline.start:
            blocks[0].insert(0, f"{outline.start}.")
        blocks[-1] += [f"- {_capitalized(bullet)}." for bullet in bullets]
        if outline.end:
            blocks[-1].append(outline.end)
        return "\n\n".join("\n".join(block) for block in blocks)


def _sentences(clauses: Sequence[str], quota: int) -> list[str]:
    """Join clauses into as many sentences as the quota says; 0: one each."""
    num = quota or len(clauses)
    groups = [clauses[number::num] for number in range(num)]
    return [f"{_capitalized(' and '.join(group))}." for group in groups]


@lru_cache(maxsize=512)
def _vocabulary(text: str) -> frozenset[str]:
    return frozenset(split_words(text.lower()))


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
