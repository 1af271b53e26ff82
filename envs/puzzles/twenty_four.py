"""Make 24 of four cards, under rules that can be changed: `puzzles/twenty_four-v0`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.authoring.sources import SplitTasks
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._expressions import OPERATORS, UnreadableExpression, find_solution, read_expression
from envgym.envs.puzzles._rewards import end_game
from envgym.errors import InvalidInput, check_known
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

NUM_CARDS = 4
NAMES = ("A", *map(str, range(2, 11)), "J", "Q", "K")
FORM_SHARE = 0.1
"""What the first expression of all four numbers, each once, is worth with `turn_reward`, whatever it makes."""
CHANCE = 0.02
"""What one fixed expression earns at most, under any rule: the most frequent four cards are drawn less often."""
_WHERE = "puzzles/twenty_four-v0"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRule:
    """What cards count, and what is to be made with which operators."""

    faces: tuple[int, int, int] = (11, 12, 13)
    """Jack, queen, king."""
    ace: int = 1
    target: int = 24
    operators: str = OPERATORS

    def value(self, rank: int) -> int:
        """Return the value of a card; its rank is 1, the ace, to 13, the king."""
        return self.ace if rank == 1 else rank if rank <= 10 else self.faces[rank - 11]

    @property
    def text(self) -> str:
        jack, queen, king = self.faces
        faces = "J, Q and K count 10" if jack == king else f"J counts {jack}, Q {queen}, K {king}"
        signs = " ".join(self.operators)
        return f"Make {self.target} of the four cards, each used once, with {signs} and parentheses. " + (
            f"A counts {self.ace}, {faces}."
        )


RULES: Mapping[str, CardRule] = MappingProxyType(
    {
        "standard": CardRule(),
        "faces_ten": CardRule(faces=(10, 10, 10)),
        "aces_eleven": CardRule(ace=11),
        "no_division": CardRule(operators="+-*"),
        "thirty_six": CardRule(target=36),
        "faces_down": CardRule(faces=(3, 2, 1)),
    }
)


@dataclass(frozen=True, slots=True)
class TwentyFourState:
    """The numbers of an episode, and the attempts left."""

    numbers: tuple[int, ...]
    target: int
    operators: str
    left: int
    """Attempts left."""
    paid: float = 0.0
    """Rewards of the turns so far."""


class TwentyFour(Env[TwentyFourState]):
    """Every readable expression is an attempt, answered by what it makes; right, or out of attempts: the end."""

    system_prompt = "Reply with one expression in numbers, such as (13 - 1) * (8 - 6)."

    def __init__(
        self,
        *,
        rules: str | Sequence[str] = "standard",
        test_rules: str | Sequence[str] | None = None,
        attempts: int = 3,
        turn_reward: bool = False,
        max_turns: int | None = 10,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the rules.

        Args:
            rules: Names of rules: `standard`, `faces_ten`, `aces_eleven`, `no_division`, `thirty_six`, `faces_down`.
            test_rules: Rules of the test split, where they are to be others than those of the train split.
            attempts: 1 to 10.
            turn_reward: Pay 0.1 for the first expression that uses each number once.
            max_turns: Turns until the episode is cut; messages that are no expression count too.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range. UnknownName: a rule that does not exist.
        """
        check_range("attempts", attempts, 1, 10, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.attempts, self.turn_reward = attempts, turn_reward
        self.chance_score = CHANCE * attempts
        names = _rule_names(rules)
        test_names = names if test_rules is None else _rule_names(test_rules)
        self.tasks = SplitTasks(self._source(names), self._source(test_names))

    def _source(self, names: tuple[str, ...]) -> GeneratedTasks:
        return GeneratedTasks(partial(self._draw, names), name="puzzles/twenty_four " + " ".join(names))

    def _draw(self, names: Sequence[str], rng: np.random.Generator) -> TaskDraft:
        name = names[int(rng.integers(len(names)))]
        rule = RULES[name]
        while True:
            ranks = rng.integers(1, len(NAMES) + 1, size=NUM_CARDS).tolist()
            numbers = tuple(sorted(rule.value(rank) for rank in ranks))
            if find_solution(numbers, rule.target, rule.operators) is not None:
                break
        cards = " ".join(NAMES[rank - 1] for rank in ranks)
        return TaskDraft(
            prompt=f"{rule.text}\nCards: {cards}. Attempts left: {self.attempts}.",
            payload={"numbers": list(numbers), "target": rule.target, "operators": rule.operators},
            metadata={"rule": name, "cards": cards},
        )

    def begin(self, task: Task) -> str:
        numbers, target = task.payload["numbers"], task.payload["target"]
        assert isinstance(numbers, Sequence), "made by _draw"
        assert isinstance(target, int), "made by _draw"
        values = tuple(int(str(number)) for number in numbers)
        self.state = TwentyFourState(values, target, str(task.payload["operators"]), self.attempts)
        return task.prompt

    def respond(self, action: Action) -> Reply:
        state = self.state
        try:
            value, numbers, signs = read_expression(plain_answer(action.content))
        except UnreadableExpression as error:
            return Reply(observation=f"{error} Attempts left: {state.left}.")
        is_legal = tuple(numbers) == state.numbers and signs <= set(state.operators)
        is_right = is_legal and value == state.target
        earned = float(is_right) or max(state.paid, FORM_SHARE * (is_legal and self.turn_reward))
        self.state = TwentyFourState(state.numbers, state.target, state.operators, state.left - 1, earned)
        if self.state.left and not is_right:
            return Reply(observation=self._judged(str(value), numbers, signs), reward=earned - state.paid)
        return end_game("Correct." if is_right else "No attempts left.", earned - state.paid, solved=is_right)

    def _judged(self, value: str, numbers: Sequence[int], signs: set[str]) -> str:
        state = self.state
        if tuple(numbers) != state.numbers:
            text = f"Use {' '.join(map(str, state.numbers))}, each once."
        elif not signs <= set(state.operators):
            text = f"Use no other operators than {' '.join(state.operators)}."
        else:
            text = f"That makes {value}, not {state.target}."
        return f"{text} Attempts left: {state.left}."

    def oracle(self) -> str:
        state = self.state
        return str(find_solution(state.numbers, state.target, state.operators))

    fork_state = share_state


def _rule_names(rules: str | Sequence[str]) -> tuple[str, ...]:
    names = (rules,) if isinstance(rules, str) else tuple(rules)
    for name in names:
        check_known("rule", str(name), RULES, where=_WHERE)
    InvalidInput.unless(names, "rules", "name at least one", rules, where=_WHERE, do="pass e.g. standard")
    return names
