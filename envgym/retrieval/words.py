"""The words of a text, as the word indices count them."""

import re
import unicodedata

STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "been", "by", "did", "do", "does", "for", "from", "had", "has", "have"}
    | {"how", "in", "is", "it", "its", "of", "on", "or", "that", "the", "their", "there", "these", "this", "to", "was"}
    | {"were", "what", "when", "where", "which", "who", "whose", "will", "with"}
)
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def words_of(text: str) -> list[str]:
    """Return the words in order: lower case, without accents, plural s and stop words; 1,234.5 is one word."""
    plain = unicodedata.normalize("NFKD", _THOUSANDS.sub("", text)).casefold()
    letters = plain if plain.isascii() else "".join(mark for mark in plain if not unicodedata.combining(mark))
    return [_singular(word) for word in _WORD.findall(letters) if word not in STOP_WORDS]


def _singular(word: str) -> str:
    """Strip a plural s: countries -> country, airports -> airport; not from us, gas, census, basis or glass."""
    if len(word) < 4 or not word.endswith("s") or word[-2] in "sui":
        return word
    return f"{word[:-3]}y" if word.endswith("ies") and len(word) > 4 else word[:-1]
