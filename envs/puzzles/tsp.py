"""Find a short round tour through cities, the shortest if possible: `puzzles/tsp-v0`."""

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
from envgym.envs.puzzles._rewards import end_game
from envgym.envs.puzzles._tours import SIDE, Cities, canonical_cities, length, mean_length, shortest
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

CHANCE = {
    6: (0.26, 0.40, 0.51, 0.57, 0.63),
    7: (0.21, 0.32, 0.40, 0.46, 0.51),
    8: (0.18, 0.27, 0.34, 0.40, 0.44),
    9: (0.17, 0.25, 0.31, 0.36, 0.40),
    10: (0.15, 0.23, 0.28, 0.32, 0.36),
}
"""Cities -> what 1 to 5 tours that do not look at the map earn at most; measured, see the card."""
_WHERE = "puzzles/tsp-v0"


@dataclass(frozen=True, slots=True)
class TourState:
    """The cities, and the best tour so far."""

    cities: Cities
    left: int
    """Tours left."""
    best: int | None = None
    """Length of the best tour."""
    paid: float = 0.0
    """Rewards of the turns so far, which are the quality of the best tour."""


class TravelingSalesman(Env[TourState]):
    """Every well-formed message is a tour; a turn pays by how much it is better than those before."""

    def __init__(
        self,
        *,
        cities: int = 8,
        tours: int = 3,
        max_turns: int | None = 10,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the maps.

        Args:
            cities: 6 to 10.
            tours: Tours that the agent may try, 1 to 5.
            max_turns: Turns until the episode is cut; messages that are no tour count too.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        check_range("cities", cities, min(CHANCE), max(CHANCE), where=_WHERE)
        check_range("tours", tours, 1, len(CHANCE[cities]), where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.cities, self.tours = cities, tours
        self.chance_score = CHANCE[cities][tours - 1]
        self.hint = f"Say the numbers of all {cities} cities in the order of your tour, such as 1 2 3 ..."
        self.system_prompt = (
            "Find a short round tour that visits every city once and returns to where it began. Distances are straight "
            f"lines, rounded to whole numbers. {self.hint} Your best tour counts."
        )
        self.tasks = GeneratedTasks(self._draw, name="puzzles/tsp")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        places = rng.permutation(SIDE * SIDE)[: self.cities].tolist()
        cities = tuple((place // SIDE, place % SIDE) for place in places)
        lines = [f"{number}: {x} {y}" for number, (x, y) in enumerate(cities, start=1)]
        return TaskDraft(
            prompt="\n".join(["City: x y", *lines, f"Tours left: {self.tours}."]),
            payload={"cities": [list(city) for city in canonical_cities(cities)]},
            metadata={"shown": [list(city) for city in cities]},
        )

    def begin(self, task: Task) -> str:
        self.state = TourState(_cities(task.metadata.get("shown", task.payload["cities"])), self.tours)
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Measure a tour, and pay by how much it is better."""
        state = self.state
        text, num = plain_answer(action.content), len(state.cities)
        tour = [int(number) - 1 for number in re.findall(r"\d{1,3}", text)] if re.fullmatch(r"[\d ,>-]+", text) else []
        if len(tour) == num + 1 and tour[0] == tour[-1]:
            tour.pop()
        if sorted(tour) != list(range(num)):
            return Reply(observation=self.hint)
        tour_length, (fewest, _) = length(state.cities, tour), shortest(state.cities)
        best = tour_length if state.best is None else min(tour_length, state.best)
        quality = max(state.paid, quality_of(state.cities, best))
        self.state = TourState(state.cities, state.left - 1, best, quality)
        if self.state.left and best > fewest:
            text = f"Length {tour_length}. Best {best}. Tours left: {self.state.left}."
            return Reply(observation=text, reward=quality - state.paid)
        end = f"Length {tour_length}. " + ("It is the shortest." if best == fewest else f"The shortest has {fewest}.")
        return end_game(end, quality - state.paid, shortest=best == fewest)

    def oracle(self) -> str:
        return " ".join(str(city + 1) for city in shortest(self.state.cities)[1])

    fork_state = share_state


def quality_of(cities: Cities, tour_length: int) -> float:
    """Return max(0, (mean - found) / (mean - shortest)): 1 for a shortest tour, 0 for one no better than the mean."""
    mean = mean_length(cities)
    fewest, _ = shortest(cities)
    return max(0.0, (mean - tour_length) / (mean - fewest)) if tour_length > fewest else 1.0


def _cities(values: JsonValue) -> Cities:
    assert isinstance(values, Sequence), "made by _draw"
    pairs = [tuple(int(str(number)) for number in city) for city in values if isinstance(city, Sequence)]
    return tuple((x, y) for x, y in pairs)
