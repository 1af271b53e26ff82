"""A wrapper that pays for sub-goals: a declared amount for each, once an episode."""

import math
from collections.abc import Mapping
from dataclasses import replace

from envgym.core.tasks import Split
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.wrappers.base import AnyEnv, Wrapper, record_of

COMPONENT = "subgoal_rewards"
_WHERE = "SubgoalRewards"


class SubgoalRewards(Wrapper):
    """Adds `amounts[name]` to the reward of the first turn of an episode in which the sub-goal `name` is reached.

    An env tells that a turn has reached a sub-goal by a component of this name, above 0, in the turn's reward. What is
    added is the component `subgoal_rewards`. With `potential` the rewards are

        r'_t = r_t + discount P_t+1 - P_t,   P_t = sum of the amounts of what was reached before turn t, 0 at the end,

    so that sum_t discount^t r'_t is that of r_t for every episode, and the best policy stays the best: the last turn
    takes back what was paid. An episode that something outside cuts, such as the limits of the agent's context, keeps
    it. Without `potential`, a policy may prefer sub-goals to the goal. Test tasks are paid as the env pays them, unless
    `on_test`. It wraps `horizon` and `try_again`, not the other way round: those read what the env itself pays.

    Source: Ng, Harada and Russell, Policy Invariance under Reward Transformations (ICML 1999).
    """

    def __init__(
        self,
        env: AnyEnv,
        amounts: Mapping[str, float],
        *,
        potential: bool = False,
        discount: float = 1.0,
        on_test: bool = False,
    ) -> None:
        """Wrap `env`.

        Args:
            env: Any env whose rewards have components.
            amounts: Name of a sub-goal -> what it pays, above 0.
            potential: Pay differences of a potential, which leave the best policy as it is.
            discount: Of the returns that training maximises, above 0 and at most 1; with `potential` alone.
            on_test: Pay on test tasks, too.

        Raises: InvalidInput: there is no amount, one is not above 0, or the discount is out of range or does nothing.
        """
        super().__init__(env)
        InvalidInput.unless(amounts, "amounts", "name a sub-goal", "none", where=_WHERE, do="pass e.g. {found: 0.1}")
        for name, amount in amounts.items():
            fits = 0 < amount < math.inf
            InvalidInput.unless(fits, f"amount of {name}", "be above 0", amount, where=_WHERE, do="pass e.g. 0.1")
        fits, do = 0 < discount <= 1, "pass that of the credit, such as 1"
        InvalidInput.unless(fits, "discount", "be above 0 and at most 1", discount, where=_WHERE, do=do)
        must, do = "be 1 without potential", "set potential=true, or leave the discount out"
        InvalidInput.unless(potential or discount == 1, "discount", must, discount, where=_WHERE, do=do)
        self.amounts, self.potential, self.discount, self.on_test = dict(amounts), potential, discount, on_test
        self._reached: frozenset[str] = frozenset()

    def on_reset(self, result: ResetResult) -> ResetResult:
        self._reached = frozenset()
        return result

    def on_step(self, action: str) -> StepResult:
        result = self.env.step(action)
        if self.task.split is Split.TEST and not self.on_test:
            return result
        return step_result(self._paid(record_of(result)))

    def _paid(self, record: StepRecord) -> StepRecord:
        reward = record.reward
        if not isinstance(reward, Scored):
            return record
        before = self._reached
        names = {name for name, part in reward.components.items() if part > 0 and name in self.amounts}
        self._reached = before | names
        after = self._sum(self._reached)
        extra = after - self._sum(before)
        if self.potential:
            extra = self.discount * (0.0 if record.ending is not None else after) - self._sum(before)
        parts = {**reward.components, COMPONENT: reward.components.get(COMPONENT, 0.0) + extra}
        return replace(record, reward=Scored(value=reward.value + extra, components=parts))

    def _sum(self, names: frozenset[str]) -> float:
        return math.fsum(self.amounts[name] for name in names)
