"""Counted budgets by hand: shares, what is spent, and who may start a turn while others are under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from envgym.agents.search.budget import BudgetTracker, SearchBudget, largest_turn_cost
from envgym.core.turns import Cost
from tests.support.parrots import char_agent

TEN = SearchBudget(env_steps=10)
STEP = Cost(env_steps=1)


def tracker(budget: SearchBudget = TEN, *, most: int = 1, ordered: bool = True, branches: int = 2) -> BudgetTracker:
    """Return a tracker of branches that begin side by side; a turn takes at most `most` steps."""
    found = BudgetTracker(budget, largest_turn=Cost(env_steps=most), ordered=ordered)
    for number in range(branches):
        found.add_branch(number)
    return found


def asked(found: BudgetTracker, number: int) -> bool | None:
    """Return what a branch that asks for its next turn is told; None: it has to wait."""

    @asynccontextmanager
    async def waiting() -> AsyncIterator[None]:
        yield

    async def ask() -> bool | None:
        asking = asyncio.create_task(found.admit(number, waiting=waiting))
        await asyncio.sleep(0)
        if asking.done():
            return asking.result()
        asking.cancel()
        return None

    return asyncio.run(ask())


def spend(found: BudgetTracker, number: int, steps: int) -> None:
    found.add_turn(number, Cost(env_steps=steps))


def test_shares_are_rounded_down_but_to_at_least_one() -> None:
    budget = SearchBudget(tokens_generated=10, env_steps=2, seconds=3.0)
    assert budget.share(1) == budget
    assert budget.share(3) == SearchBudget(tokens_generated=3, env_steps=1, seconds=1.0)
    assert SearchBudget().share(4) == SearchBudget()


def test_a_budget_is_spent_where_one_limit_is_reached() -> None:
    budget = SearchBudget(tokens_generated=10, tool_calls=2)
    assert budget.limits == {"tokens_generated": 10, "tool_calls": 2}
    assert not budget.is_spent(Cost(tokens_generated=9, tool_calls=1, env_steps=99))
    assert budget.is_spent(Cost(tokens_generated=10))
    assert budget.is_spent(Cost(tool_calls=3))
    assert (budget.is_limited, SearchBudget().is_limited) == (True, False)
    assert not SearchBudget().is_spent(Cost(env_steps=10**9))


def test_a_turn_costs_at_most_what_its_agent_may_take() -> None:
    agent = char_agent(max_turn_tokens=7, max_context_tokens=90).settings
    assert largest_turn_cost(agent) == Cost(tokens_generated=7, tokens_prefilled=90, tool_calls=7, env_steps=1)


def test_what_branches_spent_adds_up_and_a_replay_counts_with_the_first_turn() -> None:
    found = BudgetTracker(SearchBudget(env_steps=20, tool_calls=4), largest_turn=STEP)
    found.add_branch(0)
    found.add_branch(1, replay=Cost(env_steps=3, tool_calls=1))
    assert found.spent == Cost()
    spend(found, 0, 2)
    spend(found, 0, 4)
    assert (found.spent, found.used) == (Cost(env_steps=6), (0, 6))
    spend(found, 1, 1)
    assert found.spent == Cost(env_steps=2 + 4 + 3 + 1, tool_calls=1)
    spend(found, 1, 1)  # the replay was paid for
    assert (found.spent, found.used) == (Cost(env_steps=11, tool_calls=1), (1, 11))
    assert found.share_used == 11 / 20  # above 1 / 4
    found.add_turn(0, Cost(tool_calls=2))
    assert found.share_used == 3 / 4
    assert not found.is_exhausted
    found.add_turn(0, Cost(tool_calls=1))
    assert found.is_exhausted


def test_branches_that_begin_after_all_others_ended_continue_the_sum() -> None:
    found = tracker(branches=1)
    spend(found, 0, 6)
    found.end_branch(0)
    found.add_branch(1, replay=Cost(env_steps=2))
    assert found.spent == Cost(env_steps=6)
    assert asked(found, 1) is True
    spend(found, 1, 1)
    assert found.spent == Cost(env_steps=9)
    found.end_branch(1)
    found.add_branch(2)
    assert found.spent == Cost(env_steps=9)
    spend(found, 2, 1)
    assert (found.is_exhausted, asked(found, 2)) == (True, False)


def test_nothing_limited_uses_nothing_and_lets_every_turn_begin() -> None:
    found = tracker(SearchBudget(), most=100)
    spend(found, 0, 10**6)
    assert (found.used, found.share_used, found.is_exhausted) == ((), 0.0, False)
    assert asked(found, 1) is True


def test_turns_are_admitted_turn_by_turn_and_branch_by_branch_within_a_turn() -> None:
    found = tracker(most=4)  # of 10 steps
    assert asked(found, 0) is True
    assert asked(found, 1) is True  # the first turn of branch 0 leaves at least 6
    spend(found, 0, 4)
    # The second turn of 0 comes after the first of 1, which may take 4 more: 8 of 10 at most.
    assert asked(found, 0) is True
    spend(found, 1, 4)
    # The second turn of 1 comes after that of 0, which may take what is left: not known yet.
    assert asked(found, 1) is None
    spend(found, 0, 1)
    assert asked(found, 1) is True  # 4 + 4 + 1
    spend(found, 1, 1)
    assert asked(found, 0) is False  # 10 are spent


def test_a_branch_that_has_ended_is_waited_for_no_more() -> None:
    found = tracker(most=9)
    spend(found, 0, 4)
    spend(found, 1, 4)
    assert asked(found, 1) is None  # the second turn of 0 may take 9
    found.end_branch(0)
    assert asked(found, 1) is True


def test_a_first_turn_under_way_may_take_its_replay_too() -> None:
    found = BudgetTracker(TEN, largest_turn=Cost(env_steps=2))
    found.add_branch(0, replay=Cost(env_steps=7))
    found.add_branch(1)
    assert asked(found, 1) is True  # 7 + 2 of branch 0 leave one
    more = BudgetTracker(TEN, largest_turn=Cost(env_steps=2))
    more.add_branch(0, replay=Cost(env_steps=8))
    more.add_branch(1)
    assert asked(more, 1) is None
    spend(more, 0, 1)
    assert asked(more, 1) is True  # 8 + 1
    spend(more, 1, 0)
    # The second turn of 0 has no replay: 9 + 0 are spent, and it comes first.
    assert asked(more, 0) is True


def test_several_turns_that_come_before_may_each_take_the_most() -> None:
    found = tracker(most=3)
    for _ in range(3):
        spend(found, 1, 0)
    # Before the fourth turn of 1 come four of 0, of at most 3 steps each: 12 of 10.
    assert asked(found, 1) is None
    spend(found, 0, 0)
    assert asked(found, 1) is True  # three are left: 9


def test_unordered_turns_wait_for_what_is_under_way_alone() -> None:
    found = tracker(most=5, ordered=False, branches=3)
    spend(found, 0, 2)
    assert asked(found, 2) is True  # nothing is under way
    assert asked(found, 1) is True  # 2 spent, and 5 under way
    assert asked(found, 0) is None  # 2 spent, and 10 under way
    spend(found, 2, 1)
    assert asked(found, 0) is True  # 3 spent, and 5 under way
    spend(found, 1, 5)
    spend(found, 0, 2)
    assert asked(found, 0) is False


def test_who_waits_is_woken_by_a_turn_that_ends_and_by_a_branch_that_ends() -> None:
    @asynccontextmanager
    async def noted() -> AsyncIterator[None]:
        events.append("waits")
        yield
        events.append("goes on")

    async def wait(end_of_0: str) -> bool:
        found = tracker(most=9)
        spend(found, 0, 4)
        spend(found, 1, 4)
        asking = asyncio.create_task(found.admit(1, waiting=noted))
        await asyncio.sleep(0)
        assert events == ["waits"]
        if end_of_0 == "turn":
            spend(found, 0, 6)
        else:
            found.end_branch(0)
        return await asking

    for end, is_admitted in [("turn", False), ("branch", True)]:
        events: list[str] = []
        assert asyncio.run(wait(end)) is is_admitted
        assert events == ["waits", "goes on"]


@pytest.mark.parametrize("field", ["tokens_generated", "tokens_prefilled", "tool_calls", "env_steps", "seconds"])
def test_a_limit_of_nothing_is_refused(field: str) -> None:
    assert SearchBudget.model_validate({field: 1}).limits == {field: 1}
    with pytest.raises(ValueError, match=f"{field}"):
        SearchBudget.model_validate({field: 0})
