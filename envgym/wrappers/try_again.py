"""Lets the agent try again where it was wrong, and tells it nothing more."""

from dataclasses import replace

from envgym.core.turns import Ending, Invalid
from envgym.errors import InvalidInput, sentence
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.wrappers.base import AnyEnv, Wrapper, record_of
from envgym.wrappers.chaining import continued_result, scored

FEEDBACK = "That is not right. Try again."
REPEATED = "You said that before. Try again."
_TOLERANCE = 1e-9


class TryAgain(Wrapper):
    """Starts the task anew when its episode ends below the optimum, as long as attempts are left.

    The episode earns its best attempt, where attempt k (from 0) counts discount^k (1 - repeat_penalty)^r of what it
    earned, after r attempts that ended with an action said before. A truncated or invalid attempt is the last.

    Source: 2507.14295, unary feedback as observation; here for every env, also where an attempt takes several turns.
    """

    def __init__(
        self,
        env: AnyEnv,
        attempts: int = 3,
        *,
        discount: float = 0.5,
        repeat_penalty: float = 0.0,
        show_task: bool = True,
    ) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            attempts: How often the task may be tried.
            discount: What each further attempt is worth, compared with the one before.
            repeat_penalty: Share of all that follows that is lost for ending an attempt with an action said before.
            show_task: Show the first observation again with each attempt; a single question need not be repeated.

        Raises: InvalidInput: `attempts` is below 1, or a share outside [0, 1].
        """
        super().__init__(env)
        if attempts < 1:
            raise InvalidInput(sentence("attempts", "be at least 1", attempts, where="TryAgain", do="pass e.g. 3"))
        for name, share in (("discount", discount), ("repeat_penalty", repeat_penalty)):
            if not 0.0 <= share <= 1.0:
                raise InvalidInput(sentence(name, "lie in [0, 1]", share, where="TryAgain", do="pass e.g. 0.5"))
        self.attempts, self.show_task = attempts, show_task
        self.discount, self.repeat_penalty = discount, repeat_penalty
        self._turns, self._attempt, self._weight = 0, 0, 1.0
        self._earned, self._paid = 0.0, 0.0
        self._said: frozenset[str] = frozenset()

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin the first attempt."""
        self._turns, self._attempt, self._weight = 0, 0, 1.0
        self._earned, self._paid = 0.0, 0.0
        self._said = frozenset()
        return result

    def on_step(self, action: str) -> StepResult:
        """Play the turn; where it ends an attempt in vain, begin the next."""
        record = self._paying(record_of(self.env.step(action)))
        has_failed = record.ending is Ending.TERMINATED and self._earned < self.unwrapped.optimum - _TOLERANCE
        if not has_failed or self._attempt + 1 >= self.attempts:
            return step_result(record)
        is_repeated = record.action.content in self._said
        self._said |= {record.action.content}
        self._weight *= self.discount * (1 - self.repeat_penalty * is_repeated)
        self._attempt, self._earned = self._attempt + 1, 0.0
        begun = self.env.reset(options={"task": self.task})
        said = f"{REPEATED if is_repeated else FEEDBACK} Attempts left: {self.attempts - self._attempt}."
        return continued_result(record, record.reward, said, begun if self.show_task else None)

    def _paying(self, record: StepRecord) -> StepRecord:
        """Count the turn, and pay for the first attempt as the env does, for others what is better than all before."""
        record = replace(record, turn=self._turns)
        self._turns += 1
        if isinstance(record.reward, Invalid):
            return record
        self._earned += record.reward.value
        earned = self._weight * self._earned
        value = earned - self._paid if self._attempt == 0 else max(0.0, earned - self._paid)
        self._paid += value
        return replace(record, reward=scored(record.reward, value))
