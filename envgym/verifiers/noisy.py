"""A verifier with noise: another verifier whose scores are flipped with known rates, to study what noise does."""

from dataclasses import dataclass

from envgym.core.json_types import well_formed
from envgym.core.tasks import Task
from envgym.errors import InvalidInput
from envgym.seeds import generator
from envgym.verifiers.base import Verdict, Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy:
    """Another verifier's score s, or 1 - s: flipped with a probability that depends on whether s is above 1/2.

    E[score] = s + (1 - 2 s) * rate, where rate is `false_negative` for s > 1/2, else `false_positive`; for a right
    answer that is 1 - false_negative, for a wrong one false_positive. Whether a score is flipped depends on seed, task
    and answer alone: the same answer is judged alike each time, so noise does not average out over equal answers.

    Source: 2510.00915, the verifier as a channel with two rates; that equal answers are judged alike is ours.
    """

    verifier: Verifier
    """Gives the score."""
    false_positive: float = 0.0
    """Probability that a score of at most 1/2 is flipped."""
    false_negative: float = 0.0
    """Probability that a score above 1/2 is flipped."""
    seed: int = 0
    """Seed of the flips."""

    def __post_init__(self) -> None:
        for name, rate in (("false_positive", self.false_positive), ("false_negative", self.false_negative)):
            InvalidInput.unless(0.0 <= rate <= 1.0, name, "lie in [0, 1]", rate, where="Noisy", do="pass e.g. 0.1")

    @property
    def blocking(self) -> bool:
        return getattr(self.verifier, "blocking", False)

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: the other verifier cannot read the task's key."""
        check = getattr(self.verifier, "check_key", None)
        if check is not None:
            check(task)

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: what the other verifier raises."""
        verdict = self.verifier(answer, task)
        rate = self.false_negative if verdict.score > 0.5 else self.false_positive
        if generator("noisy", self.seed, task.key, well_formed(answer)).random() >= rate:
            return verdict
        return Verdict(score=1.0 - verdict.score, reason=f"flipped by noise: {verdict.reason}")
