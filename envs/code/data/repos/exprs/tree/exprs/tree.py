"""The parts of an expression."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Name:
    """A variable."""

    name: str


@dataclass(frozen=True)
class Unary:
    """An operator with one operand."""

    operator: str
    operand: object


@dataclass(frozen=True)
class Binary:
    """An operator between two operands."""

    operator: str
    left: object
    right: object


@dataclass(frozen=True)
class Call:
    """A function with its arguments."""

    function: str
    arguments: tuple


@dataclass(frozen=True)
class Choice:
    """A condition, and what holds if it is not 0 or if it is."""

    condition: object
    then: object
    otherwise: object
