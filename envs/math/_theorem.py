"""What a shipped theorem of `math/proofs-v0` is: its statement and a proof of it, drawn together."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from envgym.authoring.sampler import Sampler

_WORD = re.compile(r"[A-Za-z_][\w']*(?:\.[A-Za-z_][\w']*)*|\d+")
_WORDS = "forall match with end Fixpoint Inductive Prop nat list Type False S length rev map"
"""Of Coq and of its library, as theorems use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
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
    def rename(text: str) -> str:
        return _WORD.sub(lambda word: names.get(word[0], word[0]), text)

    return replace(
        theorem,
        statement=rename(theorem.statement),
        proof=tuple(map(rename, theorem.proof)),
        definitions=tuple(map(rename, theorem.definitions)),
    )


TheoremFamily = Callable[[Sampler, int], Theorem]
"""Draws a theorem of a level from 1 to 3."""
