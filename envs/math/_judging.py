r"""How the answer to a problem is judged: by math-verify, and only where it is worked out.

math-verify computes what it reads: it would take `12 * 7` for 84, an integral for its value, a set for a pair. So an
answer must be as finished as the key is. Where the key is a number, the answer is one. Beside another key, as `(3, -2)`
or `2 \sqrt{3}`, it leaves no more operations on constants to be done (`envgym.verifiers.operations_left`), and has no
integral, derivative or the like that the key does not have.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from envgym.core.tasks import Task
from envgym.verifiers.base import Verdict, bad_key, judge_candidates, text_keys_of, wrong
from envgym.verifiers.extract import Take, final
from envgym.verifiers.math import Math, expression
from envgym.verifiers.notation import word
from envgym.verifiers.numbers import distinct, read_numbers
from envgym.verifiers.units import units_differ

MAX_CHARS = 1000
_NUMBER = re.compile(
    r"-? ?(?:[0-9][0-9,]{0,80}(?:\.[0-9]{1,80})?|\.[0-9]{1,80})?"
    r"(?:/[0-9]{1,80}| ?-?\\[dt]?frac ?(?:\{ ?-?[0-9]{1,80} ?\} ?\{ ?-?[0-9]{1,80} ?\}|[0-9] ?[0-9])"
    r"| ?\\(?:times|cdot) ?10 ?\^ ?(?:[0-9]|\{ ?-?[0-9]{1,3} ?\})|[eE][+-]?[0-9]{1,3})?(?: ?\\?%)?"
)
"""An integer, a decimal, a fraction, a mixed number, a number in scientific notation, or a percentage of these."""
_NAME = re.compile(
    r"^(?:[A-Za-z]{1,2}'{0,2}(?:_\{?[0-9A-Za-z]{1,3}\}?)?(?:\([a-z0-9]\))?|\([a-z](?:, ?[a-z]){1,2}\))"
    r" ?(?:=|\\in(?![a-z])) ?"
)
_UNIT = re.compile(
    r"(?:\\[,; ]|[ ~]){0,8}(?:\\(?:text|mathrm|textrm) ?\{[^{}]{0,40}\}(?:\^\{?[23]\}?)?|\^ ?\{? ?\\circ ?\}?"
    r"|(?<=[0-9] )(?:[cdkm]m|ft|in|yd) ?\^ ?\{?[23]\}?)$"
)
_DROPPED = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\! ?|\\\$")
_OPERATIONS = re.compile(
    r"\\(?:i{1,3}nt|oint|sum|prod|lim|det|[dt]?binom|gcd|lcm|[bp]?mod|min|max|partial|nabla|begin)(?![A-Za-z])"
    r"|\\[dt]?frac ?\{ ?(?:\\mathrm ?\{d\}|d)|!|'|\\prime"
)
"""What stands for something still to be done."""
_HAS_BASE = re.compile(r"\(?[0-9A-Z]{1,80}\)?_.{1,20}")
_SUM_OF_NAMES = re.compile(r"^[A-Za-z](?: ?\+ ?[A-Za-z]){1,4} ?= ?")
"""What an AIME problem asks for, as m + n = 73."""
_PROSE = re.compile(r"[^\\^!|<>{}*]{1,300}")
_ON_A_LETTER = re.compile(r"\+(?! ?[0-9])|(?<![A-Za-z])[a-z] ?-|- ?[b-z](?![A-Za-z])|[0-9] ?[inkp-rt-z](?![A-Za-z])")
"""An operation on an unknown, as in 10 + x - x or 5x; a word with a hyphen is none, nor is a unit of one letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedOut:
    """1 where the answer equals an accepted one and is worked out, else 0."""

    blocking: ClassVar[bool] = True
    math: Math
    take: Take = Take.ONLY
    """Which of several candidate answers counts."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the key cannot be read. EnvFailure: no comparison could be run."""
        keys = self._keys(task)
        return judge_candidates(final(answer), lambda text: self._judge(text, keys, task), self.take)

    def _judge(self, text: str, keys: Sequence[str], task: Task) -> Verdict:
        if len(text) > MAX_CHARS:
            return wrong("the answer is too long")
        latex = expression(text)
        if latex is None:
            return wrong("there are several different expressions")
        if not text.isdecimal():  # else it has no unit
            texts = text_keys_of(task, self.math.key)
            keys = [key for key, full in zip(keys, texts, strict=True) if not units_differ(_full(full), text)]
            if not keys:
                return wrong("the unit is not that of the key")
        latex = bare_expression(latex)
        if all(_NUMBER.fullmatch(key) for key in keys) and not _HAS_BASE.fullmatch(latex):
            number = _number(latex, text)
            return wrong("it is not one number") if number is None else self.math.judge(number, keys, task)
        if latex.startswith("\\{") and all(key.startswith(("(", "[")) for key in keys):
            return wrong("a set is no tuple")
        for mark in dict.fromkeys(_OPERATIONS.findall(latex)):
            if latex.count(mark) > max(key.count(mark) for key in keys):
                return wrong(f"{mark} is still to be worked out")
        return self.math.judge(latex, keys, task)

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: a key of the task cannot be read, or is not right as an answer."""
        field = self.math.key
        for text, key in zip(text_keys_of(task, field), self._keys(task), strict=True):
            if not key or self(f"\\boxed{{{text}}}", task).score != 1.0:
                raise bad_key(task, field, "be right as an answer", text)

    def _keys(self, task: Task) -> list[str]:
        texts = text_keys_of(task, self.math.key)
        return self.math.read_keys([bare_expression(_full(text)) for text in texts], task)


def _full(key: str) -> str:
    return expression(key) or key


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def bare_expression(text: str) -> str:
    """Return an expression without a name in front, a unit after it, and marks of size and of thousands."""
    plain = _DROPPED.sub("", text).strip()
    if word(plain) is not None:
        return plain
    bare = _NAME.sub("", plain).strip()
    return _UNIT.sub("", bare).strip() or bare


def _number(latex: str, text: str) -> str | None:
    """Return the number that is said, alone or as the only one of a sentence; None where it is not worked out."""
    latex = _SUM_OF_NAMES.sub("", latex)
    bare = latex[1:-1].strip() if latex.startswith("(") and latex.endswith(")") else latex
    if _NUMBER.fullmatch(bare):
        return bare
    is_prose = _PROSE.fullmatch(text) and not _ON_A_LETTER.search(text)
    numbers = list(distinct(read_numbers(text))) if is_prose else []
    if len(numbers) != 1 or numbers[0].value is None:
        return None
    return f"{numbers[0].value}{'%' if numbers[0].is_percent else ''}"
