"""How answers to factual questions are judged, and what an answer that was never looked up can earn."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from envgym.core.tasks import Task
from envgym.envs.search._questions import UNKNOWN
from envgym.errors import InvalidInput, check_known
from envgym.verifiers.base import Verdict
from envgym.verifiers.exact import Exact
from envgym.verifiers.extract import Take, final
from envgym.verifiers.f1 import F1
from envgym.verifiers.numeric import Numeric

TEXT_SCORES = ("exact", "f1")
F1_CHANCE = 0.1
"""What words of the question earn at most on average, where answers are scored by F1."""


def check_scoring(take: str, evidence_weight: float, *, where: str) -> None:
    """Raises: UnknownName, InvalidInput: no such choice of an answer, or a weight of the evidence beyond [0, 1)."""
    check_known("take", take, tuple(Take), where=where)
    is_share, do = 0.0 <= evidence_weight < 1.0, "pass e.g. 0.3, or 0 for none"
    InvalidInput.unless(is_share, "evidence_weight", "lie in [0, 1)", evidence_weight, where=where, do=do)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactbookMatch:
    """Names by the accepted ones (exact, or F1), numbers within a tolerance, counts exactly."""

    text_score: str = "exact"
    tolerance: float = 0.01
    """Relative."""
    take: Take = Take.ONLY
    """Which of several candidate answers counts."""

    def __post_init__(self) -> None:
        check_known("text_score", self.text_score, TEXT_SCORES, where="FactbookMatch")
        if not 0.0 <= self.tolerance <= 0.1:
            raise InvalidInput.of(
                "tolerance", "lie in [0, 0.1]", self.tolerance, where="FactbookMatch", do="pass e.g. 0.01"
            )

    def __call__(self, answer: str, task: Task) -> Verdict:
        if not task.payload["accepted"]:
            return Numeric(rel_tol=self._tolerance(task), take=self.take)(answer, task)
        if self.text_score == "f1" and task.payload["answer"] != UNKNOWN:
            return F1(key="accepted", extract=final, take=self.take)(answer, task)
        names = Exact(key="accepted", extract=final, take=self.take, ignore_case=True, ignore_punctuation=True)
        return names(answer, task)

    def chance(self, tasks: Iterable[Task]) -> float:
        """Return the share of `tasks` that the best single answer is right on."""
        names: Counter[str] = Counter()
        low: list[float] = []
        high: list[float] = []
        total = 0
        for task in tasks:
            total += 1
            accepted, answer = task.payload["accepted"], task.payload["answer"]
            if isinstance(answer, str) and isinstance(accepted, list):
                names.update({str(name).casefold() for name in accepted})
            elif isinstance(answer, int | float):
                width = self._tolerance(task) * abs(answer)
                low.append(answer - width)
                high.append(answer + width)
        low, high = sorted(low), sorted(high)
        most = max((bisect_right(low, end) - index for index, end in enumerate(high)), default=0)
        best = max([most, *names.values()]) / max(total, 1)
        return min(1.0, best + (F1_CHANCE if self.text_score == "f1" else 0.0))

    def _tolerance(self, task: Task) -> float:
        return 0.0 if task.payload["kind"] == "filter_count" else self.tolerance
