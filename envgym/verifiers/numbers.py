r"""Numbers in a text, read exactly and only where one reading exists.

Read: 1,234.5  1 234  -$3  .5  3/4  2 1/2  1.5e-3  1.5 x 10^3  \frac{3}{4}  50%  5 million  25 cm^2. Not read: words,
digits of other scripts, identifiers (x2, 0x1F, 1.2.3). Numbers that are found and have no value of their own: operands
(6*7, 2^10, 5!, 5x, \sqrt{4}), and what a text only compares with or denies (x < 5, at least 5, not 5).
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from envgym.verifiers.number_forms import plain_forms

_MAX_DIGITS = 400
_MAX_EXPONENT = 400

_NUMBER = re.compile(
    r"""
    (?<![A-Za-z0-9_.])                              # not the tail of an identifier or of a version
    (?:
      (?:(?P<whole>[0-9]{1,400})[ ])?(?P<top>[0-9]{1,400})[ ]?/[ ]?(?P<bottom>[0-9]{1,400})
      |
      (?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3}){1,99}(?![0-9])          # 1,234,567
                   |[1-9][0-9]{0,2}(?:[ '][0-9]{3}){1,99}(?![0-9])  # 1 234 567, 1'234'567
                   |[1-9][0-9]?(?:,[0-9]{2}){1,99},[0-9]{3}(?![0-9])  # 12,34,567
                   |[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
      (?:[eE](?P<exponent>[-+]?[0-9]+))?
    )
    (?![A-Za-z_]{0,20}[0-9]|\.[0-9])                # not the head of one
    (?P<percent>\s?%)?
    """,
    re.VERBOSE,
)
_INTEGER = re.compile(r"-?[0-9]{1,400}")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{([0-9]{1,99})\}\{([1-9][0-9]{0,99})\}")
"""The most frequent answers; all other patterns together would read them alike."""
_SEPARATORS = str.maketrans("", "", ", '")

_ENDS = frozenset(".,;:)]}\"'`\n")
"""After these characters nothing belongs to a number any more."""
_CLOSERS, _POWERS = frozenset(")]}"), frozenset("^!/·\u00d7√")
_EDGES = " \t{}()[]$€£¥"
_OPERATORS = frozenset("+-*/^·÷\u00d7±")
_OPENERS = " \t\n{([$€£¥*_\"'`"
"""What may stand between a number and its sign, or the word before it."""

_COMMANDS_BEFORE = re.compile(
    r"\\(?:to|[rR]ightarrow|[lL]ongrightarrow|implies|iff|therefore|because|colon|item|bf|rm|it|[lL]arge|LARGE|huge|small"
    r"|[bB]ig|newline|noindent)"
)
_COMMANDS_AFTER = (
    "checkmark|square|blacksquare|qed|end|tag|hspace|vspace|mu|Omega|euro|cents?|pounds|to|rightarrow|Rightarrow|implies"
    "|iff|therefore|because|label|newline|big|Big"
)
_NEGATIONS = frozenset(("not", "never", "cannot", "nor", "neither", "without", "except"))
_COMPARISONS = frozenset(
    ("than", "least", "most", "above", "below", "under", "over", "exceed", "exceeds", "exceeding", "beyond")
)
_FUNCTIONS = frozenset(
    ("twice", "half", "double", "triple", "thrice", "times", "plus", "mod", "modulo", "sqrt", "log", "ln", "exp", "sin")
) | {"cos", "tan"}
_OPERATIONS = re.compile(
    r"\b(?:(?:root|square|cube|factorial|reciprocal|inverse|log|logarithm|half|power|multiple) of"
    r"|(?:divided|multiplied|increased|decreased|divisible) by|[a-z] minus)$"
)
_STATES = re.compile(r"\b(?:is|are|was|be|equals?|to|as|by|at|of|exactly|approximately|about|gets?|gives?|yields?)$")
"""A minus sign that stands alone after one of these words is the sign of the number that follows."""

_CONTINUED = re.compile(
    rf"""
      [ ]?\^ | \*\*(?=[A-Za-z0-9({{]) | _ | [\u0300-\u036f\u2030]
    | [ ]?!(?=[ ]*(?:$|[-+*/=^)\]}}.,;$!]))                     # a factorial; `42! And so on` holds none
    | [ ]?[√π∞θ±]
    | \((?=[^()]{{0,20}}[-+*/^xyz])                               # 5(x + 1)
    | [ ]?\\(?!(?:{_COMMANDS_AFTER})(?![A-Za-z]))[A-Za-z]        # 5\ln 2
    | [ ]?[-+*/·÷\u00d7][ ]?(?:[(\[√π\\]                       # 5 + x
        |(?!(?<=/)[shdL](?![A-Za-z]))(?:[b-zB-HJ-Z](?![A-Za-z])|a(?![A-Za-z ])))
    | \+(?![ ]?[0-9])                                           # 5+ is 5 or more
    | (?:[abcefijnopqruvwxyzBDEGHIMOPQRSTUXYZ]|[abcxyz]{{2,3}}|pi|ln|log|sqrt|sin|cos|tan)(?![A-Za-z])   # 5x
    | [ ](?:[xyzijnMB]|pi|ln|log|sqrt|sin|cos|tan)(?![A-Za-z])
    | (?:st|nd|rd|th)[ ](?:root|power)
    | [ ]?(?:<|>|[≤≥≠]|!=)
    | [ ]\(?(?i:squared|cubed|factorial|mod|modulo|choose|plus|minus|times|divided|multiplied|raised|dozen|score|lakh
        |crore|mil|tens|(?:is|was)[ ](?:\w{{1,12}}[ ])?(?:not|wrong|incorrect|false|too)|(?:is|was)n['\u2019]t|cannot
        |(?:ten|hundred|thousand|million|billion)ths?|halves|half|thirds|fourths|quarters|fifths|sixths|sevenths|eighths
        |ninths|or[ ](?:more|less|fewer|greater|higher|lower|above|below|over|under)
        |and[ ](?:above|over|up|below|under|a[ ](?:half|third|quarter|fifth)|one[ ])|(?:degrees[ ])?below)(?![A-Za-z])
    """,
    re.VERBOSE,
)
"""What follows a number and makes it a part of something else."""
_DENIED = re.compile(
    r"""
      [)\]}*_$"'`]{0,4}[ ]?(?:
        [ ]?(?:[a-z]{1,20}[ ])?(?:[-:;\u2014(\[]|(?<=[^ ]),)[ ]?
        (?:(?:which|that|this|it)[ ])?(?:(?:is|was|were|would[ ]be)[ ])?
        (?:(?!not)\w{1,12}[ ])?
        (?:wrong|incorrect|false|not[ ](?:\w{1,12}[ ]){0,2}
          (?:right|correct|true|valid|possible|answer|it))(?=[)\].!,;*_]|$)
      | (?<=[ ])[ ]?(?:[a-z]{1,20}[ ])?(?:is|was|are|were|would[ ]be|seems)[ ](?:(?!not)\w{1,12}[ ])?
        (?:wrong|incorrect|false)(?![A-Za-z])
      | [\u2717\u2718\u274c])
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""A denial of the number before it: 5 (wrong); **5** is incorrect."""
_SCALES = {"hundred": 2, "thousand": 3, "k": 3, "million": 6, "mn": 6, "billion": 9, "bn": 9, "trillion": 12}
_UNIT = re.compile(r"\s?([A-Za-zµ°]{1,40}(?:/[A-Za-z]{1,20})?)")
_COMMAND = re.compile(r"\\[A-Za-z]{1,30}$")
_EXPRESSION = "an expression is no plain number"
_QUALIFIED = "a number that is denied or compared with is no answer"


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
    if (fraction := _FRACTION.fullmatch(text)) is not None:
        value = Fraction(int(fraction[2]), int(fraction[3]))
        return [Number(value=-value if fraction[1] else value)]
    text = plain_forms(text)
    strange = None if text.isascii() else next(filter(_is_foreign_digit, text), None)
    if strange is not None:
        return [Number(value=None, problem=f"numbers are written with the digits 0 to 9, not {strange!r}")]
    lower = text.lower()
    may_deny = "wrong" in lower or "incorrect" in lower or "not " in lower or "false" in lower or not text.isascii()
    numbers: list[Number] = []
    end = 0
    for match in _NUMBER.finditer(text):
        gap = text[end : match.start()]
        end = match.end()
        if numbers and _is_operator(gap):
            numbers[-1] = Number(value=None, problem=_EXPRESSION)
            numbers.append(numbers[-1])
        else:
            numbers.append(_read(match, gap[-60:], text, may_deny=may_deny))
    if "∞" in text:
        numbers.append(Number(value=None, problem="infinity is no number"))
    return numbers


def _is_operator(gap: str) -> bool:
    bare = gap.strip(_EDGES).replace(" ", "") if len(gap) < 20 else ""
    return bool(bare) and _OPERATORS.issuperset(bare)


def _is_foreign_digit(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character) in ("Nd", "Nl", "No")


def _read(match: re.Match[str], before: str, text: str, *, may_deny: bool) -> Number:
    """Read one match, given the text right before it, and whether the text holds a word of denial."""
    sign, problem = _read_before(before, text if match.start() == len(before) else "") if before else (1, "")
    end = match.end()
    is_alone = end == len(text) or text[end] in _ENDS
    is_continued = (
        _CONTINUED.match(text, end)
        if not is_alone
        else text[end : end + 1] in _CLOSERS and (text[end : end + 4].lstrip(")]}")[:1] in _POWERS)
    )
    if may_deny and not problem and _DENIED.match(text, end):
        problem = _QUALIFIED
    if problem or is_continued:
        return Number(value=None, problem=problem or _EXPRESSION)
    value = _value(match)
    if value is None:
        return Number(value=None, problem="the number is too long, too large, or divided by 0")
    value, is_percent = sign * value, match["percent"] is not None
    unit = None if is_alone else _UNIT.match(text, end)
    if unit is None:
        return Number(value=value, is_percent=is_percent)
    word = unit[1] if unit[1] == "K" else unit[1].lower()
    if word in _SCALES:
        value, unit = value * 10 ** _SCALES[word], _UNIT.match(text, unit.end())
        if unit is not None and unit[1].lower() in _SCALES:
            return Number(value=None, problem=_EXPRESSION)
    elif word in ("percent", "pct") or (word == "per" and text.startswith(" cent", unit.end())):
        is_percent = True
    return Number(value=value, is_percent=is_percent, unit=unit[1] if unit is not None else "")


def _read_before(before: str, whole: str) -> tuple[int, str]:
    """Return the sign of a number, and why what stands before it leaves it no value.

    Args:
        before: the text between the last number, or the beginning, and this one; the end of it, if it is long.
        whole: the whole text, if it begins with `before`; else empty.
    """
    rest = before.rstrip(_OPENERS)
    if not rest:
        return 1, ""
    sign = 1
    if rest[-1] in "-+":
        is_detached = before[len(rest) : len(rest) + 1].isspace()
        sign, spaced = -1 if rest[-1] == "-" else 1, rest[:-1]
        if spaced and (spaced[-1].isalnum() or spaced[-1] in ")]}%|-+±√"):
            return 1, _EXPRESSION
        before, rest = spaced, spaced.rstrip(_OPENERS)
        if rest.endswith(("-", "+")) or (rest[-1:].isalpha() and not rest[-2:-1].isalpha() and rest[-1] not in "aI"):
            return 1, _EXPRESSION
        if is_detached and not _is_sign(spaced, rest, whole):
            return 1, "a minus sign that stands alone may be a dash"
        if not rest:
            return sign, ""
    last, between = rest[-1], before[len(rest) :]
    if last.isalpha():
        is_operand = between.startswith("(") or (between[:1] != " " and between.strip() == "*") or between == " * "
        return (1, _EXPRESSION) if is_operand else _read_word(rest, sign)
    if last in "√/^·÷\u00d7" or (last in "}]" and "{" in between):
        return 1, _EXPRESSION
    if last in "≤≥≠±∓<" or (last == ">" and rest[-2:-1] not in ("-", "=")):
        return 1, _QUALIFIED
    if last == "=" and rest.endswith(("<=", ">=", "!=", "\\not=", "\\not =")):
        return 1, _QUALIFIED
    if last == "\u2014" and not between and not rest[-2:-1].isalnum():
        return 1, "a dash before a number may be a minus sign"
    return sign, ""


def _is_sign(spaced: str, rest: str, whole: str) -> bool:
    """Return whether a minus sign that stands alone is one, given the text before it with and without openers."""
    if not rest:
        return bool(whole) and "\n" not in whole.strip()
    opener = spaced.rstrip(" ")[-1:]
    return opener != "\n" and (opener in "=:([{$≈" or _STATES.search(rest[-20:].lower()) is not None)


def _read_word(rest: str, sign: int) -> tuple[int, str]:
    """Return the sign of a number after a word or a command, and why that leaves it no value."""
    rest = rest[-40:]
    if "\\" in rest and (command := _COMMAND.search(rest)) is not None:
        return (sign, "") if _COMMANDS_BEFORE.fullmatch(command[0]) else (1, _EXPRESSION)
    words = rest.lower().split()[-3:]
    last = words[-1].lstrip(_OPENERS)
    if last in _FUNCTIONS or (last in ("of", "by", "minus") and _OPERATIONS.search(" ".join(words))):
        return 1, _EXPRESSION
    if last in ("negative", "minus"):
        return -sign, ""
    if last in _COMPARISONS or (last == "to" and (words[-2:-1] == ["up"] or words[-3:-1] == ["or", "equal"])):
        return 1, _QUALIFIED
    is_denied = not _NEGATIONS.isdisjoint(words) or any(word.endswith(("n't", "n\u2019t")) for word in words)
    return (1, _QUALIFIED) if is_denied else (sign, "")


def _value(match: re.Match[str]) -> Fraction | None:
    if match["top"]:
        bottom = int(match["bottom"])
        return int(match["whole"] or 0) + Fraction(int(match["top"]), bottom) if bottom else None
    exponent = match["exponent"]
    if len(match["digits"]) > _MAX_DIGITS:
        return None
    value = Fraction(match["digits"].translate(_SEPARATORS))
    if exponent is None:
        return value
    return value * Fraction(10) ** int(exponent) if len(exponent) <= 9 and abs(int(exponent)) <= _MAX_EXPONENT else None


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def one_number(text: str) -> Fraction | None:
    """Return the value of a text that is nothing but one plain number (signs and currency are part of it)."""
    text = text.strip().strip("$€£¥ ")
    is_bare = not re.sub(r"[-+0-9.,/eE '$€£¥]", "", plain_forms(text))
    numbers = read_numbers(text) if is_bare else []
    return numbers[0].value if len(numbers) == 1 and not numbers[0].is_percent else None


def distinct(numbers: list[Number]) -> Iterator[Number]:
    """Yield the numbers that differ from all before them."""
    seen: set[Fraction | None] = set()
    for number in numbers:
        if number.value not in seen:
            seen.add(number.value)
            yield number
