"""`puzzles/household-v0`: things are kept, what is listed can be done and nothing else, and the oracle finds a way."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._household import (
    admissible_commands,
)
from envgym.envs.puzzles._household_catalogue import FURNITURE, ROOMS, STATES, THINGS
from envgym.envs.puzzles._household_commands import read_command
from envgym.envs.puzzles._household_layouts import draw_household, is_held_out, read_household, room_plans
from envgym.envs.puzzles._household_oracle import plan_commands
from envgym.envs.puzzles.household import HINT, KINDS, Household
from tests.envs.episodes import conformance
from tests.support.household import KITCHEN, STUDY, household_task, say_commands

IDLE = ("look", "inventory", "examine", "close")


TestHousehold = conformance("puzzles/household-v0", num_tasks=8)
TestHouseholdOfThreeRoomsPaidBySubgoals = conformance(
    "puzzles/household-v0", num_tasks=3, rooms=3, subgoals=True, admissible=True
)


# ---- each kind of task by hand ------------------------------------------------------------------------------------


def test_place_by_hand() -> None:
    # Three milestones: found when the drawer is opened, taken, placed.
    task = household_task("place pen desk", "pen drawer 2", "apple counter 1", rooms=(STUDY, KITCHEN))
    env = Household()
    assert env.reset(options={"task": task}).observation == (
        "Task: put a pen on a desk.\nYou are in the study. There you see bookcase 1, desk 1, drawer 1. "
        "Doors lead to the kitchen."
    )
    task = household_task("place pen desk", "pen drawer 1", "apple desk 1", rooms=(STUDY,))
    third = pytest.approx(1 / 3)
    assert say_commands(
        task,
        "go to drawer 1",
        "open drawer 1",
        "take pen 1 from drawer 1",
        "inventory",
        "close drawer 1",
        "go to desk 1",
        "put pen 1 on desk 1",
    ) == [
        ("You are at drawer 1. It is closed.", 0.0),
        ("You open drawer 1. In it: pen 1.", third),
        ("You take pen 1 from drawer 1.", third),
        ("You hold pen 1.", 0.0),
        ("You close drawer 1.", 0.0),
        ("You are at desk 1. On it: apple 1.", 0.0),
        ("You put pen 1 on desk 1. The task is done.", third),
    ]


def test_light_by_hand_takes_a_lamp_that_is_on_where_the_thing_is_held() -> None:
    task = household_task("light letter desklamp", "letter drawer 1", "desklamp desk 1", rooms=(STUDY,))
    answers = say_commands(
        task,
        "go to desk 1",
        "examine desklamp 1",
        "turn on desklamp 1",
        "examine desklamp 1",
        "go to drawer 1",
        "open drawer 1",
        "take letter 1 from drawer 1",
        "go to desk 1",
    )
    assert [text for text, _ in answers][1:4] == ["Desklamp 1 is off.", "You turn on desklamp 1.", "Desklamp 1 is on."]
    assert answers[-1][0] == "You are at desk 1. On it: desklamp 1. The task is done."
    assert answers[-1][1] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "verb, station, state",
    [("clean", "sinkbasin 1", "clean"), ("heat", "microwave 1", "hot"), ("cool", "fridge 1", "cold")],
)
def test_clean_heat_and_cool_by_hand(verb: str, station: str, state: str) -> None:
    task = household_task(f"{verb} mug cabinet", "mug counter 1", rooms=(KITCHEN,))
    answers = say_commands(
        task,
        "go to counter 1",
        "take mug 1 from counter 1",
        "examine mug 1",
        "go to cabinet 1",
        "open cabinet 1",
        "put mug 1 in cabinet 1",  # without it: no reward
        "take mug 1 from cabinet 1",
        f"go to {station}",
        f"{verb} mug 1 with {station}",
        "examine mug 1",
        "go to cabinet 1",
        "put mug 1 in cabinet 1",
    )
    assert [paid for _, paid in answers] == [0.25, 0.25, 0, 0, 0, 0, 0, 0, 0.25, 0, 0, 0.25]
    assert answers[2][0] == "Mug 1 is as it was."
    assert answers[8][0] == f"You {verb} mug 1 with {station}. It is {state} now."
    assert answers[9][0] == f"Mug 1 is {state}."
    assert answers[11][0] == "You put mug 1 in cabinet 1. The task is done."


def test_two_by_hand_must_be_in_the_same_place() -> None:
    desks: JsonValue = ["study", {"desk": 2, "drawer": 1}]
    task = household_task("two pen desk", "pen drawer 1", "pen drawer 1", rooms=(desks,))
    env = Household()
    assert env.reset(options={"task": task}).observation.startswith("Task: put two pens on the same desk.\n")
    answers = say_commands(
        task,
        "go to drawer 1",
        "open drawer 1",
        "take pen 1 from drawer 1",
        "go to desk 1",
        "put pen 1 on desk 1",
        "go to drawer 1",
        "take pen 2 from drawer 1",
        "go to desk 2",
        "put pen 2 on desk 2",  # the other desk
        "take pen 2 from desk 2",
        "go to desk 1",
        "put pen 2 on desk 1",
    )
    assert [paid for _, paid in answers] == [0, 0.25, 0.25, 0, 0.25, 0, 0, 0, 0, 0, 0, 0.25]


def test_heating_what_is_cold_makes_it_hot_and_no_longer_cold() -> None:
    task = household_task("cool mug cabinet", "mug counter 1", rooms=(KITCHEN,))
    commands = ("go to counter 1", "take mug 1 from counter 1", "go to fridge 1", "cool mug 1 with fridge 1")
    answers = say_commands(
        task,
        *commands,
        "go to microwave 1",
        "heat mug 1 with microwave 1",
        "inventory",
        "go to cabinet 1",
        "open cabinet 1",
        "put mug 1 in cabinet 1",
    )
    assert answers[6][0] == "You hold mug 1, which is hot."
    assert answers[-1] == ("You put mug 1 in cabinet 1.", 0.0)


def test_rooms_are_entered_through_doors_and_furniture_is_numbered_over_all() -> None:
    task = household_task("place pen desk", "pen drawer 2")
    answers = say_commands(task, "go to drawer 2", "go to study", "go to study", "go to drawer 1", "go to drawer 2")
    assert [text for text, _ in answers] == [
        "There is no drawer 2 in the kitchen.",
        "You are in the study. There you see bookcase 1, desk 1, drawer 2. Doors lead to the kitchen.",
        "You are in the study already.",
        "There is no drawer 1 in the study.",
        "You are at drawer 2. It is closed.",
    ]


# ---- commands that cannot be done ---------------------------------------------------------------------------------

MUGS = ("mug counter 1", "plate counter 1", "desklamp counter 1", "spoon stove 1", "fork stove 1", "knife stove 1")


@pytest.mark.parametrize(
    "commands, text",
    [
        ("fly", HINT),
        ("open the fridge", "Say which fridge, such as fridge 1."),
        ("go to moon 1", "There is no moon 1 in the kitchen."),
        ("go to kitchen", "You are in the kitchen already."),
        ("go to counter 1; go to counter 1", "You are at counter 1 already."),
        ("open drawer 1", "You are not at drawer 1; go to it first."),
        ("go to counter 1; open counter 1", "Counter 1 has nothing to open."),
        ("go to counter 1; close counter 1", "Counter 1 has nothing to close."),
        ("go to drawer 1; close drawer 1", "Drawer 1 is closed already."),
        ("go to drawer 1; open drawer 1; open drawer 1", "Drawer 1 is open already."),
        ("take mug 1 from counter 1", "You are not at counter 1; go to it first."),
        ("go to cabinet 1; take mug 1 from cabinet 1", "Cabinet 1 is closed; open it first."),
        ("go to counter 1; take cup 1 from counter 1", "There is no cup 1 on counter 1."),
        ("go to counter 1; take desklamp 1 from counter 1", "Desklamp 1 stays where it is."),
        (
            "go to counter 1; take mug 1 from counter 1; take plate 1 from counter 1",
            "You hold mug 1, and can carry one thing at a time; put it somewhere first.",
        ),
        ("put mug 1 on counter 1", "You do not hold mug 1; take it first."),
        (
            "go to counter 1; take mug 1 from counter 1; go to cabinet 1; put mug 1 in cabinet 1",
            "Cabinet 1 is closed; open it first.",
        ),
        (
            "go to counter 1; take plate 1 from counter 1; go to drawer 1; open drawer 1; put plate 1 in drawer 1",
            "Plate 1 is too large for drawer 1.",
        ),
        (
            "go to counter 1; take mug 1 from counter 1; go to stove 1; put mug 1 on stove 1",
            "Stove 1 is full; take something out first.",
        ),
        (
            "go to counter 1; take mug 1 from counter 1; heat mug 1 with counter 1",
            "You cannot heat anything with counter 1.",
        ),
        (
            "go to stove 1; take fork 1 from stove 1; go to microwave 1; heat fork 1 with microwave 1",
            "You cannot heat fork 1.",
        ),
        ("turn on desklamp 1", "You see no desklamp 1 where you are."),
        ("go to counter 1; turn on mug 1", "Mug 1 cannot be turned on."),
        ("go to counter 1; turn on desklamp 1; turn on desklamp 1", "Desklamp 1 is on already."),
        ("examine mug 1", "You see no mug 1 where you are."),
    ],
)
def test_what_cannot_be_done_is_answered_in_one_sentence_and_changes_nothing(commands: str, text: str) -> None:
    *before, last = commands.split("; ")
    env = Household()
    env.reset(options={"task": household_task("place mug cabinet", *MUGS, rooms=(KITCHEN,))})
    for command in before:
        env.step(command)
    state = env.state
    result = env.step(last)
    assert (result.observation, result.reward, env.state) == (text, 0.0, state)


@pytest.mark.parametrize(
    "message, command",
    [
        ("GO to the Sink Basin 2.", ("go", "", "sinkbasin 2")),
        ("walk to living room", ("go", "", "livingroom")),
        ("I need a mug.\nThought: it is there.\n> take mug1 from counter 1", ("take", "mug 1", "counter 1")),
        ("Action: pick up mug 1 out of sinkbasin1", ("take", "mug 1", "sinkbasin 1")),
        ("<answer>move mug 1 to shelf 1</answer>", ("put", "mug 1", "shelf 1")),
        ("put mug 1 in/on shelf 1", ("put", "mug 1", "shelf 1")),
        ("place the mug 1 onto shelf 1", ("put", "mug 1", "shelf 1")),
        ("heat mug 1 in microwave 1", ("heat", "mug 1", "microwave 1")),
        ("use desklamp 1", ("turn on", "desklamp 1", "")),
        ("look at mug 1", ("examine", "mug 1", "")),
        ("look around", ("look", "", "")),
        ("i", ("inventory", "", "")),
    ],
)
def test_commands_are_read_in_several_spellings(message: str, command: tuple[str, str, str]) -> None:
    assert read_command(message) == command


@pytest.mark.parametrize("message", ["", "mug 1", "take mug 1", "go to desk 1, open drawer 1", "go to " + "x" * 90])
def test_what_is_no_command_is_none(message: str) -> None:
    assert read_command(message) is None


# ---- tasks --------------------------------------------------------------------------------------------------------


def rooms_of(task: Task) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    rooms = task.payload["rooms"]
    assert isinstance(rooms, list | tuple)
    for row in rooms:
        assert isinstance(row, list | tuple)
        assert isinstance(row[1], Mapping)
        yield str(row[0]), row[1]


def test_no_room_of_a_test_task_occurs_in_training() -> None:
    env = Household(rooms=3)
    rooms = {
        split: {
            (name, tuple(sorted(plan.items())))
            for index in range(60)
            for name, plan in rooms_of(env.tasks.task(split, index))
        }
        for split in Split
    }
    assert len(rooms[Split.TRAIN]) > 100
    assert len(rooms[Split.TEST]) > 80
    assert not rooms[Split.TRAIN] & rooms[Split.TEST]
    seen = Household(rooms=3, test_layouts="seen").tasks
    assert not any(is_held_out(name, plan) for i in range(20) for name, plan in rooms_of(seen.task(Split.TEST, i)))  # type: ignore[arg-type]  # counts
    assert seen.task(Split.TRAIN, 3) == env.tasks.task(Split.TRAIN, 3)


def test_a_fifth_of_all_rooms_is_held_out() -> None:
    # The number of plans of a kind is the product of what its furniture allows, such as 2 * 5 * 3 * 4 * 3 * 2 * 2.
    counts = {room: [is_held_out(room, plan) for plan in room_plans(room)] for room in ROOMS}
    assert {room: len(plans) for room, plans in counts.items()} == {
        "bathroom": 3072,
        "bedroom": 3840,
        "kitchen": 1440,
        "living room": 5120,
        "study": 3240,
    }
    assert all(0.15 < sum(plans) / len(plans) < 0.25 for plans in counts.values())


def test_a_room_too_small_for_its_things_is_drawn_again() -> None:
    for seed in range(150):
        draft = draw_household(np.random.default_rng(seed), KINDS[seed % len(KINDS)], 1, 12, held_out=seed % 2 == 0)
        things = draft.payload["things"]
        assert isinstance(things, list)
        assert 13 <= len(things) <= 15  # 12 others, 1 to 3 wanted, and a lamp where it is needed


def test_the_catalogue_is_consistent() -> None:
    for thing in THINGS.values():
        assert set(thing.lies) <= set(FURNITURE)
        assert all(thing.size <= FURNITURE[place].largest for place in thing.lies)
        assert set(thing.operations) <= {*STATES, "light"}
        assert list(thing.lies) == sorted(thing.lies)
    assert all(set(room) <= set(FURNITURE) for room in ROOMS.values())
    assert {name for room in ROOMS.values() for name in room} == set(FURNITURE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rooms", [1, 3])
def test_the_oracle_solves_every_kind_within_the_turns(kind: str, rooms: int) -> None:
    env = Household(kinds=kind, rooms=rooms)
    for split in Split:
        for index in range(10):
            task = env.tasks.task(split, index)
            episode = play(env, oracle_of(env), seed=0, task=task)
            assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED)
            assert len(episode.turns) == len(plan_commands(read_household(task.payload))) == task.metadata["commands"]


def test_random_commands_earn_at_most_the_declared_chance() -> None:
    env, rng = Household(distractors=0), np.random.default_rng(0)
    solved = 0
    for index in range(60):
        env.reset(options={"split": "train", "index": index})
        is_over = False
        while not is_over:
            commands = [command for command in admissible_commands(env.state) if command.verb not in IDLE]
            verbs = sorted({command.verb for command in commands})
            verb = verbs[rng.integers(len(verbs))]
            chosen = [command for command in commands if command.verb == verb]
            result = env.step(env.write(chosen[rng.integers(len(chosen))]))
            is_over = result.terminated or result.truncated
        solved += result.terminated
    assert solved / 60 <= env.chance_score + 0.13  # three standard errors


def test_chance_grows_with_the_turns_and_falls_with_the_rooms() -> None:
    assert Household(max_turns=100).chance_score == pytest.approx(2 * Household(max_turns=50).chance_score)
    assert Household(max_turns=10).chance_score == Household(max_turns=50).chance_score
    assert Household(max_turns=None).chance_score == 1.0
    assert Household(rooms=3).chance_score < Household().chance_score < Household(subgoals=True).chance_score < 1.0
