"""What knights and knaves say: statements as JSON, their truth, their words, and what follows from them."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

from envgym.core.json_types import JsonValue, canonical

Statement = tuple[str, *tuple[int, ...]]
"""A form and its numbers: ("is", who, kind), ("same", a, b), ("different", a, b), ("exactly", number), or
("or" | "and" | "if", a, kind of a, b, kind of b); kind 1 is a knight, 0 a knave."""
Assignment = tuple[int, ...]
"""The kind of everybody."""

FORMS = ("is", "same", "different", "exactly", "or", "and", "if")
KINDS = ("knave", "knight")


def is_true(statement: Statement, assignment: Assignment) -> bool:
    """Tell whether a statement holds under an assignment."""
    form, *parts = statement
    if form == "exactly":
        return sum(assignment) == parts[0]
    if form in ("same", "different"):
        return (assignment[parts[0]] == assignment[parts[1]]) == (form == "same")
    first = assignment[parts[0]] == parts[1]
    if form == "is":
        return first
    second = assignment[parts[2]] == parts[3]
    return {"or": first or second, "and": first and second, "if": not first or second}[form]


def consistent_assignments(statements: Sequence[Statement]) -> list[Assignment]:
    """Return the assignments under which exactly the knights, one speaker per statement, say what is true."""
    return [
        assignment
        for assignment in product((0, 1), repeat=len(statements))
        if all(
            is_true(statement, assignment) == bool(kind) for statement, kind in zip(statements, assignment, strict=True)
        )
    ]


def draw_statement(rng: np.random.Generator, num: int, speaker: int) -> Statement:
    """Draw a statement of one of `num` persons; it names others alone, except for the number of knights."""
    form = FORMS[rng.integers(len(FORMS))]
    if form == "exactly":
        return (form, int(rng.integers(num + 1)))
    first, second = rng.permutation([other for other in range(num) if other != speaker])[:2].tolist()
    kinds = rng.integers(2, size=2).tolist()
    if form == "is":
        return (form, first, kinds[0])
    if form in ("same", "different"):
        return (form, *sorted((first, second)))
    return (form, first, kinds[0], second, kinds[1])


def words(statement: Statement, names: Sequence[str]) -> str:
    form, *parts = statement
    if form == "exactly":
        return f"Exactly {parts[0]} of us {'is a knight' if parts[0] == 1 else 'are knights'}."
    if form in ("same", "different"):
        kinds = "the same kind" if form == "same" else "different kinds"
        return f"{names[parts[0]]} and {names[parts[1]]} are of {kinds}."
    first = f"{names[parts[0]]} is a {KINDS[parts[1]]}"
    if form == "is":
        return f"{first}."
    second = f"{names[parts[2]]} is a {KINDS[parts[3]]}"
    return f"If {first}, then {second}." if form == "if" else f"{first} {form} {second}."


def canonical_statements(statements: Sequence[Statement]) -> tuple[list[JsonValue], tuple[int, ...]]:
    """Return the statements with the persons in the order that comes first as text, and the person at each place."""
    return min(_orders(statements), key=lambda order: canonical(order[0]))


def _orders(statements: Sequence[Statement]) -> Iterator[tuple[list[JsonValue], tuple[int, ...]]]:
    for order in permutations(range(len(statements))):
        place = {person: index for index, person in enumerate(order)}
        yield [_renamed(statements[person], place) for person in order], order


def _renamed(statement: Statement, place: dict[int, int]) -> JsonValue:
    form, *parts = statement
    if form == "exactly":
        return [form, *parts]
    if form in ("same", "different"):
        return [form, *sorted(place[part] for part in parts)]
    pairs = [[place[parts[index]], parts[index + 1]] for index in range(0, len(parts), 2)]
    return [form, *(number for pair in (sorted(pairs) if form in ("or", "and") else pairs) for number in pair)]
