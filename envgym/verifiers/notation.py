# ruff: noqa: RUF001  # the signs that are rewritten look like others
r"""Notations of expressions, written in the way that math-verify reads; and texts that are no expression.

Rewritten: Unicode signs, `ln(2)`, `\displaystyle`, `\varnothing`, separators of thousands, repeating decimals, names of
functions and Greek letters without a backslash. Words (`\text{Evelyn}`, `ABC`) and numerals of a base (`52_8`) are
compared as texts: math-verify would multiply their letters and drop the base.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from envgym.verifiers.numbers import one_number

_FRACTION_SIGNS = {
    "½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45", "⅙": "16",
    "⅚": "56", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78",
}  # fmt: skip
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\u2012\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003", " "),
        **dict.fromkeys("\u200b\u2061\u2062", ""),
        **{sign: f"\\frac{{{digits[0]}}}{{{digits[1]}}}" for sign, digits in _FRACTION_SIGNS.items()},
        **{sign: f"\\mathbb{{{letter}}}" for sign, letter in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
        "∞": "\\infty ", "π": "\\pi ", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∙": "\\cdot ", "∗": "*",
        "÷": "/", "∕": "/", "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "∪": "\\cup ",
        "∩": "\\cap ",
        "∈": "\\in ", "∖": "\\setminus ", "∅": "\\emptyset ", "±": "\\pm ", "°": "^\\circ ", "α": "\\alpha ",
        "β": "\\beta ", "γ": "\\gamma ", "θ": "\\theta ", "λ": "\\lambda ", "μ": "\\mu ", "σ": "\\sigma ",
        "φ": "\\phi ", "ω": "\\omega ", "〈": "(", "〉": ")", "⟨": "(", "⟩": ")", "，": ",", "（": "(",
        "）": ")", "：": ":", "＝": "=", "％": "%",
    }
)  # fmt: skip
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+")
_PLAIN_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
_ROOT = re.compile(
    r"([√∛∜]) ?(?:([0-9]{1,40}(?:\.[0-9]{1,40})?|[A-Za-z])|\(([^()]{1,200})\)|\{([^{}]{1,200})\}|(\\pi))"
)
_ROOT_INDEX = {"√": "", "∛": "[3]", "∜": "[4]"}
_SHORT_ROOT = re.compile(r"(\\sqrt ?\[[0-9a-z]{1,9}\]) ?([0-9A-Za-z])")
_LONG_RADICAND = re.compile(r"\\sqrt ?([0-9]{2,40})")
"""LaTeX would put only the first digit under the root."""
_STYLE = re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bm|boldsymbol)(?![A-Za-z]) ?")
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(ln|log|lg|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|exp)"
    r"(?![A-Za-z]{2})(?=[ ^_({\\0-9a-z])"
)
_NATURAL_LOGARITHM = re.compile(r"\\log_ ?(?:e(?![A-Za-z])|\{ ?e ?\})")
_GREEK = re.compile(r"(?<![\\A-Za-z{])(pi|alpha|beta|gamma|theta|lambda|sigma|phi|omega|infinity|infty)(?![A-Za-z])")
_EMPTY = re.compile(r"\\varnothing(?![A-Za-z])|\\\{ ?\\\}|^\{ ?\}$")
_GROUPING = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,;: ]|~| (?=[0-9]{3}(?:[ .]|$)))(?=[0-9]{3}(?![0-9]))")
"""What stands between the thousands of a number."""
_REPEATING = re.compile(r"(?<![0-9.])([0-9]{0,40})\.([0-9]{0,40})\\(?:overline|bar|dot) ?\{?([0-9]{1,40})\}?(?![0-9])")
_SHORT_FRACTION = re.compile(
    r"\\([dtc]?)frac ?(?:\{ ?(-?[0-9]{1,40}) ?\}|([0-9])) ?(?:\{ ?(-?[0-9]{1,40}) ?\}|([0-9]))"
)
_SET_BUILDER = re.compile(
    r"^\\\{ ?[a-z] ?(?:\\in ?\\mathbb ?\{?R\}? ?)?(?:\||:|\\mid|\\vert) ?([^{}|:]{1,200}[<>=el][^{}|:]{1,200}) ?\\\}$"
)
"""A set of the numbers that satisfy a condition."""
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that multiply the number before them, and the powers of ten that they stand for."""
_SCALE = re.compile(
    r"(?<=[0-9])(?:\\[,; ]|[ ~]){0,8}(\\(?:text|textrm|mathrm|mbox) ?\{ ?)?("
    + "|".join(_SCALES)
    + r")( ?\})?(?![A-Za-z])",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[-0-9.,/ ]*")
"""Nothing in it is rewritten."""
_PERCENT = re.compile(r"(?:\\[,; ]|[ ~]){0,8}\\?%$")
_DECIMAL = re.compile(r"[0-9]\.[0-9]|(?<![0-9])\.[0-9]")


def rewritten(text: str) -> str:
    """Return an expression in the notation that math-verify reads."""
    if _PLAIN.fullmatch(text) and " " not in text:
        return text
    if not text.isascii():
        text = _ROOT.sub(_root, text)
        text = _SUPERSCRIPTS.sub(lambda match: f"^{{{match[0].translate(_PLAIN_DIGITS)}}}", text).translate(_SIGNS)
    if "sqrt" in text:
        text = _LONG_RADICAND.sub(r"\\sqrt{\1}", text)
    text = _SHORT_ROOT.sub(r"\1{\2}", _EMPTY.sub(r"\\emptyset", _STYLE.sub("", text)))
    text = _GREEK.sub(lambda match: f"\\{'infty' if match[1] == 'infinity' else match[1]} ", text)
    text = _GROUPING.sub("", _FUNCTION.sub(_function, text))
    text = _NATURAL_LOGARITHM.sub(r"\\ln ", _PERCENT.sub(r"\\%", text) if "%" in text else text)
    text = _SET_BUILDER.sub(r"\1", text)
    if "illion" in text or "thousand" in text or "hundred" in text:
        text = _SCALE.sub(_scale, text)
    return _REPEATING.sub(_repeating, text).strip()


def _function(match: re.Match[str]) -> str:
    following = match.string[match.end() : match.end() + 1]
    return f"\\{match[1]}{' ' if following.isalpha() else ''}"


def _scale(match: re.Match[str]) -> str:
    text = match[1] if match[1] and not match[3] else ""  # what follows the word is still inside
    return f" \\times 10^{{{_SCALES[match[2].lower()]}}}{text}"


def _root(match: re.Match[str]) -> str:
    return f"\\sqrt{_ROOT_INDEX[match[1]]}{{{next(part for part in match.groups()[1:] if part)}}}"


def _repeating(match: re.Match[str]) -> str:
    """Write 0.1\\overline{6} as a fraction: all digits less those before the period, over 9...90...0."""
    whole, first, period = match[1] or "0", match[2], match[3]
    value = Fraction(int(whole + first + period) - int(whole + first), (10 ** len(period) - 1) * 10 ** len(first))
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


_LAST_SYMBOL = re.compile(r"(?<=[\s0-9}])(?:ab|bc|lt|mp|mt|rs|st|[cdghlmost]s?)$|(?<=[a-hqs]\s)[A-Za-df-hj-z]$")
"""Letters that math-verify takes for a unit at the end of an expression, or for a part of one (`a b`)."""
_UNIT_LETTERS = frozenset("mgshl")


def with_last_symbols(key: str, answer: str) -> tuple[str, str]:
    r"""Return both expressions with braces around a symbol at their end, which math-verify drops as a unit.

    So `5t` is not 5, and `\rho g h` is not `\rho g`. A letter after a constant is a unit where the key does not end in
    a symbol: `5 m` and `5m` are right for 5.
    """
    if not (key[-1:].isalpha() or answer[-1:].isalpha()):
        return key, answer
    start = _start_of_symbol(key, is_key=True)
    if start is not None:
        key = f"{key[:start]}{{{key[start:]}}}"
        start = match.start() if (match := _LAST_SYMBOL.search(answer)) else None
    else:
        start = _start_of_symbol(answer, is_key=False)
    return key, answer if start is None else f"{answer[:start]}{{{answer[start:]}}}"


def _start_of_symbol(text: str, *, is_key: bool) -> int | None:
    """Return where the letters at the end of an expression begin; None: there are none, or they are a unit."""
    match = _LAST_SYMBOL.search(text)
    if match is None:
        return None
    before = text[: match.start()]
    constant = re.sub(r"\\[A-Za-z]{1,20}", "", before.rpartition("=")[2]).strip()
    is_product = is_key and (not before[-1].isspace() or re.search(r"\\[A-Za-z]{1,20} $", before) is not None)
    may_be_unit = match[0] in _UNIT_LETTERS and not is_product
    return None if may_be_unit and constant and not re.search(r"[A-Za-z]", constant) else match.start()


# ---- numbers --------------------------------------------------------------------------------------------------------

DECIMAL_PLACES = 6
"""Decimals are compared to so many places, as math-verify does."""
_SIGNIFICANT = Fraction(5, 10**6)
"""Largest relative difference of decimals: small numbers are compared to six significant digits."""


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number, with or without a percent sign."""

    value: Fraction
    """50 for 50%."""
    is_percent: bool
    is_decimal: bool
    """True if it has a decimal point, so it may be rounded."""


@lru_cache(maxsize=65536)
def plain_number(text: str) -> PlainNumber | None:
    """Return the value of an integer, decimal, fraction, mixed or scientific number; None: it is something else."""
    bare = _PERCENT.sub("", text) if "%" in text else text
    value = one_number(_SHORT_FRACTION.sub(_long_fraction, bare))
    if value is None:
        return None
    return PlainNumber(value, is_percent=bare != text, is_decimal=_DECIMAL.search(bare) is not None)


def _long_fraction(match: re.Match[str]) -> str:
    top, bottom = int(match[2] or match[3]), int(match[4] or match[5])
    sign = "-" if (top < 0) != (bottom < 0) else ""
    return f"{sign}\\frac{{{abs(top)}}}{{{abs(bottom)}}}"


def equal_numbers(key: PlainNumber, answer: PlainNumber) -> bool:
    """Tell whether two numbers are equal: fractions and integers exactly, decimals to six places and digits.

    A percentage equals its number and its value: 50% is 50 and 0.5. Two percentages are compared by their numbers.
    """
    is_rounded = key.is_decimal or answer.is_decimal
    if key.is_percent == answer.is_percent:
        return _close(key.value, answer.value, is_rounded=is_rounded)
    percent, other = (key, answer) if key.is_percent else (answer, key)
    return any(_close(value, other.value, is_rounded=is_rounded) for value in (percent.value, percent.value / 100))


def _close(first: Fraction, second: Fraction, *, is_rounded: bool) -> bool:
    if first == second or not is_rounded:
        return first == second
    is_near = round(first, DECIMAL_PLACES) == round(second, DECIMAL_PLACES)
    return is_near and abs(first - second) <= _SIGNIFICANT * max(abs(first), abs(second))


_ATOM = (
    r"-?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\\[dt]?frac ?\{-?[0-9]{1,9}\}\{[1-9][0-9]{0,8}\})?"
    r"(?:(?<=[0-9}-])|(?<![0-9}a-zA-Z]))(?:\\sqrt\{[1-9][0-9]{0,5}\}|\\pi(?![A-Za-z])|(?<=[0-9}]))"
)
_TERM = r"(?:[1-9][0-9]{0,8})?[a-zA-Z](?:\^(?:[2-9]|\{[1-9][0-9]?\}))?"
_USUAL = re.compile(
    rf"{_ATOM}|\({_ATOM}(?:, ?{_ATOM}){{1,3}}\)|\\\{{{_ATOM}(?:, ?{_ATOM}){{0,5}}\\\}}"
    r"|\\frac\{[1-9][0-9]{0,8}\\pi\}\{[1-9][0-9]{0,8}\}"
    rf"|-?{_TERM}(?: ?[-+] ?{_TERM}){{0,4}}(?: ?[-+] ?[1-9][0-9]{{0,8}})?"
)


def is_usual(text: str) -> bool:
    """Return True for a form that math-verify always reads: a polynomial, a root, a multiple of pi, tuples and sets.

    Reading takes math-verify about 30 ms, so only the other keys of a data set are given to it.
    """
    return _USUAL.fullmatch(text) is not None


# ---- words and numerals ---------------------------------------------------------------------------------------------

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|operatorname) ?\{([^{}]{0,200})\}")
_FIGURE = re.compile(
    r"^(?:\\(?:angle|triangle|overline|overrightarrow|overleftrightarrow|odot|square|widehat)|∠|△) ?(?=[{A-Z])"
)
_OTHER_LETTERS = (
    "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u06ff\u0900-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af"
)
"""Letters that stand for no unknown: those with accents, and of scripts other than Latin and Greek."""
_OTHER_SCRIPT = re.compile(f"[{_OTHER_LETTERS}]")
_LETTERS = re.compile(rf"[A-Za-z{_OTHER_LETTERS}][A-Za-z{_OTHER_LETTERS}' \-]{{0,200}}")
_CHOICE = re.compile(r"\(?([A-Za-z])\)?\.?")
_CLOCK = re.compile(r"[0-9]{1,2}:0[0-9]|[0-9]{1,2}(?::[0-5][0-9])? ?[ap]\.?m\.?", re.IGNORECASE)
"""A time of the day, no ratio."""
_TIME = re.compile(r"[0-9]{1,2}:[0-5][0-9]")
_SHORT_WORDS = frozenset(("yes", "no", "odd", "even", "all", "one", "two", "six", "ten", "red", "tie"))
_NUMERAL = re.compile(r"\(?([0-9A-Z]{1,100})\)?(?:_ ?(?:\{ ?)?(?:\\text ?\{)?([0-9]{1,2})\}? ?\}?)?")


def is_same_time(key: str, answer: str) -> bool:
    """Return True if an answer is the time of a key without the half of the day: 1:30 p.m. for 1:30."""
    return _TIME.fullmatch(key) is not None and answer in (f"{key}am", f"{key}pm")


@lru_cache(maxsize=65536)
def word(text: str) -> str | None:
    r"""Return a text that is words and no expression, in lower case without marks; None: it is an expression.

    Words are in `\text{}` or the like, or begin with a capital, or are capitals alone, as names of points are, or are
    longer than products of letters. Letters in alphabetical order, such as `abc`, are a product.
    """
    bare = _FIGURE.sub("", text)
    is_text = bare != text
    inner = _TEXT.sub(lambda match: f" {match[1]} ", bare)
    is_text = is_text or (inner != bare and not _TEXT.sub("", bare).strip(" .()"))
    inner = " ".join(inner.strip("{}$ .,!").replace("\\ ", " ").replace("~", " ").split())
    if _CLOCK.fullmatch(inner):
        return inner.lower().replace(".", "").replace(" ", "")
    choice = _CHOICE.fullmatch(inner)
    if choice is not None and is_text:
        return choice[1].lower()
    if not _LETTERS.fullmatch(inner):
        return None
    return inner.lower() if is_text or _is_word(inner) else None


def _is_word(letters: str) -> bool:
    if " " in letters or "-" in letters:
        return any(len(part) >= 3 for part in re.split("[ -]", letters))
    if letters.lower() in _SHORT_WORDS or _OTHER_SCRIPT.search(letters) or (len(letters) > 1 and letters.isupper()):
        return True
    is_name = len(letters) > 2 and letters[0].isupper() and letters[1:].islower()
    is_product = list(letters) == sorted(set(letters))
    return is_name or (len(letters) > 3 and not is_product)


@dataclass(frozen=True, slots=True)
class Numeral:
    """Digits, and the base that they are written in."""

    digits: str
    base: int | None
    """None: it is not stated."""


def numeral(text: str) -> Numeral | None:
    """Return a numeral such as 52_8; None: the text is something else."""
    match = _NUMERAL.fullmatch(text)
    if match is None:
        return None
    base = int(match[2]) if match[2] else None
    is_numeral = base is None or (2 <= base <= 36 and all(int(digit, 36) < base for digit in match[1]))
    return Numeral(match[1].lstrip("0") or "0", base) if is_numeral else None


_NUMBER_WORDS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen",
)  # fmt: skip


def named_bases(prompt: str) -> frozenset[int]:
    """Return the bases that a question names: base 8, base eight, binary, 52_8."""
    lower = prompt.lower()
    bases = {int(base) for base in re.findall(r"(?:base[- $]{0,3}|_ ?\{? ?)([0-9]{1,2})(?![0-9])", lower)}
    bases |= {
        _NUMBER_WORDS.index(name) + 2 for name in re.findall(r"base[- ]([a-z]{3,9})", lower) if name in _NUMBER_WORDS
    }
    for name, base in (("binary", 2), ("ternary", 3), ("octal", 8), ("hexadecimal", 16)):
        if name in lower:
            bases.add(base)
    return frozenset(bases)
