"""The words of Wordle, as the wheel of reasoning-gym brings them, and the hints for all of them at once."""

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envgym.envs.puzzles._codes import Codes
from envgym.errors import InvalidInput

LENGTH = 5


class Words(NamedTuple):
    """Words of five letters, in alphabetical order."""

    hidden: tuple[str, ...]
    """Common ones, which are hidden."""
    allowed: frozenset[str]
    """All that may be guessed."""


@lru_cache(maxsize=1)
def load_words() -> Words:
    """Read the lists without importing the package, which takes seconds. Raises: InvalidInput: it is not installed."""
    spec = find_spec("reasoning_gym")
    if spec is None or not spec.submodule_search_locations:
        do = "pip install 'envgym[puzzles]'"
        raise InvalidInput.of("word list", "be installed", "no reasoning_gym", where="puzzles/wordle-v0", do=do)
    folder = Path(spec.submodule_search_locations[0]) / "data"
    hidden = set(re.findall(r'"([a-z]{5})"', (folder / "wordle_words.py").read_text(encoding="utf-8")))
    others = (folder / name for name in ("words3to10.txt", "words.csv"))
    listed = {word for path in others for word in re.findall(r"\b[A-Za-z]{5}\b", path.read_text(encoding="utf-8"))}
    return Words(tuple(sorted(hidden)), frozenset(hidden | {word.lower() for word in listed if word[1:] != "_lett"}))


def encode_words(words: tuple[str, ...]) -> Codes:
    """Return the letters of words as numbers, one word per row."""
    return np.frombuffer("".join(words).encode("ascii"), dtype=np.uint8).reshape(-1, LENGTH)


@lru_cache(maxsize=1)
def hidden_codes() -> Codes:
    return encode_words(load_words().hidden)


def mark_letters(word: str, guess: str) -> str:
    """Return for each letter of the guess G: in its place, Y: elsewhere in the word, -: not, or not once more."""
    others = [letter for letter, guessed in zip(word, guess, strict=True) if letter != guessed]
    marks = ""
    for letter, guessed in zip(word, guess, strict=True):
        if letter == guessed:
            marks += "G"
        elif guessed in others:
            others.remove(guessed)
            marks += "Y"
        else:
            marks += "-"
    return marks


def number_marks(words: Codes, guess: Codes) -> NDArray[np.int64]:
    """Return the marks that `guess` gets for each word, as a number in base 3 with digits -, Y, G."""
    in_place = words == guess
    total = np.zeros(len(words), dtype=np.int64)
    for place, letter in enumerate(guess):
        there = ((words == letter) & ~in_place).sum(axis=1)
        before = [other for other in range(place) if guess[other] == letter]
        is_elsewhere = (~in_place[:, before]).sum(axis=1) < there
        total = 3 * total + np.where(in_place[:, place], 2, is_elsewhere)
    return total
