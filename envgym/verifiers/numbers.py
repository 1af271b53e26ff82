r"""Numbers in a text, read exactly and only where one reading exists.

Read: 1,234.5  -$3  .5  3/4  2 1/2  1.5e-3  1.5 x 10^3  \frac{3}{4}  50%. Not read: words, digits of other scripts,
identifiers (x2, 0x1F, 1.2.3). Operands of an expression (6*7, 2^10, 5-3, \sqrt{4}) are found, but have no value.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_MAX_DIGITS = 400
_MAX_EXPONENT = 400

_NUMBER = re.compile(
    r"""
    (?<![A-Za-z0-9_.])                              # not the tail of an identifier or of a version
    (?:
      (?:(?P<whole>[0-9]{1,400})[ ])?(?P<top>[0-9]{1,400})[ ]?/[ ]?(?P<bottom>[0-9]{1,400})
      |
      (?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3}){1,99}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
      (?:[eE](?P<exponent>[-+]?[0-9]+))?
    )
    (?![A-Za-z_]{0,20}[0-9]|\.[0-9])                # not the head of one
    (?P<percent>\s?%)?
    """,
    re.VERBOSE,
)
_INTEGER = re.compile(r"-?[0-9]{1,400}")
"""The most frequent answer; every other pattern here would read it alike."""
_TIMES_TEN = re.compile(r" {0,3}(?:\u00d7|x|\*|\\times|\\cdot) {0,3}10 {0,3}(?:\^|\*\*) {0,3}\{?([-+]?[0-9]{1,9})\}?")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac {0,3}\{ {0,3}([0-9]{1,400}) {0,3}\} {0,3}\{ {0,3}([0-9]{1,400}) {0,3}\}")
_PLAIN_FORMS = (("\u2212", "-"), ("{,}", ","), ("\\,", ""), ("\\!", ""), ("\\$", "$"), ("\\%", "%"))
_EDGES = " \t{}()[]$€£¥"
_OPERATORS = frozenset("+-*/^·÷\u00d7")
_WORD_OPERATORS = ("\\times", "\\cdot", "\\div")
_SIGN = re.compile(r"(?:^|[^A-Za-z0-9)\]}%.])([-+])(?:[$€£¥] ?|[{(]{0,2})$|[=:(] ?([-+]) $")
"""A sign stands at the number, or after `=`; detached at the head of a line it is a bullet."""
_DETACHED = re.compile(r"^([-+]) +")
_OPERAND_OF = re.compile(
    r"(?:√|\\(?!text|math|boxed|left)[A-Za-z]{1,20} ?[{(\[]|\}\{|[A-Za-z]\(|[A-Za-z0-9)][-+*/^])[ {(\[]{0,4}$"
)
_POWER = re.compile(r" ?\^(?! ?\{? ?\\circ)|\*\*(?=[A-Za-z0-9({])")
_UNIT = re.compile(r"\s?(?:\\(?:text|mathrm) ?\{\s?([^{}]{1,40})\}|([A-Za-zµ°]{1,40}(?:/[A-Za-z]{1,20})?))")
_EXPRESSION = "an expression is no plain number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that stands in a text."""

    value: Fraction | None
    """None: what stands there is no plain number, `problem` says why."""
    problem: str = ""
    is_percent: bool = False
    unit: str = ""
    """The word right after it."""


def read_numbers(text: str) -> list[Number]:
    """Return the numbers of `text`, in order."""
    if _INTEGER.fullmatch(text):
        return [Number(value=Fraction(int(text)))]
    strange = None if text.isascii() else next(filter(_is_foreign_digit, text), None)
    if strange is not None:
        return [Number(value=None, problem=f"numbers are written with the digits 0 to 9, not {strange!r}")]
    text = _plain(text)
    numbers: list[Number] = []
    end = 0
    for match in _NUMBER.finditer(text):
        gap = text[end : match.start()]
        end = match.end()
        if numbers and _is_operator(gap):
            numbers[-1] = Number(value=None, problem=_EXPRESSION)
            numbers.append(numbers[-1])
        else:
            numbers.append(_read(match, gap[-40:], text))
    return numbers


def _is_operator(gap: str) -> bool:
    bare = gap.strip(_EDGES).replace(" ", "") if len(gap) < 20 else ""
    return bool(bare) and (_OPERATORS.issuperset(bare) or bare.startswith(_WORD_OPERATORS))


def _is_foreign_digit(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character) in ("Nd", "Nl", "No")


def _plain(text: str) -> str:
    """Write LaTeX and typographic forms as plain ones."""
    for old, new in _PLAIN_FORMS:
        text = text.replace(old, new)
    return _TIMES_TEN.sub(r"e\1", _FRACTION.sub(r" \1\2/\3", text))


def _read(match: re.Match[str], before: str, text: str) -> Number:
    """Read one match, given the text right before it."""
    sign = _SIGN.search(before)
    if _POWER.match(text, match.end()) or (sign is None and _OPERAND_OF.search(before)):
        return Number(value=None, problem=_EXPRESSION)
    value = _value(match)
    if value is None:
        return Number(value=None, problem="the number is too long, too large, or divided by 0")
    unit = _UNIT.match(text, match.end())
    return Number(
        value=-value if sign is not None and "-" in (sign[1], sign[2]) else value,
        is_percent=match["percent"] is not None,
        unit=(unit[1] or unit[2]).strip() if unit else "",
    )


def _value(match: re.Match[str]) -> Fraction | None:
    if match["top"]:
        bottom = int(match["bottom"])
        return int(match["whole"] or 0) + Fraction(int(match["top"]), bottom) if bottom else None
    exponent = match["exponent"]
    if len(match["digits"]) > _MAX_DIGITS:
        return None
    value = Fraction(match["digits"].replace(",", ""))
    if exponent is None:
        return value
    return value * Fraction(10) ** int(exponent) if len(exponent) <= 9 and abs(int(exponent)) <= _MAX_EXPONENT else None


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def one_number(text: str) -> Fraction | None:
    """Return the value of a text that is nothing but one plain number (signs and currency are part of it)."""
    text = _DETACHED.sub(r"\1", text.strip().strip("$€£¥ "))
    stripped = _plain(text).strip().strip("$€£¥ ")
    numbers = read_numbers(text)
    is_bare = not re.sub(r"[-+0-9.,/eE $€£¥]", "", stripped)
    return numbers[0].value if is_bare and len(numbers) == 1 and not numbers[0].is_percent else None


def distinct(numbers: list[Number]) -> Iterator[Number]:
    """Yield the numbers that differ from all before them."""
    seen: set[Fraction | None] = set()
    for number in numbers:
        if number.value not in seen:
            seen.add(number.value)
            yield number
