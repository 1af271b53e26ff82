"""Fictional worlds: the factbook with other names and other numbers, the same ones wherever they stand.

What a model remembers of the real world does not help there, and nothing false is taught about a real country: none is
called like a fictional one. Source: the FictionalHot benchmark of ReSeek (2510.00568), which replaces the entities of
questions; here names and numbers are replaced in the corpus, and the questions are made of that.

A name becomes an invented one, a number another one of the same form and first digit. Lines with a capitalized word
that is neither a replaced name nor common to many entries (persons, mountains, languages ...) are left out. Years stay.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b

from envgym.envs.world_factbook.countries import ALIASES, FORMS
from envgym.envs.world_factbook.pages import FactbookEntry, plain
from envgym.seeds import generator

COMMON = 40
"""A capitalized word in so many entries tells nothing of one of them."""
COMMON_LABEL = 3
"""A label of fewer entries may be a name."""
_ONSETS = ("b", "br", "d", "dr", "f", "g", "gl", "h", "j", "k", "kr", "l", "m", "n", "p", "r", "s", "sk", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ei")
_ENDS = ("ia", "and", "or", "una", "esh", "avia", "ora", "ind", "osa", "ar", "eth", "um")
_PHRASE = re.compile(r"[^\W\d_a-z][^\W\d_]*(?:(?: (?:de|of|the|la|el|al|los) |[ '.-]+)[^\W\d_a-z][^\W\d_]*)*")
"""Capitalized words in a row."""
_PEAK = re.compile(r"(?P<name>[^\W\d_a-z][^\d(;,]*?)(?: \(|,? -?\d)")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_OPEN, _CLOSE = "\x00", "\x01"
"""What stands around a replaced name until all names are replaced."""
_REPLACED = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}")
_CAPITALIZED = re.compile(r"(?<![^\W\d_])[^\W\d_a-z][^\W\d_]*")
_NUMBER = re.compile(
    r"(?<![\w.,/+])\d[\d,]*(?:\.\d+)?(?![\w]|[.,]\d| (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec))"
)
_KEPT_NUMBER = re.compile(r"(?:1[5-9]|20)\d\d|100")
CODES = ("Internet country code", "Civil aircraft registration country code prefix")
_CODE = re.compile(r"\.?[A-Za-z0-9]{1,2}")
_DEPENDENCY = "Dependency status"
_OTHER_NAMES = {"United States": ("America",), "United Kingdom": ("Britain",), "Netherlands": ("Holland",)}
_NO_COUNTRIES = ("ee", "xx")
"""The European Union and the world: nothing of them can be invented apart from the countries."""


class Fiction:
    """One fictional world: what each name, code and number becomes."""

    def __init__(self, entries: Sequence[FactbookEntry], seed: int) -> None:
        """Invent a world for these entries; another seed is another world."""
        self._seed, self._draws = seed, generator("search/fiction", seed)
        used = [{word for text in _texts(entry) for word in _CAPITALIZED.findall(text)} for entry in entries]
        counts = Counter(word for words in used for word in words)
        self._common = frozenset(word for word, count in counts.items() if count >= COMMON)
        codes = {
            lines[label] for entry in entries for lines in entry.sections.values() for label in CODES if label in lines
        }
        labels = Counter(label for entry in entries for lines in entry.sections.values() for label in lines)
        self._labels = frozenset(label for label, count in labels.items() if count >= COMMON_LABEL)
        self._taken = {word.lower() for word in counts}
        used_codes = {code.lower() for code in codes}
        short = sorted(code for code in codes if _CODE.fullmatch(code))
        self._codes = {code: _unlike(used_codes, partial(self._code_like, code)) for code in short}
        self._invented: dict[str, str] = {}
        for entry in sorted(entries, key=lambda item: (_DEPENDENCY in item.sections.get("Government", {}), item.name)):
            self._name_all(entry)
        self._phrases: dict[str, list[str]] = defaultdict(list)
        for phrase in sorted(self._invented, key=len, reverse=True):
            self._phrases[_first_word(phrase)].append(phrase)

    def entry(self, real: FactbookEntry) -> FactbookEntry:
        sections = {
            section: {label: twin for label, text in lines.items() if (twin := self._line(label, text)) is not None}
            for section, lines in real.sections.items()
        }
        return FactbookEntry(real.code, self._invented[real.name], sections)

    def text(self, text: str) -> str | None:
        """Return a text with names and numbers replaced, or None where it still names something of the real world."""
        marked = self._renamed(text)
        if any(word not in self._common for word in _CAPITALIZED.findall(_REPLACED.sub(" ", marked))):
            return None
        return _NUMBER.sub(lambda match: self.number(match[0]), marked.replace(_OPEN, "").replace(_CLOSE, ""))

    def number(self, text: str) -> str:
        """Return another number of the same form: the first digit and zeros at the end stay, the second digit moves by
        3 to 7, the others are drawn. A year, 100, and a number of one digit stay.

        Example: 580,367 may become 534,912, and 21.5 may become 25.8; never 57.9 or 20.1.
        """
        digits = text.replace(",", "").replace(".", "")
        figures = digits.strip("0")
        if len(figures) < 2 or _KEPT_NUMBER.fullmatch(text):
            return text
        noise = blake2b(f"{self._seed} {text}".encode(), digest_size=16).digest()
        second = (int(figures[1]) + 3 + noise[0] % 5) % 10
        middle = "".join(str(noise[1 + place % 15] % 10) for place in range(len(figures) - 2))
        new = iter(digits.replace(figures, f"{figures[0]}{second}{middle}", 1))
        return "".join(next(new) if character.isdigit() else character for character in text)

    def _line(self, label: str, text: str) -> str | None:
        if label not in self._labels or self._renamed(label) != label:
            return None
        if label in CODES:
            return self._codes.get(text)
        twin = self.text(text)
        return "dependent territory" if twin is None and label == _DEPENDENCY else twin

    def _code_like(self, text: str) -> str:
        letters = (_LETTERS[int(self._draws.integers(26))] if character.isalnum() else character for character in text)
        code = "".join(letters)
        return code if text.islower() else code.upper()

    # ---- inventing ---------------------------------------------------------------------------------------------------

    def _name_all(self, entry: FactbookEntry) -> None:
        """Invent the names of an entry, its people, its cities and its highest point."""
        base = self._new()
        for name in (entry.name, *_forms(entry), *ALIASES.get(entry.name, ()), *_OTHER_NAMES.get(entry.name, ())):
            self._add(name, f"Republic of {base}" if entry.name in name and name != entry.name else base)
        people = f"{base.rstrip('aeiou')}an"
        for phrase in _PHRASE.findall(" / ".join(_lines(entry, "Nationality: adjective", "Nationality: noun"))):
            self._add(phrase, people)
            self._add(f"{phrase}s", f"{people}s")
        for phrase in _PHRASE.findall(" / ".join(_lines(entry, "Capital: name", "Major urban areas - population"))):
            if not self._common.issuperset(_CAPITALIZED.findall(phrase)):
                self._add(phrase.title() if phrase.isupper() else phrase, self._new())
        for text in _lines(entry, "Elevation: highest point"):
            if (match := _PEAK.match(text)) is not None:
                self._add(match["name"], f"Mount {self._new()}")

    def _add(self, real: str, invented: str) -> None:
        """Enter a name, also without accents and in capitals; who has it already keeps it."""
        for form in (real, plain(real)):
            if len(form) > 1 and self._invented.setdefault(form, invented) == invented:
                self._invented.setdefault(form.upper(), invented.upper())

    def _word(self) -> str:
        count = 1 + int(self._draws.integers(2))
        start = "".join(self._one(_ONSETS) + self._one(_VOWELS) for _ in range(count))
        return f"{start}{self._one(_ONSETS)}{self._one(_ENDS)}".capitalize()

    def _one(self, parts: Sequence[str]) -> str:
        return parts[int(self._draws.integers(len(parts)))]

    def _new(self) -> str:
        return _unlike(self._taken, self._word)

    def _renamed(self, text: str) -> str:
        parts, end = [], 0
        for word in _CAPITALIZED.finditer(text):
            start = word.start()
            for phrase in self._phrases.get(word[0], ()) if start >= end else ():
                after = start + len(phrase)
                if text.startswith(phrase, start) and not text[after : after + 1].isalpha():
                    parts += [text[end:start], _OPEN, self._invented[phrase], _CLOSE]
                    end = after
                    break
        return "".join([*parts, text[end:]])


def fictional(entries: Sequence[FactbookEntry], seed: int) -> list[FactbookEntry]:
    countries = [entry for entry in entries if entry.code not in _NO_COUNTRIES]
    fiction = Fiction(countries, seed)
    return sorted((fiction.entry(entry) for entry in countries), key=lambda entry: entry.name)


def _unlike(used: set[str], draw: Callable[[], str]) -> str:
    """Draw until it is like nothing that exists, in this world or in the real one."""
    while (name := draw()).lower() in used:
        pass
    used.add(name.lower())
    return name


def _texts(entry: FactbookEntry) -> Iterator[str]:
    return (text for lines in entry.sections.values() for text in lines.values())


def _lines(entry: FactbookEntry, *labels: str) -> list[str]:
    return [lines[label] for lines in entry.sections.values() for label in labels if label in lines]


def _forms(entry: FactbookEntry) -> list[str]:
    """Return the short and the long form of a name, without what stands after it."""
    government = {label.lower(): text for label, text in entry.sections.get("Government", {}).items()}
    forms = [re.split(r" ?[;(]", government[form])[0] for form in FORMS if form in government]
    return [form.removeprefix("The ") for form in forms if form.lower() != "none"]


def _first_word(phrase: str) -> str:
    match = _CAPITALIZED.search(phrase)
    return match[0] if match is not None else ""
