"""The rules of `puzzles/household-v0`: things are kept, what is listed can be done, and the oracle finds a way."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.puzzles._household import (
    HELD,
    MILESTONES,
    HouseholdState,
    admissible_commands,
    apply_command,
    milestones,
)
from envgym.envs.puzzles._household_catalogue import STATES
from envgym.envs.puzzles._household_commands import HouseholdCommand
from envgym.envs.puzzles._household_layouts import draw_household, read_household
from envgym.envs.puzzles._household_oracle import plan_commands
from envgym.envs.puzzles.household import KINDS, Household
from envgym.seeds import generator
from tests.support.household import KITCHEN, fewest_commands, household_task, say_commands

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, distractors: int = 6) -> HouseholdState:
    """Draw a household of any kind of goal, with one or two rooms."""
    rng = np.random.default_rng(seed)
    kind, rooms = KINDS[rng.integers(len(KINDS))], int(rng.integers(1, 3))
    return read_household(draw_household(rng, kind, rooms, distractors, held_out=False).payload)


def walk(state: HouseholdState, seed: int, steps: int) -> HouseholdState:
    """Do random commands: a verb is drawn first, so that things are carried about and doors closed."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        commands = list(admissible_commands(state))
        verbs = sorted({command.verb for command in commands})
        verb = verbs[rng.integers(len(verbs))]
        chosen = [command for command in commands if command.verb == verb]
        after = apply_command(state, chosen[rng.integers(len(chosen))]).state
        if milestones(after) >> len(MILESTONES[after.layout.goal.kind]) - 1:
            return state  # one command before the goal
        state = after
    return state


def look_everywhere(state: HouseholdState) -> Counter[str]:
    """Count the things that an agent sees that goes everywhere, opens everything and looks at what it holds."""
    seen: Counter[str] = Counter()

    def do(verb: str, place: str = "") -> str:
        nonlocal state
        state, text, _ = apply_command(state, HouseholdCommand(verb, place=place))
        return text

    seen.update(re.findall(r"hold (\w+ \d+)", do("inventory")))
    for room, name in enumerate(state.layout.rooms):
        do("go", name.replace(" ", ""))
        for piece in state.layout.furniture:
            if piece.room == room:
                do("go", piece.name)
                do("open", piece.name)
                seen.update(re.findall(r"\w+ \d+", do("look").partition(" it: ")[2]))
    return seen


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 60))
def test_each_thing_is_at_exactly_one_place_whatever_is_done(seed: int, steps: int) -> None:
    start = drawn(seed)
    after = walk(start, seed, steps)
    assert look_everywhere(after) == Counter({thing.name: 1 for thing in start.layout.things})
    for place, piece in enumerate(after.layout.furniture):
        assert len(after.contents(place)) <= piece.kind.holds
    assert after.places.count(HELD) <= 1


def all_commands(state: HouseholdState) -> Iterator[HouseholdCommand]:
    """Yield every command about anything in the household, possible or not."""
    layout = state.layout
    places, things = list(layout.places_by_name), list(layout.things_by_name)
    yield from (HouseholdCommand(verb) for verb in ("look", "inventory"))
    yield from (HouseholdCommand("go", place=name) for name in (*layout.rooms_by_name, *places))
    yield from (HouseholdCommand(verb, place=name) for verb in ("open", "close") for name in places)
    yield from (HouseholdCommand(verb, name) for verb in ("turn on", "examine") for name in (*things, *places))
    for verb in ("take", "put", *STATES):
        yield from (HouseholdCommand(verb, thing, place) for thing in things for place in places)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(0, 40))
def test_the_listed_commands_are_those_that_can_be_done_and_others_change_nothing(seed: int, steps: int) -> None:
    state = walk(drawn(seed), seed, steps)
    listed = list(admissible_commands(state))
    assert len(listed) == len(set(listed))
    for command in all_commands(state):
        outcome = apply_command(state, command)
        assert outcome.is_done == (command in listed), command
        assert outcome.is_done or outcome.state is state
    assert set(listed) <= set(all_commands(state))


def test_the_list_that_is_shown_can_be_said() -> None:
    env = Household(admissible=True, rooms=2)
    for seed in range(5):
        text = str(env.reset(seed=seed).observation)
        for _ in range(6):
            shown = text.rpartition("You can: ")[2].rstrip(".").split(", ")
            for command in shown:
                assert "You can: " in (answer := str(env.fork().step(command).observation)) or "done" in answer
                assert not answer.startswith(("Say one", "There is no", "You see no", "You are not"))
            text = str(env.step(shown[(seed * 7) % len(shown)]).observation)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 60))
def test_the_oracle_reaches_the_goal_from_any_state_in_the_commands_that_it_planned(seed: int, steps: int) -> None:
    state = walk(drawn(seed, distractors=12), seed, steps)
    length = len(plan_commands(state))
    assert length > 0
    while not milestones(state) >> len(MILESTONES[state.layout.goal.kind]) - 1:
        commands = plan_commands(state)
        assert 0 < len(commands) <= length
        outcome = apply_command(state, commands[0])
        assert outcome.is_done, commands[0]
        state, length = outcome.state, length - 1
    assert length >= 0


def test_the_oracle_makes_room_where_the_target_is_full() -> None:
    # A stove holds three: put the pan down, bring one of the three to the counter, then bring the pan.
    fillers = ("fork stove 1", "knife stove 1", "spoon stove 1")
    env = Household()
    env.reset(options={"task": household_task("place pan stove", "pan counter 1", *fillers, rooms=(KITCHEN,))})
    env.step("go to counter 1")
    env.step("take pan 1 from counter 1")
    commands = [env.write(command) for command in plan_commands(env.state)]
    assert commands == [
        "put pan 1 on counter 1",
        "go to stove 1",
        "take fork 1 from stove 1",
        "go to counter 1",
        "put fork 1 on counter 1",
        "take pan 1 from counter 1",
        "go to stove 1",
        "put pan 1 on stove 1",
    ]
    for command in commands:
        assert env.oracle() == command
        result = env.step(command)
    assert result.terminated


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_needs_as_few_commands_as_a_search(kind: str) -> None:
    for index in range(3):
        rng = generator("test household", kind, index)
        state = read_household(draw_household(rng, kind, 1, 2, held_out=False).payload)
        assert len(plan_commands(state)) == fewest_commands(state)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(0, 30))
def test_subgoals_pay_at_most_1_and_just_1_where_the_goal_is_reached(seed: int, steps: int) -> None:
    env = Household(subgoals=True, rooms=1 + seed % 3, max_turns=None)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    paid, parts = 0.0, Counter[str]()
    for turn in range(steps + 100):
        commands = list(admissible_commands(env.state))
        action = env.oracle() if turn >= steps else env.write(commands[rng.integers(len(commands))])
        result = env.step(action)
        reward = result.info["envgym"].reward
        assert result.reward >= 0.0
        paid += result.reward
        parts.update(reward.components)
        if result.terminated:
            break
        assert paid < 1.0
    assert result.terminated
    assert paid == pytest.approx(1.0)
    names = MILESTONES[env.state.layout.goal.kind]
    assert parts == {name: pytest.approx(names.count(name) / len(names)) for name in names}


def test_a_loop_earns_nothing() -> None:
    task = household_task("place mug cabinet", "mug counter 1", rooms=(KITCHEN,))
    loop = ("take mug 1 from counter 1", "put mug 1 on counter 1")
    assert [paid for _, paid in say_commands(task, "go to counter 1", *loop * 5)] == pytest.approx(
        [1 / 3, 1 / 3, *[0.0] * 9]
    )


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_a_fork_that_goes_its_own_way_leaves_the_original_as_it_was(seed: int) -> None:
    env = Household(rooms=2)
    env.reset(seed=seed)
    env.step(env.oracle())
    before, twin = env.state, env.fork()
    while not twin.step(twin.oracle()).terminated:
        pass
    assert env.state is before
    assert env.step("look").observation == env.fork().step("look").observation
