"""The form of an answer: a regular expression that the author writes."""

import re
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.errors import InvalidInput
from envgym.verifiers.base import Verdict, right, wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """1 where the pattern matches the whole answer (outer spaces aside), else 0; it judges form, not truth."""

    pattern: str
    """Python's `re` syntax; the dot matches line breaks too."""
    max_chars: int = 20_000
    """A longer answer scores 0: some patterns need quadratic time."""

    def __post_init__(self) -> None:
        """Refuse a pattern that does not compile."""
        try:
            re.compile(self.pattern, re.DOTALL)
        except re.error as error:
            raise InvalidInput.of(
                "pattern", "be a regular expression", self.pattern, where=f"Pattern: {error}", do="correct it"
            ) from None

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`; the task is not looked at."""
        if len(answer) > self.max_chars:
            return wrong(f"the answer has {len(answer)} characters, more than {self.max_chars}")
        if re.fullmatch(self.pattern, answer.strip(), re.DOTALL):
            return right("the form is right")
        return wrong("the form is not the one asked for")
