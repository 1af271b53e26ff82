"""A short way to the goal of a household from any state, found by trying every order of errands."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from envgym.envs.puzzles._household import HELD, NOWHERE, HouseholdState
from envgym.envs.puzzles._household_catalogue import STATES
from envgym.envs.puzzles._household_commands import HouseholdCommand

Errand = tuple[str, int, int]
"""A verb, a thing and a piece of furniture; the way there is found when it is run."""
ANYWHERE = -1
"""The place of an errand that is wherever its thing is."""


class _Walk:
    """What the agent would do and where everything would be after it."""

    def __init__(self, state: HouseholdState) -> None:
        self.layout = state.layout
        self.room, self.at, self.opened, self.lit = state.room, state.at, state.opened, state.lit
        self.places = list(state.places)
        self.commands: list[HouseholdCommand] = []

    def run(self, errands: Sequence[Errand], limit: int) -> bool:
        """Run errands; False where one cannot be run, or `limit` commands are not enough."""
        return all(self._run(*errand) and len(self.commands) < limit for errand in errands)

    def _run(self, verb: str, thing: int, place: int) -> bool:
        place = self.places[thing] if place == ANYWHERE else place
        kind, item = self.layout.furniture[place].kind, self.layout.things[thing]
        if verb == "put" and (item.kind.size > kind.largest or self.places.count(place) >= kind.holds):
            return False
        self._visit(place)
        if verb in ("take", "put") and kind.opens and not self.opened >> place & 1:
            self.opened |= 1 << place
            self._say("open", place=place)
        if verb == "turn on":
            if not self.lit >> thing & 1:
                self.commands.append(HouseholdCommand(verb, item.name))
            return True
        self._say(verb, thing, place)
        if verb in ("take", "put"):
            self.places[thing] = HELD if verb == "take" else place
        return True

    def _visit(self, place: int) -> None:
        room = self.layout.furniture[place].room
        if room != self.room:
            self.commands.append(HouseholdCommand("go", place=self.layout.rooms[room].replace(" ", "")))
            self.room, self.at = room, NOWHERE
        if place != self.at:
            self._say("go", place=place)
            self.at = place

    def _say(self, verb: str, thing: int | None = None, place: int = 0) -> None:
        layout = self.layout
        name = "" if thing is None else layout.things[thing].name
        self.commands.append(HouseholdCommand(verb, name, layout.furniture[place].name))


def plan_commands(state: HouseholdState) -> list[HouseholdCommand]:
    """Return the fewest commands found to the goal; empty where no order of errands reaches it."""
    return _shortest(state, _ways(state)) or _shortest(state, _ways_that_clear(state))


def _shortest(state: HouseholdState, ways: Iterator[Sequence[Errand]]) -> list[HouseholdCommand]:
    best: list[HouseholdCommand] = []
    for way in ways:
        walk = _Walk(state)
        if walk.run(way, len(best) or 1000):
            best = walk.commands
    return best


def _ways(state: HouseholdState) -> Iterator[Sequence[Errand]]:
    """Yield the errands that reach the goal; what is held in the way is put down first."""
    carried = state.held
    for way in _errands(state):
        if carried is None:
            yield way
        elif way[0][1] == carried:
            yield way[1:]
        else:
            yield from ([("put", carried, place), *way] for place in range(len(state.layout.furniture)))


def _ways_that_clear(state: HouseholdState) -> Iterator[Sequence[Errand]]:
    """Yield the errands that make room at the target before they reach the goal."""
    layout, carried = state.layout, state.held
    for way in _errands(state):
        target, moved = way[-1][2], {thing for _, thing, _ in way}
        others = [
            thing
            for thing in state.contents(target)
            if thing not in moved and not layout.things[thing].kind.lamp and (thing not in layout.goal_things)
        ]
        for place, count in product(range(len(layout.furniture)), (1, 2)):
            if place != target:
                down = [("put", carried, place)] if carried is not None else []
                cleared = [errand for thing in others[:count] for errand in _carry(thing, place)]
                yield [*down, *cleared, *way]


def _errands(state: HouseholdState) -> Iterator[list[Errand]]:
    """Yield the errands that reach the goal with empty hands; each way begins by taking a thing."""
    layout, places = state.layout, state.places
    goal = layout.goal
    if goal.kind == "light":
        lamps = [number for number, thing in enumerate(layout.things) if thing.kind.name == goal.place]
        for thing, lamp in product(layout.goal_things, lamps):
            yield [("take", thing, ANYWHERE), ("turn on", lamp, ANYWHERE)]
        return
    if goal.kind == "two":
        for target in layout.targets:
            rest = [thing for thing in layout.goal_things if places[thing] != target]
            missing = 2 - (len(layout.goal_things) - len(rest))
            for things in permutations(rest, missing):
                yield [errand for thing in things for errand in _carry(thing, target)]
        return
    stations = [place for place, piece in enumerate(layout.furniture) if goal.kind in piece.kind.operations]
    for thing, target in product(layout.goal_things, layout.targets):
        take, put = _carry(thing, target)
        if goal.kind not in STATES or state.treated(goal.kind) >> thing & 1:
            yield [take, put]
        else:
            yield from ([take, (goal.kind, thing, station), put] for station in stations)


def _carry(thing: int, target: int) -> tuple[Errand, Errand]:
    return ("take", thing, ANYWHERE), ("put", thing, target)
