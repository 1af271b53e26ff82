"""Wrappers that end an episode after a number of turns, or after a time."""

import time
from collections.abc import Callable

from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.records import ResetResult, StepResult
from envgym.wrappers.base import AnyEnv, Wrapper, cut_off


class TurnLimit(Wrapper):
    """Ends an episode with `TRUNCATED_TURNS` at its turn number `max_turns`, where it has not ended by then."""

    def __init__(self, env: AnyEnv, max_turns: int) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            max_turns: Turns after which an episode is truncated.

        Raises: InvalidInput: `max_turns` is below 1.
        """
        super().__init__(env)
        InvalidInput.unless(max_turns >= 1, "max_turns", "be at least 1", max_turns, where="TurnLimit", do="raise it")
        self.max_turns = max_turns

    def after_step(self, result: StepResult) -> StepResult:
        return cut_off(result, Ending.TRUNCATED_TURNS) if self._turn + 1 >= self.max_turns else result


class TimeLimit(Wrapper):
    """Ends an episode with `TRUNCATED_TIME` at the first turn that is over `limit_s` seconds after the reset.

    It cannot interrupt a turn: an env that may hang needs its own timeout. A fork keeps its parent's start.
    """

    def __init__(self, env: AnyEnv, limit_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            limit_s: Seconds after which an episode is truncated.
            clock: Gives the time in seconds.

        Raises: InvalidInput: `limit_s` is not above 0.
        """
        super().__init__(env)
        InvalidInput.unless(limit_s > 0, "limit_s", "be above 0", limit_s, where="TimeLimit", do="raise it")
        self.limit_s = limit_s
        self.clock = clock
        self._start = 0.0

    def on_reset(self, result: ResetResult) -> ResetResult:
        self._start = self.clock()
        return result

    def after_step(self, result: StepResult) -> StepResult:
        return cut_off(result, Ending.TRUNCATED_TIME) if self.clock() - self._start >= self.limit_s else result
