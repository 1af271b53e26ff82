r"""How the answer to a problem is judged: by math-verify, and only where it is worked out.

math-verify computes what it reads: it would take `12 * 7` for 84, an integral for its value, a set for a pair. So an
answer must be as finished as the key is. Where the key is a number, the answer is one. Beside another key, as `(3, -2)`
or `2 \sqrt{3}`, it leaves no more operations on constants to be done (`envgym.verifiers.operations_left`), and has no
integral, derivative or the like that the key does not have.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from envgym.core.tasks import Task
from envgym.verifiers.base import Verdict, text_keys_of, wrong
from envgym.verifiers.extract import final
from envgym.verifiers.math import Math, expression
from envgym.verifiers.numbers import distinct, read_numbers

MAX_CHARS = 1000
_NUMBER = re.compile(
    r"-? ?(?:[0-9][0-9,]{0,80}(?:\.[0-9]{1,80})?|\.[0-9]{1,80})?"
    r"(?:/[0-9]{1,80}| ?-?\\[dt]?frac ?(?:\{ ?-?[0-9]{1,80} ?\} ?\{ ?-?[0-9]{1,80} ?\}|[0-9] ?[0-9])"
    r"| ?\\(?:times|cdot) ?10 ?\^ ?(?:[0-9]|\{ ?-?[0-9]{1,3} ?\}))?"
)
"""An integer, a decimal, a fraction, a mixed number, a number in scientific notation."""
_NAME = re.compile(
    r"^(?:[A-Za-z]{1,2}'{0,2}(?:_\{?[0-9A-Za-z]{1,3}\}?)?(?:\([a-z0-9]\))?|\([a-z](?:, ?[a-z]){1,2}\))"
    r" ?(?:=|\\in(?![a-z])) ?"
)
_UNIT = re.compile(
    r"(?:\\[,; ]|[ ~])*(?:\\(?:text|mathrm|textrm) ?\{[^{}]{0,40}\}(?:\^\{?[23]\}?)?|\\?%|\^ ?\{? ?\\circ ?\}?)$"
)
_GROUPING = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,; ]|~)(?=[0-9]{3}(?![0-9]))")
"""What stands between the thousands of a number in LaTeX."""
_DROPPED = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\!|\\\$")
_OPERATIONS = re.compile(
    r"\\(?:i{1,3}nt|oint|sum|prod|lim|det|[dt]?binom|gcd|lcm|[bp]?mod|min|max|partial|nabla|begin)(?![A-Za-z])"
    r"|\\[dt]?frac ?\{ ?(?:\\mathrm ?\{d\}|d)|!|'|\\prime"
)
"""What stands for something still to be done."""
_PROSE = re.compile(r"[^\\^!|<>{}*]{1,300}")
_ON_A_LETTER = re.compile(r"\+(?! ?[0-9])|(?<![A-Za-z])[a-z] ?-|- ?[b-z](?![A-Za-z])")
"""An operation on an unknown, as in 10 + x - x; a word with a hyphen is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedOut:
    """1 where the answer equals an accepted one and is worked out, else 0."""

    blocking: ClassVar[bool] = True
    math: Math

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the key cannot be read. EnvFailure: no comparison could be run."""
        keys = [bare_expression(key) for key in text_keys_of(task, self.math.key)]
        extracted = final(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        if len(extracted.answer) > MAX_CHARS:
            return wrong("the answer is too long")
        latex = expression(extracted.answer)
        if latex is None:
            return wrong("there are several different expressions")
        latex = bare_expression(latex)
        if all(_NUMBER.fullmatch(key) for key in keys):
            number = _number(latex, extracted.answer)
            return wrong("it is not one number") if number is None else self.math(f"\\boxed{{{number}}}", task)
        if latex.startswith("\\{") and all(key.startswith(("(", "[")) for key in keys):
            return wrong("a set is no tuple")
        for mark in dict.fromkeys(_OPERATIONS.findall(latex)):
            if latex.count(mark) > max(key.count(mark) for key in keys):
                return wrong(f"{mark} is still to be worked out")
        return self.math(f"\\boxed{{{latex}}}", task)


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def bare_expression(text: str) -> str:
    """Return an expression without a name in front, a unit after it, and marks of size and of thousands."""
    plain = _GROUPING.sub("", _DROPPED.sub("", text)).strip()
    return _UNIT.sub("", _NAME.sub("", plain)).strip()


def _number(latex: str, text: str) -> str | None:
    """Return the number that is said, alone or as the only one of a sentence; None where it is not worked out."""
    bare = latex[1:-1].strip() if latex.startswith("(") and latex.endswith(")") else latex
    if _NUMBER.fullmatch(bare):
        return bare
    is_prose = _PROSE.fullmatch(text) and not _ON_A_LETTER.search(text)
    numbers = list(distinct(read_numbers(text))) if is_prose else []
    return str(numbers[0].value) if len(numbers) == 1 and numbers[0].value is not None else None
