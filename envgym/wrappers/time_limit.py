"""Ends an episode that takes too long."""

import time
from collections.abc import Callable

from envgym.core.turns import Ending
from envgym.errors import InvalidInput, sentence
from envgym.records import ResetResult, StepResult
from envgym.wrappers.base import AnyEnv, Wrapper, cut_off


class TimeLimit(Wrapper):
    """Ends an episode with `TRUNCATED_TIME` at the first turn that is over `limit_s` seconds after the reset.

    It cannot interrupt a turn: an env that may hang needs its own timeout. A fork keeps its parent's start.
    """

    def __init__(self, env: AnyEnv, limit_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap `env`; `clock` gives seconds. Raises: InvalidInput: `limit_s` is not above 0."""
        super().__init__(env)
        if not limit_s > 0:
            raise InvalidInput(sentence("limit_s", "be above 0", limit_s, where="TimeLimit", do="raise it"))
        self.limit_s = limit_s
        self.clock = clock
        self._start = 0.0

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Start the clock."""
        self._start = self.clock()
        return result

    def on_step(self, action: str) -> StepResult:
        """Play the turn, then look at the clock."""
        result = self.env.step(action)
        return cut_off(result, Ending.TRUNCATED_TIME) if self.clock() - self._start >= self.limit_s else result
