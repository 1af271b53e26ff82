"""Two doors that shift the payoff by luck, then eight turns of skill: where the reward comes at the end.

    envgym play studies/trees/doors.py:Doors --oracle

In turns 1 and 2 the agent chooses a door, `1` or `2`. Behind one of them the payoff is higher by `luck`, behind the
other one lower by as much; which one is drawn for every task, so there is nothing to be learned there. In turns 3 to
10 a letter is shown, and the right answer is the number that belongs to it, which is the same in every task: the skill.
Before each door and letter stands the sign of the shift so far, for a critic to see. The reward comes after the last
turn: the share of right answers, and the shift. With `luck` 1 the doors decide most of it.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from envgym import Action, Env, Reply, Task
from envgym.authoring import GeneratedTasks, TaskDraft
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from envgym.seeds import generator

NUM_DOORS = 2
"""Turns in which a door is chosen."""
ANSWERS: Mapping[str, str] = {"a": "3", "b": "1", "c": "4", "d": "2"}
"""Letter -> the right answer."""
NUM_LETTERS = 8


@dataclass(slots=True)
class DoorsState:
    """Where an episode stands."""

    turn: int = 0
    lucky: int = 0
    right: int = 0


class Doors(Env[DoorsState]):
    """Choose two doors, then answer eight letters; all is paid at the end."""

    system_prompt = "Two doors, 1 or 2; then a number for each letter."

    def __init__(
        self, *, luck: float = 0.0, demonstrated: float = 1.0, max_turns: int | None = 10, **options: Any
    ) -> None:
        """Choose how much the doors decide.

        Args:
            luck: what a door adds or takes, in units of a perfect skill's reward; at least 0.
            demonstrated: share in [0, 1] of the letters that the oracle knows; it guesses the others and the doors, so
                that a warm start leaves something to learn.
            max_turns: turns until the episode is cut; it takes 10.
            **options: as in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        where = "Doors"
        InvalidInput.unless(luck >= 0, "luck", "be at least 0", luck, where=where, do="pass e.g. luck=1")
        is_share = 0 <= demonstrated <= 1
        InvalidInput.unless(is_share, "demonstrated", "lie in [0, 1]", demonstrated, where=where, do="pass e.g. 0.4")
        super().__init__(max_turns=max_turns, **options)
        self.luck, self.demonstrated = luck, demonstrated
        self.reward_range = (-NUM_DOORS * luck, 1 + NUM_DOORS * luck)
        self.optimum, self.chance_score = 1 + NUM_DOORS * luck, 1 / len(ANSWERS)
        self.tasks = GeneratedTasks(_draw, name="tree_study/doors")

    def begin(self, task: Task) -> str:
        self.state = DoorsState()
        self.letters, self.doors = str(task.payload["letters"]), str(task.payload["doors"])
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Take a door or an answer; anything else is the wrong one of them."""
        state, said = self.state, action.strip()
        if state.turn < NUM_DOORS:
            state.lucky += 1 if said == self.doors[state.turn] else -1
        else:
            state.right += said == ANSWERS[self.letters[state.turn - NUM_DOORS]]
        state.turn += 1
        if state.turn == NUM_DOORS + NUM_LETTERS:
            skill, shift = state.right / NUM_LETTERS, self.luck * state.lucky
            reward = Scored(value=skill + shift, components={"skill": skill, "shift": shift})
            return Reply(observation="", reward=reward, terminated=True)
        sign = "+" if state.lucky > 0 else "-" if state.lucky < 0 else "="
        return Reply(observation=sign + ("?" if state.turn < NUM_DOORS else self.letters[state.turn - NUM_DOORS]))

    def oracle(self) -> str:
        """Choose the better door and the right answer; with `demonstrated` below 1 any door, and some wrong answers."""
        turn, draws = self.state.turn, generator("doors", self.doors, self.letters, self.state.turn)
        guess = str(draws.integers(1, 3 if turn < NUM_DOORS else len(ANSWERS) + 1))
        if turn < NUM_DOORS:
            return self.doors[turn] if self.demonstrated == 1 else guess
        return ANSWERS[self.letters[turn - NUM_DOORS]] if draws.random() < self.demonstrated else guess

    def fork_state(self) -> DoorsState:
        return copy.copy(self.state)


def _draw(rng: np.random.Generator) -> TaskDraft:
    letters = "".join(rng.choice(list(ANSWERS), NUM_LETTERS))
    doors = "".join(str(rng.integers(1, 3)) for _ in range(NUM_DOORS))
    return TaskDraft(prompt="=?", payload={"letters": letters, "doors": doors})


def skill(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean share of right letters: a metric that the doors do not change."""
    shares = [valid.components["skill"] for episode in episodes if isinstance(valid := episode.reward, Scored)]
    return {"skill": fmean(shares)} if shares else {}
