"""Numbers, compared exactly or within a tolerance: |answer - key| <= max(abs_tol, rel_tol |key|)."""

from dataclasses import dataclass
from fractions import Fraction

from envgym.core.tasks import Task
from envgym.errors import InvalidInput
from envgym.verifiers.base import ChecksKey, Verdict, bad_key, judge_candidates, key_of, right, wrong
from envgym.verifiers.extract import Extractor, Take, final
from envgym.verifiers.numbers import Number, distinct, one_number, read_numbers

MAX_CHARS = 20_000
"""A longer answer scores 0; where the final answer is marked, only the marked part counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric(ChecksKey):
    """1 where the answer's number is close enough to the key, else 0."""

    key: str = "answer"
    """Payload field: a number, or its text."""
    extract: Extractor = final
    take: Take = Take.ONLY
    """Which candidate answer counts, and which number of it."""
    abs_tol: float = 0.0
    rel_tol: float | None = None
    """None: 0 for a whole key, 1e-9 for any other (the rounding of floats)."""
    units: tuple[str, ...] | None = None
    """Words that may stand right after the number, case aside; None: any word may."""
    percent_is_hundredth: bool = False
    """True: 50% is 0.5. False: the sign is a unit, 50% is 50."""

    def __post_init__(self) -> None:
        for name, value in (("abs_tol", self.abs_tol), ("rel_tol", self.rel_tol or 0.0)):
            if not 0.0 <= value < float("inf"):
                raise InvalidInput.of(name, "be at least 0", value, where="Numeric", do="pass e.g. 1e-3")

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field holds no number."""
        key = self._key(task)
        return judge_candidates(self.extract(answer), lambda text: self._judge(text, key), self.take)

    def _judge(self, text: str, key: Fraction) -> Verdict:
        if len(text) > MAX_CHARS:
            return wrong(f"the answer has {len(text)} characters, more than {MAX_CHARS}")
        number = self._number(text)
        if number.value is None:
            return wrong(number.problem)
        if self.units is not None and number.unit and number.unit.casefold() not in map(str.casefold, self.units):
            return wrong(f"the unit {number.unit!r} is not one of {', '.join(self.units)}")
        value = number.value / 100 if number.is_percent and self.percent_is_hundredth else number.value
        rel_tol = self.rel_tol if self.rel_tol is not None else (0.0 if key.denominator == 1 else 1e-9)
        if abs(value - key) <= max(Fraction(self.abs_tol), Fraction(rel_tol) * abs(key)):
            return right()
        return wrong(f"{_shown(value)} is not {_shown(key)}")

    def _number(self, text: str) -> Number:
        """Return the number that counts, or one without a value that says why there is none."""
        numbers = read_numbers(text)
        if not numbers:
            return Number(value=None, problem="there is no number")
        if self.take == Take.LAST:
            return numbers[-1]
        different = list(distinct(numbers))
        if len(different) > 1:
            return Number(value=None, problem=f"there are {len(different)} different numbers")
        return different[0]

    def _key(self, task: Task) -> Fraction:
        value = key_of(task, self.key)
        number = (
            one_number(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
        )
        if number is None:
            raise bad_key(task, self.key, "hold one finite number", value)
        return number


def _shown(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"
