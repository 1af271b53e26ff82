"""Find out who is a knight (tells the truth) and who is a knave (lies): `puzzles/knights_knaves-v0`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._rewards import TURN_SHARE, earned_so_far, end_game
from envgym.envs.puzzles._statements import (
    KINDS,
    Statement,
    canonical_statements,
    consistent_assignments,
    draw_statement,
    is_true,
    words,
)
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Ida",
    "Jim",
    "Kim",
    "Leo",
    "Mia",
    "Nora",
    "Otto",
    "Pia",
    "Rob",
)
_WHERE = "puzzles/knights_knaves-v0"
_SPLIT = re.compile(r"[\s,;:.=]+")
_FILLERS = frozenset(("is", "a", "and"))


@dataclass(frozen=True, slots=True)
class KnightsKnavesState:
    """Who lives here, and who has been named."""

    kinds: tuple[tuple[str, str], ...]
    """Name, in lower case, and kind."""
    named: frozenset[str] = frozenset()
    """Who was named rightly."""
    paid: float = 0.0
    """Rewards of the turns so far."""


class KnightsKnaves(Env[KnightsKnavesState]):
    """The agent says who is what, one by one or all at once; a wrong claim ends the episode."""

    system_prompt = (
        "Knights always tell the truth, knaves always lie. Say of everybody, one by one or together, what they are, "
        "such as: Ada is a knight, Ben is a knave. A wrong claim ends the game."
    )

    def __init__(
        self,
        *,
        persons: int = 3,
        turn_reward: bool = False,
        max_turns: int | None = 10,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the islands.

        Args:
            persons: 3 to 5.
            turn_reward: Pay for right claims, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        check_range("persons", persons, 3, 5, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.persons, self.turn_reward = persons, turn_reward
        partly = sum(0.5 ** (right + 1) * right for right in range(persons)) / persons
        self.chance_score = 0.5**persons + (TURN_SHARE * partly if turn_reward else 0.0)
        self.tasks = GeneratedTasks(self._draw, name="puzzles/knights_knaves")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        assignment = tuple(rng.integers(2, size=self.persons).tolist())
        statements: list[Statement] = []
        while not statements or consistent_assignments(statements) != [assignment]:
            statements = [_draw_true_statement(rng, assignment, speaker) for speaker in range(self.persons)]
        names = [NAMES[place] for place in rng.permutation(len(NAMES))[: self.persons]]
        lines = [f"{names[at]}: {words(statement, names)}" for at, statement in enumerate(statements)]
        ordered, order = canonical_statements(statements)
        return TaskDraft(
            prompt="\n".join(lines),
            payload={"statements": ordered, "kinds": [KINDS[assignment[person]] for person in order]},
            metadata={"names": [names[person] for person in order], "persons": self.persons},
        )

    def begin(self, task: Task) -> str:
        names, kinds = _texts(task.metadata["names"]), _texts(task.payload["kinds"])
        self.state = KnightsKnavesState(tuple((name.lower(), kind) for name, kind in zip(names, kinds, strict=True)))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Check the claims in their order, and pay."""
        claims = _claims(plain_answer(action.content), dict(self.state.kinds))
        if not claims:
            names = ", ".join(name.capitalize() for name in self._left())
            return Reply(observation=f"Say NAME is a knight, or NAME is a knave. Left: {names}.")
        before = self.state
        kinds, named, is_wrong = dict(before.kinds), set(before.named), False
        for name, kind in claims:
            is_wrong = kinds[name] != kind
            if is_wrong:
                break
            named.add(name)
        is_solved = not is_wrong and len(named) == len(kinds)
        earned = earned_so_far(is_solved, len(named) / len(kinds), turn_reward=self.turn_reward)
        self.state = KnightsKnavesState(before.kinds, frozenset(named), earned)
        if not is_wrong and not is_solved:
            left = ", ".join(name.capitalize() for name in self._left())
            return Reply(observation=f"Right so far. Left: {left}.", reward=earned - before.paid)
        text = "Correct." if is_solved else f"Wrong: {name.capitalize()} is not a {kind}."
        return end_game(text, earned - before.paid, solved=is_solved)

    def _left(self) -> list[str]:
        return sorted(name for name, _ in self.state.kinds if name not in self.state.named)

    def oracle(self) -> str:
        """Say what everybody is who is left."""
        kinds = dict(self.state.kinds)
        return ", ".join(f"{name.capitalize()} is a {kinds[name]}" for name in self._left())

    fork_state = share_state


def _draw_true_statement(rng: np.random.Generator, assignment: tuple[int, ...], speaker: int) -> Statement:
    while True:
        statement = draw_statement(rng, len(assignment), speaker)
        if is_true(statement, assignment) == bool(assignment[speaker]):
            return statement


def _claims(text: str, kinds: dict[str, str]) -> list[tuple[str, str]] | None:
    """Read names and kinds in turn, or return None where anything else is said."""
    parts = [word for word in _SPLIT.split(text) if word and word not in _FILLERS]
    names, said_kinds = parts[::2], parts[1::2]
    if len(parts) % 2 or not set(names) <= set(kinds) or not set(said_kinds) <= set(KINDS):
        return None
    return list(zip(names, said_kinds, strict=True))


def _texts(values: JsonValue) -> list[str]:
    assert isinstance(values, Sequence), "made by _draw"
    return [str(value) for value in values]
