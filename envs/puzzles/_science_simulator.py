"""ScienceWorld in warm Java machines, each shared by many games, and every game repeatable.

The simulator keeps two things for all games of a machine: Scala's random generator and a counter of ids. Here a game
owns both, and puts them in their place before it moves. Besides, the hash codes of objects are constant. So the same
actions give the same game, in any machine and beside others.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from envgym.envs.puzzles._java_games import GamePool, JavaGame, JavaMachine
from envgym.errors import EnvFailure

FIRST = "look around"
"""What is done before the first turn, as the package's own `reset` does."""


@dataclass(frozen=True, slots=True)
class ScienceVariation:
    kind: str
    """Type of the task."""
    number: int
    simplifications: str = ""
    """Names that the simulator knows, separated by commas."""


@dataclass(frozen=True, slots=True)
class ScienceStep:
    action: str
    observation: str
    score: int
    """Percent of the task that is done; below 0 where it has failed."""
    is_over: bool


class ScienceMachine(JavaMachine):
    def __init__(self) -> None:
        from scienceworld.constants import JAR_PATH

        super().__init__("ScienceWorld", JAR_PATH)
        self._current: ScienceGame | None = None
        with self.asked():
            java = self.packages.java.lang.Class
            self._random = java.forName("scala.util.Random$").getField("MODULE$").get(None)
            self._generator = java.forName("scala.util.Random").getDeclaredField("self")
            self._generator.setAccessible(True)
            self._ids = java.forName("util.UniqueIdentifier$").getField("MODULE$").get(None)

    def start(self) -> tuple[Any, Any]:  # proxies of Java objects
        """Return a simulator without a game, and a generator."""
        return self.packages.scienceworld.runtime.pythonapi.PythonInterface(), self.packages.java.util.Random(0)

    def turn_to(self, game: "ScienceGame") -> None:
        """Let a game have the generator and the counter."""
        if self._current is not game:
            if self._current is not None:
                self._current.num_ids = self._ids.count()
            self._generator.set(self._random, game.generator)
            getattr(self._ids, "count_$eq")(game.num_ids)
            self._current = game

    def turn_from(self, game: "ScienceGame") -> None:
        """Let a game that ends have them no longer."""
        self._current = None if self._current is game else self._current


class ScienceGame(JavaGame[ScienceMachine, ScienceStep]):
    def __init__(self, machine: ScienceMachine, variation: ScienceVariation, *, with_gold: bool = False) -> None:
        """Start it. Raises: EnvFailure: the machine has ended, or the simulator knows no such variation."""
        super().__init__(machine)
        self.num_ids = 0
        with machine.asked():
            self._simulator, self.generator = machine.start()
            machine.turn_to(self)
            refusal = self._simulator.load(variation.kind, variation.number, variation.simplifications, with_gold)
            if refusal and "error" in refusal.lower():
                raise EnvFailure(f"ScienceWorld: {refusal}")

    def step(self, action: str) -> ScienceStep:
        """Play an action; one on which the simulator fails does nothing more. Raises: EnvFailure."""
        from py4j.protocol import Py4JJavaError

        with self.machine.asked():
            self.machine.turn_to(self)
            try:
                observation = str(self._simulator.step(action))
            except Py4JJavaError:
                observation = "That cannot be done."
            score = round(100 * self._simulator.getScore())
            return ScienceStep(action, observation, score, score < 0 or bool(self._simulator.getCompleted()))

    def description(self) -> str:
        with self.machine.asked():
            self.machine.turn_to(self)
            return str(self._simulator.getTaskDescription()).strip()

    def admissible(self) -> list[str]:
        """Return the actions that can be done now, in order; this takes much longer than a step."""
        with self.machine.asked():
            self.machine.turn_to(self)
            return sorted(set(map(str, self._simulator.getValidActionObjectCombinations())))

    def gold(self) -> tuple[str, ...]:
        with self.machine.asked():
            return tuple(map(str, self._simulator.getGoldActionSequence()))

    def objects(self) -> Sequence[Any]:  # proxies of Java objects
        self.machine.turn_from(self)
        return self._simulator, self.generator


class SciencePool(GamePool[ScienceVariation, ScienceStep, ScienceMachine, ScienceGame]):
    """The machines of a process, and the games in them."""

    def start_machine(self) -> ScienceMachine:
        return ScienceMachine()

    def start_game(self, machine: ScienceMachine, start: ScienceVariation) -> ScienceGame:
        return ScienceGame(machine, start)


@cache
def shared_games() -> SciencePool:
    return SciencePool()


@lru_cache(maxsize=10_000)
def task_description(variation: ScienceVariation) -> str:
    """Say what a task is. Raises: EnvFailure."""
    with closing(shared_games().new_game(variation)) as game:
        return game.description()


@lru_cache(maxsize=1000)
def gold_actions(variation: ScienceVariation) -> tuple[str, ...]:
    """Return the simulator's own solution; of some types it takes seconds. Raises: EnvFailure."""
    with closing(ScienceGame(shared_games().machine(), variation, with_gold=True)) as game:
        return game.gold()
