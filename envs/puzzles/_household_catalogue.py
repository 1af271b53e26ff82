"""What a household has: the kinds of furniture, things and rooms of `data/household`, and the layout of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from envgym.envs.data_files import read_toml

STATES: Mapping[str, str] = MappingProxyType({"clean": "clean", "heat": "hot", "cool": "cold"})
"""What is done to a thing -> what it is after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FurnitureKind:
    """A kind of furniture; the head of `furniture.toml` describes the fields."""

    name: str
    relation: str
    holds: int
    largest: int
    opens: bool = False
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThingKind:
    """A kind of thing; the head of `things.toml` describes the fields."""

    name: str
    size: int
    lies: tuple[str, ...]
    operations: tuple[str, ...] = ()
    lamp: bool = False
    plural: str = ""


def _rows(name: str) -> Mapping[str, Mapping[str, Any]]:  # TOML
    table = read_toml(f"puzzles/data/household/{name}.toml")
    return {
        kind: {field: tuple(value) if isinstance(value, list) else value for field, value in row.items()}
        for kind, row in table.items()
    }


FURNITURE: Mapping[str, FurnitureKind] = MappingProxyType(
    {name: FurnitureKind(name=name, **row) for name, row in _rows("furniture").items()}
)
THINGS: Mapping[str, ThingKind] = MappingProxyType(
    {name: ThingKind(**{"plural": f"{name}s", **row, "name": name}) for name, row in _rows("things").items()}
)
ROOMS: Mapping[str, Mapping[str, tuple[int, int]]] = MappingProxyType(dict(_rows("rooms")))
"""Kind of room -> kind of furniture -> least and greatest number of pieces."""


@dataclass(frozen=True, slots=True)
class Furniture:
    name: str
    kind: FurnitureKind
    room: int


@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    kind: ThingKind


@dataclass(frozen=True, slots=True)
class HouseholdGoal:
    kind: str
    """One of place, light, clean, heat, cool and two."""
    thing: str
    """Kind of the thing."""
    place: str
    """Kind of the furniture it must be brought to; the kind of the lamp where it must be lit."""

    @property
    def text(self) -> str:
        if self.kind == "light":
            return f"hold {_one(self.thing)} where {_one(self.place)} is on"
        relation = FURNITURE[self.place].relation
        if self.kind == "two":
            return f"put two {THINGS[self.thing].plural} {relation} the same {self.place}"
        where = f"{relation} {_one(self.place)}"
        if self.kind == "place":
            return f"put {_one(self.thing)} {where}"
        return f"{self.kind} {_one(self.thing)} and put it {where}"


@dataclass(frozen=True, slots=True)
class HouseholdLayout:
    """What does not change in an episode."""

    goal: HouseholdGoal
    rooms: tuple[str, ...]
    """Kinds; the agent begins in the first."""
    furniture: tuple[Furniture, ...]
    things: tuple[Thing, ...]
    places_by_name: Mapping[str, int]
    rooms_by_name: Mapping[str, int]
    things_by_name: Mapping[str, int]
    goal_things: tuple[int, ...]
    """The things of the goal's kind."""
    goal_mask: int
    """The same as a set."""
    targets: tuple[int, ...]
    """The furniture of the goal's kind."""


def _one(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
