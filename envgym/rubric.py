"""A rubric: weighted verifiers and reward functions of one answer, whose scores are kept by name.

value = (product of the gates' scores are 1, else 0) * sum_i w_i s_i / sum_i w_i
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envgym.core.messages import Message
from envgym.core.tasks import Task
from envgym.core.turns import Scored, reaches
from envgym.errors import InvalidInput
from envgym.verifiers.base import Verdict
from envgym.verifiers.functions import Attempt, CheckedFunction, RewardFunction


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a rubric."""

    verifier: RewardFunction
    """A verifier, or any reward function."""
    weight: float
    """At least 0; 0 records the score without paying for it."""
    name: str
    """Name of the reward's component."""
    is_gate: bool = False
    """True: unless this score is 1, the whole reward is 0."""


class Rubric:
    """Scores an answer by several verifiers or reward functions; picklable if they are."""

    def __init__(self, criteria: Sequence[Criterion | tuple[RewardFunction, float, str]]) -> None:
        """Take criteria, or (function, weight, name). Weights are shares: only their ratios count.

        Raises: InvalidInput: no positive weight, a negative one, a name used twice, a function that takes what there is
            none of.
        """
        self.criteria = tuple(item if isinstance(item, Criterion) else Criterion(*item) for item in criteria)
        names = [item.name for item in self.criteria]
        if len(set(names)) < len(names):
            raise InvalidInput.of("criteria", "have different names", names, where="Rubric", do="rename one")
        weights = [item.weight for item in self.criteria]
        self._total = sum(weights)
        self._functions = {item.name: CheckedFunction(item.verifier) for item in self.criteria}
        if any(weight < 0 for weight in weights) or not 0 < self._total < float("inf"):
            raise InvalidInput.of(
                "weights", "be at least 0, one of them positive", weights, where="Rubric", do="correct them"
            )

    @property
    def blocking(self) -> bool:
        """True where a verifier may wait for a process or the network."""
        return any(getattr(item.verifier, "blocking", False) for item in self.criteria)

    def verdicts(self, attempt: Attempt) -> Mapping[str, Verdict]:
        """Return every verdict by name. Raises: what a verifier raises; a fault of a verifier is never a 0."""
        return {name: function(attempt) for name, function in self._functions.items()}

    def __call__(self, answer: str, task: Task, transcript: Sequence[Message] = ()) -> Scored:
        """Return the reward in [0, 1], with each verifier's score as a component. Raises: what a verifier raises.

        Args:
            answer: the final one.
            task: with its key.
            transcript: the messages of the episode, the one with the answer included.
        """
        attempt = Attempt(answer=answer, task=task, transcript=tuple(transcript))
        scores = {name: verdict.score for name, verdict in self.verdicts(attempt).items()}
        is_open = all(reaches(scores[item.name], 1.0) for item in self.criteria if item.is_gate)
        value = sum(item.weight * scores[item.name] for item in self.criteria) / self._total if is_open else 0.0
        return Scored(value=value, components=scores)


def rubric_of(verifier: RewardFunction | Rubric) -> Rubric:
    """Return a rubric of one verifier or reward function, named `answer`; a rubric is returned as it is."""
    return verifier if isinstance(verifier, Rubric) else Rubric([(verifier, 1.0, "answer")])
