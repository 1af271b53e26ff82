"""Multiple choice: one letter, or the text of one option. Several letters are no answer."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from envgym.core.tasks import Task
from envgym.verifiers.base import ChecksKey, Verdict, bad_key, judge_candidates, key_of, right, wrong
from envgym.verifiers.extract import Extractor, Take, final
from envgym.verifiers.numbers import one_number

_MAX_CHARS = 20_000
_CACHED_CHARS = 200
_EDGES = string.whitespace + ".,;:!?\"'`*_$\u201c\u201d\u2018\u2019"
_LETTER_EDGES = _EDGES + "()[]{}<>"
_STYLES = re.compile(
    r"\\(?:text|math)(?:bf|it|rm|sf|tt|normal)? ?\{([^{}]*)\}|\\mbox ?\{([^{}]*)\}|\\[ ,;:!()\[\]]|~|\*\*|__|[$`]"
)
_LETTER = re.compile(r"(?<![A-Za-z0-9'\u2019\\])([A-Z])(?![A-Za-z0-9'\u2019]| ?[=^_+<>\\])")
_COMMAND = re.compile(r"\\[A-Za-z]{1,20} ?$")
_ARTICLE = re.compile(
    r"A (?!(?:is|was|because|since|as|seems|would|must|appears|and|or|fits|holds|by|due|has|will|can|if|for|only|alone"
    r")\b)(?=[a-z])"
)
_PRONOUN = re.compile(r"I (?=[a-z])")
_PREFIX = re.compile(
    r"(?:(?:so|thus|hence|therefore),? )?(?:the |my )?(?:(?:final|correct|best|right) )?(?:answer|option|choice)"
    r"(?: is| would be)?(?: ?[:=])?(?: (?:option|choice))?(?![a-z])[ :]{0,3}",
    re.IGNORECASE,
)
_LEAD = re.compile(r"[(\[\"']{0,2}([A-Za-z])([)\]\"']{0,2} ?[:.,\-\u2013\u2014]|[)\]]{1,2}|[ \"'])\s*(\S.*)", re.DOTALL)
_DENIES_NEXT = re.compile(
    r"(?:\b(?:not|never|neither|nor|except|cannot|eliminat\w+|exclud\w+|reject\w*|rul\w+ out|wrong|incorrect)"
    r"|n['\u2019]t|\b(?:all|any\w*|every\w*) but)"
    r"(?: (?:be|for|the|an?|is|are|it|that|think|believe|options?|choice|answers?|letter))*[ :(*\"']*$",
    re.IGNORECASE,
)
_DENIES_LAST = re.compile(
    r"[)*\"']{0,3},? (?:(?:is|was|are|can|does|do|could|would|has|seems|looks) ?(?:\w+ ){0,2}?(?:not|n['\u2019]t|never"
    r"|wrong|false|incorrect|ruled|eliminated|excluded|impossible|unlikely)\b|cannot\b"
    r"|(?:is|was|are|ca|does|do|could|would)n['\u2019]t)"
    r"|[)*\"']{0,3}(?::| ?[(\[\u2014]| -) ?(?:(?:which|that|it) )?(?:is |was )?"
    r"(?!not (?:wrong|false|incorrect))(?:\w{1,12} ){0,2}?"
    r"(?:wrong|false|incorrect|eliminated|excluded|ruled out|(?:not|never) (?:\w{1,12} ){0,2}(?:right|correct|true))"
    r"(?=[)\].!,;]|$)",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    r"\b(?:so|thus|hence|therefore),? (?:(?:the )?(?:correct |right )?(?:answer|option|choice) (?:is |must be )?"
    r"|it (?:is|must be) )?"
    r"[(\"']{0,2}([A-Z])[)\"'.!]{0,4}$",
    re.IGNORECASE,
)
"""The end of a sentence that names an option after it denies others: B is wrong, so C."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleChoice(ChecksKey):
    """1 where the answer names the right option and no other, else 0.

    An option is named by its letter (`B`, `(B)`, `B) Rome`), by its whole text, or by a number equal to it. The text of
    an option counts before its letters do, so an option may begin with the article "A". In a sentence a capital letter
    that stands alone names its option, unless the sentence denies it (`not B`, `B is wrong`).
    """

    key: str = "answer"
    """Payload field: the right option's letter, or its whole text."""
    options: str = "options"
    """Payload field: the list of option texts, in the order A, B, C ..."""
    extract: Extractor = final
    take: Take = Take.ONLY
    """Which of several candidate answers counts."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload holds no options, or a key that is none of them."""
        options = self._options(task)
        key = str(key_of(task, self.key))
        key_letter = key if len(key) == 1 and key in options.letters else options.letter_of(key)
        if key_letter is None:
            first, last = options.letters[0], options.letters[-1]
            raise bad_key(task, self.key, f"name one of the options {first} to {last}", key)
        return judge_candidates(self.extract(answer), lambda text: _judge(text, options, key_letter), self.take)

    def _options(self, task: Task) -> "_Options":
        options = key_of(task, self.options)
        if not isinstance(options, list) or not 2 <= len(options) <= len(string.ascii_uppercase):
            raise bad_key(task, self.options, "be a list of 2 to 26 texts", options)
        return _options_of(tuple(map(str, options)))


class _Options(NamedTuple):
    """The options of a task, and how their texts read."""

    texts: tuple[str, ...]
    letters: str
    exact: Mapping[str, str]
    """Single-spaced text in lower case -> letter, of the texts that differ so."""
    bare: Mapping[str, str]
    """The same without punctuation around it."""
    numbers: Mapping[object, str]
    """Value -> letter, of the options that are numbers."""

    def letter_of(self, text: str) -> str | None:
        """Return the letter of the one option that reads as `text`; None if there is none, or several."""
        single_spaced = " ".join(text.casefold().split())
        letter = self.exact.get(single_spaced) or self.bare.get(single_spaced.strip(_EDGES))
        if letter is None and self.numbers and (number := one_number(text.strip(_EDGES))) is not None:
            letter = self.numbers.get(number)
        return letter


@lru_cache(maxsize=1024)  # a task is judged many times
def _options_of(texts: tuple[str, ...]) -> _Options:
    letters = string.ascii_uppercase[: len(texts)]
    exact = [" ".join(text.casefold().split()) for text in texts]
    numbers = [one_number(text.strip(_EDGES)) for text in texts]
    return _Options(
        texts=texts,
        letters=letters,
        exact=_unique(exact, letters),
        bare=_unique([text.strip(_EDGES) for text in exact], letters),
        numbers=_unique(numbers, letters),
    )


def _unique(values: Sequence[_Value | None], letters: str) -> dict[_Value, str]:
    """Return the letter of every value that only one option has."""
    counts = Counter(values)
    return {
        value: letter
        for value, letter in zip(values, letters, strict=True)
        if value is not None and value != "" and counts[value] == 1
    }


def _judge(text: str, options: _Options, key_letter: str) -> Verdict:
    letter = text.strip(_LETTER_EDGES)
    if len(letter) == 1 and letter.upper() in options.letters:
        option, problem = letter.upper(), ""
    elif len(text) <= _CACHED_CHARS:
        option, problem = _option_of_short(text, options.texts)
    elif len(text) <= _MAX_CHARS:
        option, problem = _option_named(text, options)
    else:
        option, problem = "", f"the answer has {len(text)} characters, more than {_MAX_CHARS}"
    if not option:
        return wrong(problem)
    return right(f"option {option}") if option == key_letter else wrong(f"option {option} is not {key_letter}")


@lru_cache(maxsize=4096)  # answers recur in a group
def _option_of_short(text: str, texts: tuple[str, ...]) -> tuple[str, str]:
    return _option_named(text, _options_of(texts))


def _option_named(text: str, options: _Options) -> tuple[str, str]:
    """Return the letter of the option that a text names; or none, and why it names none."""
    letter = options.letter_of(text)
    if letter is not None:
        return letter, ""
    text = _STYLES.sub(lambda match: match[1] or match[2] or ("" if match[0] in "**__$`" else " "), text).strip()
    prefix = _PREFIX.match(text)
    rest = text[prefix.end() :] if prefix is not None else text
    bare = rest.strip(_LETTER_EDGES)
    letter = bare.upper() if len(bare) == 1 and bare.upper() in options.letters else options.letter_of(rest)
    if letter is not None:
        return letter, ""
    lead = _LEAD.match(rest)
    if lead is None or lead[1].upper() not in options.letters:
        return _only_letter(text, options)
    first, following = lead[1].upper(), options.letter_of(lead[3])
    if following == first:
        return first, ""
    if lead[1].islower() or lead[2].isspace():
        return _only_letter(text, options)
    if following is not None:
        return "", f"{first} is not the letter of the text of {following}"
    others = {match[1] for match in _letters_in(lead[3], options) if not _ARTICLE.match(lead[3], match.start())}
    is_denied = _DENIES_LAST.match(f" {lead[3]}") or _DENIES_LAST.match(rest, lead.end(1))
    return (first, "") if others <= {first} and not is_denied else _only_letter(text, options)


def _letters_in(text: str, options: _Options) -> list[re.Match[str]]:
    """Return the letters of options that stand alone in a text; the pronoun and what belongs to a formula are none."""
    return [
        match
        for match in _LETTER.finditer(text)
        if match[1] in options.letters
        and not (match[1] == "I" and _PRONOUN.match(text, match.start()))
        and not _COMMAND.search(text, max(0, match.start() - 22), match.start())
    ]


def _only_letter(text: str, options: _Options) -> tuple[str, str]:
    """Return the only letter that stands alone in a sentence; or none, and why there is none."""
    for option in options.texts:
        if _LETTER.search(option) is not None:  # vitamin C is no option C
            text = re.sub(re.escape(option), " ", text, flags=re.IGNORECASE)
    matches = _letters_in(text, options)
    named = sorted({match[1] for match in matches})
    if len(named) > 1 and (conclusion := _CONCLUSION.search(text)) is not None:
        others = [match for match in matches if match.start() < conclusion.start()]
        is_last = len(others) == len(matches) - 1 and all(match[1] != conclusion[1] for match in others)
        if is_last and conclusion[1] in options.letters and all(_is_denied(text, match) for match in others):
            return conclusion[1], ""
    if len(named) > 1:
        return "", f"several options are named: {', '.join(named)}"
    if not named or (named == ["A"] and all(_ARTICLE.match(text, match.start()) for match in matches)):
        return "", "no option is named"
    is_denied = any(_is_denied(text, match) for match in matches)
    return ("", f"option {named[0]} is denied") if is_denied else (named[0], "")


def _is_denied(text: str, match: re.Match[str]) -> bool:
    """Return True if a sentence denies the letter that a match holds."""
    before = text[max(0, match.start() - 60) : match.start()]
    return _DENIES_NEXT.search(before) is not None or _DENIES_LAST.match(text, match.end()) is not None
