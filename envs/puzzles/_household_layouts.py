"""Households drawn at random, the payloads that describe them, and rooms held out for the test."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np

from envgym.authoring import TaskDraft
from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.tasks import Split, split_of
from envgym.envs.puzzles._household import HouseholdState, describe
from envgym.envs.puzzles._household_catalogue import (
    FURNITURE,
    ROOMS,
    STATES,
    THINGS,
    Furniture,
    HouseholdGoal,
    HouseholdLayout,
    Thing,
)
from envgym.envs.puzzles._household_oracle import plan_commands

STATIONS = {verb: [name for name, kind in FURNITURE.items() if verb in kind.operations] for verb in STATES}
"""What is done to things -> the furniture with which it is done."""
LAMP_PLACES = THINGS["desklamp"].lies
MAX_WANTED = 2
"""Things of the goal's kind, at most; one more where two of them are to be brought."""

RoomPlan = Mapping[str, int]
"""Kind of furniture -> number of pieces."""


def is_held_out(room: str, plan: RoomPlan) -> bool:
    """Return whether a room with this furniture occurs in held-out households alone: a hash of it decides."""
    return split_of({"room": room, "furniture": dict(plan)}) is Split.TEST


def room_plans(room: str) -> Iterable[RoomPlan]:
    """Yield all the furniture that a kind of room can have."""
    ranges = [range(low, high + 1) for low, high in ROOMS[room].values()]
    return (_without_zeros(zip(ROOMS[room], counts, strict=True)) for counts in product(*ranges))


def draw_household(rng: np.random.Generator, kind: str, num_rooms: int, distractors: int, held_out: bool) -> TaskDraft:
    """Draw rooms, things and a goal of this kind; every room is held out, or none is."""
    while True:
        first, *others = _draw_rooms(rng, kind, num_rooms)
        rooms = [(room, _draw_plan(rng, room, held_out)) for room in (first, *sorted(others))]
        furniture = _number_furniture(rooms)
        goal = _draw_goal(rng, kind, {piece.kind.name for piece in furniture})
        if goal is None:
            continue
        places = _draw_things(rng, furniture, goal, distractors)
        if places is not None:
            break
    payload: JsonObject = {
        "goal": [goal.kind, goal.thing, goal.place],
        "rooms": [[room, dict(plan)] for room, plan in rooms],
        "things": [[thing, furniture[place].name] for thing, place in places],
    }
    state = read_household(payload)
    metadata: JsonObject = {"kind": kind, "commands": len(plan_commands(state))}
    return TaskDraft(prompt=opening(state), payload=payload, metadata=metadata)


def opening(state: HouseholdState) -> str:
    """Tell the task, and what the agent sees first."""
    return f"Task: {state.layout.goal.text}.\n{describe(state)}"


def read_household(payload: JsonObject) -> HouseholdState:
    """Return the first state of the household that a payload describes."""
    goal = HouseholdGoal(*map(str, _list(payload["goal"])))
    rooms = [(str(room), _plan(plan)) for room, plan in map(_list, _list(payload["rooms"]))]
    furniture = _number_furniture(rooms)
    places_by_name = {piece.name: place for place, piece in enumerate(furniture)}
    rows = [(str(kind), places_by_name[str(place)]) for kind, place in map(_list, _list(payload["things"]))]
    kinds = [kind for kind, _ in rows]
    things = tuple(
        Thing(name=f"{kind} {kinds[: number + 1].count(kind)}", kind=THINGS[kind]) for number, kind in enumerate(kinds)
    )
    layout = HouseholdLayout(
        goal=goal,
        rooms=tuple(room for room, _ in rooms),
        furniture=furniture,
        things=things,
        places_by_name=places_by_name,
        rooms_by_name={room.replace(" ", ""): number for number, (room, _) in enumerate(rooms)},
        things_by_name={thing.name: number for number, thing in enumerate(things)},
        goal_things=tuple(number for number, kind in enumerate(kinds) if kind == goal.thing),
        goal_mask=sum(1 << number for number, kind in enumerate(kinds) if kind == goal.thing),
        targets=tuple(place for place, piece in enumerate(furniture) if piece.kind.name == goal.place),
    )
    return HouseholdState(layout=layout, places=tuple(place for _, place in rows))


def _list(value: JsonValue) -> Sequence[JsonValue]:
    assert isinstance(value, Sequence), "made by draw_household"
    return value


def _plan(value: JsonValue) -> RoomPlan:
    assert isinstance(value, Mapping), "made by draw_household"
    return {kind: int(str(count)) for kind, count in value.items()}


def _without_zeros(counts: Iterable[tuple[str, int]]) -> RoomPlan:
    return {kind: count for kind, count in counts if count}


def _number_furniture(rooms: Sequence[tuple[str, RoomPlan]]) -> tuple[Furniture, ...]:
    kinds = [(kind, room) for room, (_, plan) in enumerate(rooms) for kind in sorted(plan) for _ in range(plan[kind])]
    names = [kind for kind, _ in kinds]
    return tuple(
        Furniture(name=f"{kind} {names[: number + 1].count(kind)}", kind=FURNITURE[kind], room=room)
        for number, (kind, room) in enumerate(kinds)
    )


def _draw_rooms(rng: np.random.Generator, kind: str, num_rooms: int) -> list[str]:
    needed = LAMP_PLACES if kind == "light" else STATIONS.get(kind, FURNITURE)
    able = [room for room, plan in ROOMS.items() if any(low and name in needed for name, (low, _) in plan.items())]
    rooms = [able[rng.integers(len(able))]]
    rest = rng.permutation([room for room in ROOMS if room not in rooms]).tolist()
    return [str(room) for room in rng.permutation([*rooms, *rest[: num_rooms - 1]])]


def _draw_plan(rng: np.random.Generator, room: str, held_out: bool) -> RoomPlan:
    while True:
        counts = ((kind, int(rng.integers(low, high + 1))) for kind, (low, high) in ROOMS[room].items())
        plan = _without_zeros(counts)
        if is_held_out(room, plan) is held_out:
            return plan


def _draw_goal(rng: np.random.Generator, kind: str, present: set[str]) -> HouseholdGoal | None:
    goals: dict[str, list[str]] = {}
    excluded = set(STATIONS.get(kind, ())) | {
        name for name, piece in FURNITURE.items() if kind == "two" and piece.holds < 2
    }
    for name, thing in THINGS.items():
        if thing.lamp or (kind in (*STATES, "light") and kind not in thing.operations):
            continue
        lies = [place for place in thing.lies if place in present]
        targets = ["desklamp"] if kind == "light" else [place for place in lies if place not in excluded]
        if targets and len(lies) > 1:
            goals[name] = targets
    if not goals:
        return None
    thing_kind = list(goals)[rng.integers(len(goals))]
    return HouseholdGoal(kind, thing_kind, goals[thing_kind][rng.integers(len(goals[thing_kind]))])


def _draw_things(
    rng: np.random.Generator, furniture: Sequence[Furniture], goal: HouseholdGoal, distractors: int
) -> list[tuple[str, int]] | None:
    """Draw kinds of things with their places, sorted; None where there is no room for all."""
    num_wanted = int(rng.integers(1, MAX_WANTED + 1)) + (goal.kind == "two")
    kinds = [goal.thing] * num_wanted
    if goal.kind == "light" or (rng.integers(2) and any(piece.kind.name in LAMP_PLACES for piece in furniture)):
        kinds.append("desklamp")
    others = [name for name, thing in THINGS.items() if name != goal.thing and not thing.lamp]
    taboo = (goal.thing, goal.place)
    # A target keeps room for what is to be brought there.
    room = [piece.kind.holds - 2 * (piece.kind.name == goal.place) for piece in furniture]
    placed: list[tuple[str, int]] = []
    while len(placed) < num_wanted + distractors + (goal.kind == "light"):
        is_other = len(placed) >= len(kinds)
        name = others[rng.integers(len(others))] if is_other else kinds[len(placed)]
        free = [
            place
            for place, piece in enumerate(furniture)
            if room[place] > 0 and piece.kind.name in THINGS[name].lies and (name, piece.kind.name) != taboo
        ]
        if free:
            place = free[rng.integers(len(free))]
            room[place] -= 1
            placed.append((name, place))
        elif is_other and len(others) > 1:
            others.remove(name)  # its places are full, and stay so
        else:
            return None
    return sorted(placed)
