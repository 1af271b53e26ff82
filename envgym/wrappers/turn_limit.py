"""Ends an episode after a number of turns."""

from envgym.core.turns import Ending
from envgym.errors import InvalidInput, sentence
from envgym.records import ResetResult, StepResult
from envgym.wrappers.base import AnyEnv, Wrapper, cut_off


class TurnLimit(Wrapper):
    """Ends an episode with `TRUNCATED_TURNS` at its turn number `max_turns`, where it has not ended by then."""

    def __init__(self, env: AnyEnv, max_turns: int) -> None:
        """Wrap `env`. Raises: InvalidInput: `max_turns` is below 1."""
        super().__init__(env)
        if max_turns < 1:
            raise InvalidInput(sentence("max_turns", "be at least 1", max_turns, where="TurnLimit", do="raise it"))
        self.max_turns = max_turns
        self._turns = 0

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Count from 0."""
        self._turns = 0
        return result

    def on_step(self, action: str) -> StepResult:
        """Play the turn and count it."""
        result = self.env.step(action)
        self._turns += 1
        return cut_off(result, Ending.TRUNCATED_TURNS) if self._turns >= self.max_turns else result
