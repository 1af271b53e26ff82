"""What a shipped theorem of `math/proofs-v0` is: its statement and a proof of it, drawn together."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

ItemT = TypeVar("ItemT")
_WORD = re.compile(r"[A-Za-z_][\w']*(?:\.[A-Za-z_][\w']*)*|\d+")
_WORDS = "forall match with end Fixpoint Inductive Prop nat list Type False S length rev map"
"""Of Coq and of its library, as theorems use them."""


class TheoremSampler:
    """Draws what theorems are made of."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw from `rng`."""
        self._rng = rng

    def between(self, low: int, high: int) -> int:
        """Draw a number from low to high."""
        return low + int(self._rng.integers(high - low + 1))

    def pick(self, items: Sequence[ItemT]) -> ItemT:
        """Draw one of several."""
        return items[int(self._rng.integers(len(items)))]

    def several(self, items: Sequence[ItemT], count: int) -> list[ItemT]:
        """Draw some different ones, in any order."""
        return [items[int(index)] for index in self._rng.choice(len(items), count, replace=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """A statement with its proof."""

    statement: str
    proof: tuple[str, ...]
    """Tactics; Coq accepts them one after another."""
    definitions: tuple[str, ...] = ()
    """Commands before the statement."""

    @property
    def shape(self) -> str:
        """What is left without names and numbers: a theorem and its variants in other words have one shape."""
        names: dict[str, str] = {}
        texts = (*self.definitions, self.statement)
        return "\n".join(_WORD.sub(lambda word: _nameless(word[0], names), text) for text in texts)


def _nameless(word: str, names: dict[str, str]) -> str:
    """Return a word of Coq as it is, any number as #, any other name as its number in order of appearance."""
    if word.isdigit():
        return "#"
    return word if word in _WORDS.split() else names.setdefault(word, f"x{len(names)}")


def renamed(theorem: Theorem, names: Mapping[str, str]) -> Theorem:
    """Give other names to what a theorem is about."""

    def rename(text: str) -> str:
        return _WORD.sub(lambda word: names.get(word[0], word[0]), text)

    return replace(
        theorem,
        statement=rename(theorem.statement),
        proof=tuple(map(rename, theorem.proof)),
        definitions=tuple(map(rename, theorem.definitions)),
    )


TheoremFamily = Callable[[TheoremSampler, int], Theorem]
"""Draws a theorem of a level from 1 to 3."""
