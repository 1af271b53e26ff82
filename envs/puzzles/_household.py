"""The rules of a household: what stands and lies where, what a command does, and why one cannot be done."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from envgym.envs.puzzles._household_catalogue import STATES, HouseholdLayout
from envgym.envs.puzzles._household_commands import HouseholdCommand

HELD = -1
"""Where a thing is that the agent carries."""
NOWHERE = -2
"""Where the agent is that is at no piece of furniture."""
MILESTONES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "place": ("found", "taken", "placed"),
        "light": ("found", "taken", "lit"),
        **dict.fromkeys(STATES, ("found", "taken", "processed", "placed")),
        "two": ("found", "taken", "placed", "placed"),
    }
)
"""Kind of goal -> what must have happened, each worth the same; the last one is the goal."""


class HouseholdState(NamedTuple):
    """How things stand; sets of things and of furniture are bit masks."""

    layout: HouseholdLayout
    places: tuple[int, ...]
    """The furniture at which each thing is, or `HELD`."""
    room: int = 0
    at: int = NOWHERE
    opened: int = 0
    """Furniture."""
    lit: int = 0
    """Lamps that are on."""
    cleaned: int = 0
    heated: int = 0
    cooled: int = 0
    seen: int = 0
    """Things that the agent has seen, kept until it has found what it needs."""
    reached: int = 0
    """The milestones that have been reached."""

    @property
    def held(self) -> int | None:
        return self.places.index(HELD) if HELD in self.places else None

    def is_closed(self, place: int) -> bool:
        """Return whether a piece of furniture hides what is inside."""
        return self.layout.furniture[place].kind.opens and not self.opened >> place & 1

    def contents(self, place: int) -> list[int]:
        if place not in self.places:
            return []
        return [thing for thing, where in enumerate(self.places) if where == place]

    def treated(self, verb: str) -> int:
        return self.cleaned if verb == "clean" else self.heated if verb == "heat" else self.cooled


class CommandOutcome(NamedTuple):
    state: HouseholdState
    text: str
    is_done: bool
    """False: it could not be done, the state is the same, and the text says why."""


def apply_command(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    """Do a command, or say why it cannot be done."""
    for name in command[1:]:
        if name and not name[-1].isdigit() and name not in state.layout.rooms_by_name:
            return CommandOutcome(state, f"Say which {name}, such as {name} 1.", False)
    return _RULES[command.verb](state, command)


def admissible_commands(state: HouseholdState) -> Iterator[HouseholdCommand]:
    """Yield the commands that can be done."""
    return (command for command in _near_commands(state) if apply_command(state, command).is_done)


def milestones(state: HouseholdState) -> int:
    """Return which of the goal's milestones hold in a state."""
    layout = state.layout
    goal, things = layout.goal.kind, layout.goal_things
    where = [state.places[thing] for thing in things]
    is_held = HELD in where
    marks = bool(state.seen & layout.goal_mask) | is_held << 1
    if goal == "light":
        return marks | (is_held and state.lit != 0 and _is_lit(state)) << 2
    if goal in STATES:
        treated = state.treated(goal) & layout.goal_mask
        if not treated:
            return marks
        return marks | 4 | any(treated >> thing & 1 and state.places[thing] in layout.targets for thing in things) << 3
    there = [place for place in where if place in layout.targets]
    return marks | bool(there) << 2 | (goal == "two" and len(set(there)) < len(there)) << 3


def _is_lit(state: HouseholdState) -> bool:
    things = state.layout.things
    return any(
        state.lit >> lamp & 1 and things[lamp].kind.name == state.layout.goal.place for lamp in state.contents(state.at)
    )


def describe(state: HouseholdState) -> str:
    """Tell where the agent is, and what it sees there."""
    layout = state.layout
    if state.at >= 0:
        return f"You are at {layout.furniture[state.at].name}. {_shown(state, state.at)}"
    names = ", ".join(piece.name for piece in layout.furniture if piece.room == state.room)
    text = f"You are in the {layout.rooms[state.room]}. There you see {names}."
    others = [name for room, name in enumerate(layout.rooms) if room != state.room]
    return f"{text} Doors lead to the {' and to the '.join(others)}." if others else text


def _shown(state: HouseholdState, place: int) -> str:
    if state.is_closed(place):
        return "It is closed."
    things = state.layout.things
    names = ", ".join([things[thing].name for thing in state.contents(place)])
    return f"{state.layout.furniture[place].kind.relation.capitalize()} it: {names or 'nothing'}."


def _seen_at(state: HouseholdState, place: int) -> int:
    """Return the things that the agent has seen once it has looked at what lies at a piece of furniture."""
    seen = state.seen
    if state.reached & 1:
        return seen
    for thing in state.contents(place):
        seen |= 1 << thing
    return seen


def _go(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    layout, name = state.layout, command.place
    place = layout.places_by_name.get(name)
    if place is not None and layout.furniture[place].room == state.room:
        if place == state.at:
            return CommandOutcome(state, f"You are at {name} already.", False)
        seen = state.seen if state.is_closed(place) else _seen_at(state, place)
        after = state._replace(at=place, seen=seen)
        return CommandOutcome(after, describe(after), True)
    room = layout.rooms_by_name.get(name)
    if room is None:
        return CommandOutcome(state, _absent(state, name), False)
    if room == state.room:
        return CommandOutcome(state, f"You are in the {layout.rooms[room]} already.", False)
    after = state._replace(room=room, at=NOWHERE)
    return CommandOutcome(after, describe(after), True)


def _absent(state: HouseholdState, name: str) -> str:
    return f"There is no {name} in the {state.layout.rooms[state.room]}."


def _why_not_at(state: HouseholdState, name: str) -> str | None:
    place = state.layout.places_by_name.get(name)
    if place is None or state.layout.furniture[place].room != state.room:
        return _absent(state, name)
    return None if place == state.at else f"You are not at {name}; go to it first."


def _open(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    name = command.place
    if why := _why_not_at(state, name):
        return CommandOutcome(state, why, False)
    if not state.layout.furniture[state.at].kind.opens:
        return CommandOutcome(state, f"{name.capitalize()} has nothing to open.", False)
    if not state.is_closed(state.at):
        return CommandOutcome(state, f"{name.capitalize()} is open already.", False)
    after = state._replace(opened=state.opened | 1 << state.at, seen=_seen_at(state, state.at))
    return CommandOutcome(after, f"You open {name}. {_shown(after, after.at)}", True)


def _close(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    name = command.place
    if why := _why_not_at(state, name):
        return CommandOutcome(state, why, False)
    if not state.layout.furniture[state.at].kind.opens:
        return CommandOutcome(state, f"{name.capitalize()} has nothing to close.", False)
    if state.is_closed(state.at):
        return CommandOutcome(state, f"{name.capitalize()} is closed already.", False)
    return CommandOutcome(state._replace(opened=state.opened ^ 1 << state.at), f"You close {name}.", True)


def _take(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    layout, (_, name, place) = state.layout, command
    why = _why_not_at(state, place)
    if why is None and state.is_closed(state.at):
        why = f"{place.capitalize()} is closed; open it first."
    if why is not None:
        return CommandOutcome(state, why, False)
    thing, carried = layout.things_by_name.get(name), state.held
    relation = layout.furniture[state.at].kind.relation
    if thing is None or state.places[thing] != state.at:
        return CommandOutcome(state, f"There is no {name} {relation} {place}.", False)
    if layout.things[thing].kind.lamp:
        return CommandOutcome(state, f"{name.capitalize()} stays where it is.", False)
    if carried is not None:
        text = f"You hold {layout.things[carried].name}, and can carry one thing at a time; put it somewhere first."
        return CommandOutcome(state, text, False)
    return CommandOutcome(_moved(state, thing, HELD), f"You take {name} from {place}.", True)


def _moved(state: HouseholdState, thing: int, place: int) -> HouseholdState:
    places = state.places
    return state._replace(places=(*places[:thing], place, *places[thing + 1 :]))


def _why_not_held(state: HouseholdState, name: str) -> str | None:
    thing = state.layout.things_by_name.get(name)
    return None if thing is not None and state.places[thing] == HELD else f"You do not hold {name}; take it first."


def _put(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    layout, (_, name, place) = state.layout, command
    if why := _why_not_held(state, name) or _why_not_at(state, place):
        return CommandOutcome(state, why, False)
    thing, kind = layout.things_by_name[name], layout.furniture[state.at].kind
    if state.is_closed(state.at):
        return CommandOutcome(state, f"{place.capitalize()} is closed; open it first.", False)
    if layout.things[thing].kind.size > kind.largest:
        return CommandOutcome(state, f"{name.capitalize()} is too large for {place}.", False)
    if len(state.contents(state.at)) >= kind.holds:
        return CommandOutcome(state, f"{place.capitalize()} is full; take something out first.", False)
    return CommandOutcome(_moved(state, thing, state.at), f"You put {name} {kind.relation} {place}.", True)


def _treat(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    layout, (verb, name, place) = state.layout, command
    if why := _why_not_held(state, name) or _why_not_at(state, place):
        return CommandOutcome(state, why, False)
    thing = layout.things_by_name[name]
    if verb not in layout.furniture[state.at].kind.operations:
        return CommandOutcome(state, f"You cannot {verb} anything with {place}.", False)
    if verb not in layout.things[thing].kind.operations:
        return CommandOutcome(state, f"You cannot {verb} {name}.", False)
    bit = 1 << thing
    if verb == "clean":
        after = state._replace(cleaned=state.cleaned | bit)
    elif verb == "heat":
        after = state._replace(heated=state.heated | bit, cooled=state.cooled & ~bit)
    else:
        after = state._replace(cooled=state.cooled | bit, heated=state.heated & ~bit)
    return CommandOutcome(after, f"You {verb} {name} with {place}. It is {STATES[verb]} now.", True)


def _turn_on(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    thing = _visible(state, command.thing)
    if thing is None:
        return CommandOutcome(state, f"You see no {command.thing} where you are.", False)
    if not state.layout.things[thing].kind.lamp:
        return CommandOutcome(state, f"{command.thing.capitalize()} cannot be turned on.", False)
    if state.lit >> thing & 1:
        return CommandOutcome(state, f"{command.thing.capitalize()} is on already.", False)
    return CommandOutcome(state._replace(lit=state.lit | 1 << thing), f"You turn on {command.thing}.", True)


def _visible(state: HouseholdState, name: str) -> int | None:
    thing = state.layout.things_by_name.get(name)
    if thing is None:
        return None
    place = state.places[thing]
    return thing if place == HELD or (place == state.at and not state.is_closed(place)) else None


def _examine(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    thing, place = _visible(state, command.thing), state.layout.places_by_name.get(command.thing)
    if place is not None and place == state.at:
        return CommandOutcome(state, describe(state), True)
    if thing is None:
        return CommandOutcome(state, f"You see no {command.thing} where you are.", False)
    if state.layout.things[thing].kind.lamp:
        return CommandOutcome(
            state, f"{command.thing.capitalize()} is {'on' if state.lit >> thing & 1 else 'off'}.", True
        )
    return CommandOutcome(state, f"{command.thing.capitalize()} is {_condition(state, thing) or 'as it was'}.", True)


def _condition(state: HouseholdState, thing: int) -> str:
    return " and ".join(word for verb, word in STATES.items() if state.treated(verb) >> thing & 1)


def _inventory(state: HouseholdState, command: HouseholdCommand) -> CommandOutcome:
    carried = state.held
    if carried is None:
        return CommandOutcome(state, "You hold nothing.", True)
    condition = _condition(state, carried)
    text = f"You hold {state.layout.things[carried].name}"
    return CommandOutcome(state, f"{text}, which is {condition}." if condition else f"{text}.", True)


_RULES: Mapping[str, Callable[[HouseholdState, HouseholdCommand], CommandOutcome]] = MappingProxyType(
    {
        "go": _go,
        "open": _open,
        "close": _close,
        "take": _take,
        "put": _put,
        **dict.fromkeys(STATES, _treat),
        "turn on": _turn_on,
        "examine": _examine,
        "look": lambda state, command: CommandOutcome(state, describe(state), True),
        "inventory": _inventory,
    }
)


def _near_commands(state: HouseholdState) -> Iterator[HouseholdCommand]:
    """Yield the commands about what is near; the rules say which of them can be done."""
    layout = state.layout
    yield from (HouseholdCommand("go", place=piece.name) for piece in layout.furniture if piece.room == state.room)
    yield from (HouseholdCommand("go", place=room) for room in layout.rooms_by_name)
    here = layout.furniture[state.at].name if state.at >= 0 else ""
    near = [layout.things[thing].name for thing in state.contents(state.at)] if here else []
    carried = [layout.things[state.held].name] if state.held is not None else []
    if here:
        yield HouseholdCommand("open", place=here)
        yield HouseholdCommand("close", place=here)
        yield HouseholdCommand("examine", here)
        yield from (HouseholdCommand("take", name, here) for name in near)
        yield from (HouseholdCommand(verb, name, here) for name in carried for verb in ("put", *STATES))
        yield from (HouseholdCommand("turn on", name) for name in near)
    yield from (HouseholdCommand("examine", name) for name in (*carried, *near))
    yield HouseholdCommand("look")
    yield HouseholdCommand("inventory")
