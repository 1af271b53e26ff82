"""TextWorldExpress in warm Java machines, each shared by many games, and solutions that repeat.

A game owns its random generator and its objects, so that the same actions give the same game. The package's solutions
of two games come from a generator without a seed, and games of sorting share objects; here neither is so.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

from envgym.envs.puzzles._java_games import GamePool, JavaGame, JavaMachine
from envgym.errors import EnvFailure, InvalidInput

_AGENTS = {"coin": "CoinGoldAgent", "twc": "TWCGoldAgent"}
"""Games whose solutions in the package have no seed -> its class that finds them."""
_WITH_ROOMS = ("cookingworld", "twc", "coin", "mapreader")
"""Games of several rooms; the others are told apart by their first room and their solution."""
_ATTEMPTS = 50
"""Random walks of which one must find a solution, as in the package."""
_IDLE = ("look around", "task", "inventory")
"""Actions of solutions that show what has been seen."""
_SEED_PROPERTIES = ("seed", "gameSet")


@dataclass(frozen=True, slots=True)
class TextWorldVariation:
    game: str
    """Its name in the package."""
    parameters: str
    """As the package writes them, such as `numLocations=3,includeDoors=0`."""
    fold: str
    """train, dev or test, from which its objects are."""
    seed: int


@dataclass(frozen=True, slots=True)
class TextWorldStep:
    action: str
    observation: str
    score: float
    """Of 1; below 0 after most errors that end a game."""
    is_solved: bool
    is_failed: bool

    @property
    def is_over(self) -> bool:
        return self.is_solved or self.is_failed


class TextWorldMachine(JavaMachine):
    """A running Java machine with the simulator."""

    def __init__(self) -> None:
        from textworld_express.constants import JAR_PATH

        super().__init__("TextWorldExpress", JAR_PATH)
        self._generators: dict[tuple[str, str], Any] = {}
        self._sorting: list[Any] = []  # the problems, and two fields of each

    def start(self, game: str, parameters: str) -> Any:  # proxy of a Java object
        """Return a simulator of a game; what generates games is kept, since it reads files when it is made.

        Raises: InvalidInput: the package refuses the parameters.
        """
        simulator = self.packages.textworldexpress.runtime.PythonInterface()
        if (game, parameters) in self._generators:
            getattr(simulator, "gameGenerator_$eq")(self._generators[game, parameters])
            return simulator
        refusal = str(simulator.load(game, parameters)).strip()
        do = "choose others"
        InvalidInput.unless(not refusal, f"parameters of {game}", "suit each other", refusal, where=parameters, do=do)
        self._generators[game, parameters] = simulator.gameGenerator()
        return simulator

    def renew_objects(self, variation: TextWorldVariation) -> None:
        """Give a problem of sorting new objects: the package puts the same ones into every game of the problem."""
        find, package = self.packages.java.lang.Class.forName, self.packages.textworldexpress.preprocessing
        if not self._sorting:
            kind = find("textworldexpress.preprocessing.SortingProblem")
            problems = find("textworldexpress.data.SortingProblemGenerator$").getField("MODULE$").get(None)
            self._sorting = [problems, *(kind.getDeclaredField(name) for name in ("inputItems", "orderedItems"))]
            for field in self._sorting[1:]:
                field.setAccessible(True)
        problems, inputs, ordered = self._sorting
        problem = problems.getProblem(variation.seed, variation.fold).get()
        ordered.set(problem, package.SortingProblem(inputs.get(problem)).orderedItems())

    def solution(self, variation: TextWorldVariation) -> tuple[str, ...]:
        """Return a solution of a game whose solutions have no seed in the package. Raises: EnvFailure: none found."""
        generator = self._generators[variation.game, variation.parameters]
        agent = getattr(self.packages.textworldexpress.goldagent, _AGENTS[variation.game])
        random = self.packages.scala.util.Random(variation.seed)
        for _ in range(_ATTEMPTS):
            path = agent(generator.mkGame(variation.seed, variation.fold)).mkGoldPath(random)
            if path.productElement(0):
                return tuple(map(str, path.productElement(1)))
        raise EnvFailure(f"TextWorldExpress: no solution of {variation} in {_ATTEMPTS} attempts")


class TextWorldGame(JavaGame[TextWorldMachine, TextWorldStep]):
    def __init__(self, machine: TextWorldMachine, variation: TextWorldVariation, *, with_gold: bool = False) -> None:
        """Start it. Raises: EnvFailure: the machine has ended. InvalidInput: the package refuses the parameters."""
        super().__init__(machine)
        self._variation = variation
        with machine.asked():
            self._simulator = machine.start(variation.game, variation.parameters)
            if variation.game == "sorting":
                machine.renew_objects(variation)
            reply = self._simulator.generateNewGameJSON(variation.seed, variation.fold, with_gold)
        self.reply: dict[str, Any] = json.loads(reply)

    def step(self, action: str) -> TextWorldStep:
        """Play an action; one that is not admissible changes nothing. Raises: EnvFailure."""
        with self.machine.asked():
            reply = self._simulator.stepJSON(action)
        self.reply = reply = json.loads(reply)
        is_solved = reply["tasksuccess"] or reply["score"] >= 1.0
        return TextWorldStep(action, reply["observation"], reply["score"], is_solved, reply["taskfailure"])

    def description(self) -> str:
        with self.machine.asked():
            return str(self._simulator.getTaskDescription()).strip()

    def admissible(self) -> list[str]:
        return sorted(set(self.reply["validActions"]))

    def gold(self) -> tuple[str, ...]:
        with self.machine.asked():
            if self._variation.game in _AGENTS:
                return self.machine.solution(self._variation)
            return tuple(map(str, self._simulator.getGoldActionSequence()))

    def content_hash(self) -> str:
        """Hash what a game that has not moved is, without its seed: task, rooms with what lies in them, solution."""
        with self.machine.asked():
            properties = json.loads(self._simulator.getGenerationPropertiesJSON())
            unseeded = {name: value for name, value in properties.items() if name not in _SEED_PROPERTIES}
            rooms = self._simulator.game().locations() if self._variation.game in _WITH_ROOMS else ()
            seen = sorted(str(room.getDescription()) for room in rooms)
            gold = list(map(str, self._simulator.getGoldActionSequence()))
        parts = [
            self.description(),
            self.reply["observation"],
            unseeded,
            seen,
            gold,
            self.step("read cookbook").observation,
        ]
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def objects(self) -> Sequence[Any]:  # proxies of Java objects
        return (self._simulator,)


class TextWorldPool(GamePool[TextWorldVariation, TextWorldStep, TextWorldMachine, TextWorldGame]):
    """The machines of a process, and the games in them."""

    max_games = 512

    def start_machine(self) -> TextWorldMachine:
        return TextWorldMachine()

    def start_game(self, machine: TextWorldMachine, start: TextWorldVariation) -> TextWorldGame:
        """Start a game. Raises: EnvFailure. InvalidInput: the package refuses the parameters."""
        return TextWorldGame(machine, start)

    def first_observation(self, start: TextWorldVariation) -> str:
        """Return the observation before the first turn. Raises: as `step`."""
        with self._game(start, ()) as (game, _):
            return str(game.reply["observation"])


@cache
def shared_games() -> TextWorldPool:
    return TextWorldPool()


@lru_cache(maxsize=10_000)
def task_description(variation: TextWorldVariation) -> str:
    """Say what a task is. Raises: EnvFailure."""
    with closing(shared_games().new_game(variation)) as game:
        return game.description()


@lru_cache(maxsize=10_000)
def gold_actions(variation: TextWorldVariation) -> tuple[str, ...]:
    """Return the package's solution, without walks that come back to where they began. Raises: EnvFailure."""
    actions: list[str] = []
    with closing(TextWorldGame(shared_games().machine(), variation, with_gold=True)) as game:
        walk = [game.reply["look"]]  # what is seen at each place since something else than a move was done
        for action in game.gold():
            if action in _IDLE:
                continue
            is_solved, place = game.step(action).is_solved, game.reply["look"]
            if not action.startswith("move "):
                actions, walk = [*actions, action], [place]
            elif place in walk:
                start = walk.index(place)
                del actions[len(actions) - (len(walk) - 1 - start) :]
                del walk[start + 1 :]
            else:
                actions, walk = [*actions, action], [*walk, place]
            if is_solved:
                break
    return tuple(actions)


def content_hash(variation: TextWorldVariation) -> str:
    """Hash what a game is, without its seed. Raises: EnvFailure."""
    with_gold = variation.game not in _WITH_ROOMS
    with closing(TextWorldGame(shared_games().machine(), variation, with_gold=with_gold)) as game:
        return game.content_hash()
