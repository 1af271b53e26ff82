"""What `benchmarks/speed.toml` holds: parts, aims and comparisons; and how a record meets them."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

FOLDER: Final = Path(__file__).parent
BUSY_CORES: Final = 0.1
"""A part beside which other work took more than this share of a core was not measured on an idle machine."""
Record = Mapping[str, Any]
Better = Literal["high", "low"]


class Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Aim(Data):
    figure: str
    key: str
    """Path in the part's result; a `*` is every entry that has the rest, and the worst of them counts."""
    better: Better
    aim: float
    goal: float | None = None
    unit: str = ""


class Side(Data):
    name: str
    key: str
    part: str | None = None
    """Where the figure is; None: in the part of the comparison."""
    version: str | None = None
    """Path of its version."""


class Compared(Data):
    figure: str
    better: Better
    sides: tuple[Side, ...]


class Part(Data):
    title: str
    module: str
    what: str
    limit_s: int
    arguments: tuple[str, ...] = ()
    more_arguments: tuple[str, ...] | None = None
    environment: str = ""
    """NAME of `.venv-NAME`, which runs the part; empty: that of the caller."""
    docker: bool = False
    """Whether the part needs a Docker engine, which `scripts/with_docker.py` finds or starts."""
    aims: tuple[Aim, ...] = ()
    compared: tuple[Compared, ...] = ()


class Stated(Data):
    figure: str
    value: float
    better: Better
    aim: float
    command: str
    measured: str
    unit: str = ""


class Plan(Data):
    parts: Mapping[str, Part]
    stated: tuple[Stated, ...] = ()


class Profile(Data):
    """What a change brought: a step before and after it, timed in alternation."""

    what: str
    before_ms: float
    after_ms: float
    operators_before: int
    operators_after: int
    note: str = ""


def read_plan(path: Path = FOLDER / "speed.toml") -> Plan:
    """Read the parts. Raises: ValidationError: a field is unknown, missing or of another type."""
    return Plan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def read_profiles(path: Path = FOLDER / "speed_profile.toml") -> tuple[Profile, ...]:
    """Read the profiles. Raises: ValidationError: as above."""
    return tuple(map(Profile.model_validate, tomllib.loads(path.read_text(encoding="utf-8")).get("profiles", ())))


def values_at(found: Any, key: str) -> list[Any]:  # any JSON tree
    """Return what is at a path such as `cells.*.achieved`; entries of a `*` that lack the rest are left out."""
    first, _, rest = key.partition(".")
    if not isinstance(found, Mapping):
        return []
    entries = found.values() if first == "*" else [found[first]] if first in found else []
    return [value for entry in entries for value in (values_at(entry, rest) if rest else [entry])]


def worst(found: Any, key: str, better: Better) -> float | None:  # any JSON tree
    numbers = [value for value in values_at(found, key) if isinstance(value, int | float)]
    if not numbers:
        return None
    return min(numbers) if better == "high" else max(numbers)


def is_reached(value: float, aim: float, better: Better) -> bool:
    return value >= aim if better == "high" else value <= aim


def is_idle(measured: Record) -> bool:
    """Return whether hardly anything else ran beside a part."""
    others = measured.get("others_cores")
    return others is not None and others <= BUSY_CORES


def aims_of(plan: Plan) -> Iterator[tuple[str, Part, Aim]]:
    for name, part in plan.parts.items():
        for aim in part.aims:
            yield name, part, aim


def arguments_of(part: Part, *, more: bool) -> Sequence[str]:
    return part.more_arguments if more and part.more_arguments is not None else part.arguments
