"""ScienceWorld in warm Java machines, each shared by many games, and every game repeatable.

The simulator keeps two things for all games of a machine: Scala's random generator and a counter of ids. Here a game
owns both, and puts them in their place before it moves. Besides, sets are ordered by the hash codes of objects, which
are made constant (`-XX:hashCode=2`). So the same actions give the same game, in any machine and beside others.
"""

import atexit
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

from envgym.errors import EnvFailure, InvalidInput

PROGRAM = "java"
MAX_MACHINES = 2
MAX_GAMES = 64
"""Games that are kept in all machines together; one that is needed again is played again from the start."""
FIRST = "look around"
"""What is done before the first turn, as the package's own `reset` does."""
_ANSWER_S = 300.0
_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+UseSerialGC", "-Xmx1g")


class ScienceReplayDiffers(EnvFailure):
    """Actions that are played again give something else."""


@dataclass(frozen=True, slots=True)
class ScienceVariation:
    """What a game is started with."""

    kind: str
    """Type of the task."""
    number: int
    simplifications: str = ""
    """Names that the simulator knows, separated by commas."""


@dataclass(frozen=True, slots=True)
class ScienceStep:
    """An action and what followed."""

    action: str
    observation: str
    score: int
    """Percent of the task that is done; below 0 where it has failed."""
    is_over: bool


def check_installed(where: str) -> None:
    """See that the simulator and Java are there. Raises: InvalidInput: one is not."""
    do = "pip install 'envgym[science]'"
    has_package = find_spec("scienceworld") is not None
    InvalidInput.unless(has_package, "scienceworld", "be installed", "no such package", where=where, do=do)
    do = "install it (Debian: apt install default-jre-headless)"
    InvalidInput.unless(shutil.which(PROGRAM), "Java", "be installed", "no program java", where=where, do=do)


class ScienceMachine:
    """A running Java machine; used by one thread at a time."""

    def __init__(self) -> None:
        """Start it, in a place of its own, where only who has its token gets an answer. Raises: EnvFailure."""
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        self.lock = threading.RLock()
        self.is_lost = False
        self.num_games = 0
        self._current: ScienceGame | None = None
        try:
            port, token, self.process = launch_gateway(
                classpath=JAR_PATH,
                javaopts=[*_OPTIONS],
                die_on_exit=True,
                cwd=BASEPATH,
                return_proc=True,
                enable_auth=True,
                daemonize_redirect=True,
            )
        except (OSError, ValueError) as error:
            raise _lost("start", error) from error
        parameters = GatewayParameters(port=port, auth_token=token, auto_field=True, read_timeout=_ANSWER_S)
        self._gateway = JavaGateway(gateway_parameters=parameters, java_process=self.process)
        with self.asked():
            java = self._gateway.jvm.java.lang.Class
            self._random = java.forName("scala.util.Random$").getField("MODULE$").get(None)
            self._generator = java.forName("scala.util.Random").getDeclaredField("self")
            self._generator.setAccessible(True)
            self._ids = java.forName("util.UniqueIdentifier$").getField("MODULE$").get(None)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Ask the machine something. Raises: EnvFailure: it has ended, or does not answer."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            with self.lock:
                yield
        except Py4JJavaError as error:
            if "java.lang.OutOfMemoryError" in str(error):
                self.close()
                raise _lost("have enough memory", error) from None
            raise  # the simulator has refused something, and the machine goes on
        except (Py4JError, OSError) as error:
            self.close()
            raise _lost("answer", error) from error

    def start(self) -> tuple[Any, Any]:  # proxies of Java objects
        """Return a simulator without a game, and a generator."""
        return self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface(), self._gateway.jvm.java.util.Random(0)

    def turn_to(self, game: "ScienceGame") -> None:
        """Let a game have the generator and the counter."""
        if self._current is not game:
            if self._current is not None:
                self._current.num_ids = self._ids.count()
            self._generator.set(self._random, game.generator)
            getattr(self._ids, "count_$eq")(game.num_ids)
            self._current = game

    def release(self, game: "ScienceGame", *objects: Any) -> None:  # proxies of Java objects
        """Let the machine forget a game; references to proxies are cycles, which Python may keep for long."""
        if not self.is_lost:
            with self.asked():
                self.num_games -= 1
                self._current = None if self._current is game else self._current
                for item in objects:
                    self._gateway.detach(item)

    def close(self) -> None:
        """End it; may be called twice."""
        self.is_lost = True
        with suppress(OSError):
            self._gateway.close()
        self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait()


class ScienceGame:
    """A game in a machine."""

    def __init__(self, machine: ScienceMachine, variation: ScienceVariation, *, with_gold: bool = False) -> None:
        """Start it. Raises: EnvFailure: the machine has ended, or the simulator knows no such variation."""
        self.machine, self.num_ids = machine, 0
        with machine.asked():
            machine.num_games += 1
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
        """Say what the task is."""
        with self.machine.asked():
            self.machine.turn_to(self)
            return str(self._simulator.getTaskDescription()).strip()

    def admissible(self) -> list[str]:
        """Return the actions that can be done now, in order; this takes much longer than a step."""
        with self.machine.asked():
            self.machine.turn_to(self)
            return sorted(set(map(str, self._simulator.getValidActionObjectCombinations())))

    def gold(self) -> tuple[str, ...]:
        """Return the actions that solve the task, of a game that was started with them."""
        with self.machine.asked():
            return tuple(map(str, self._simulator.getGoldActionSequence()))

    def close(self) -> None:
        """End the game."""
        self.machine.release(self, self._simulator, self.generator)


class SciencePool:
    """The machines of a process, and the games in them; used by all threads."""

    def __init__(self, num_machines: int) -> None:
        """Run up to so many machines, each started when it is needed."""
        self._num_machines = num_machines
        self._machines: list[ScienceMachine] = []
        self._games: OrderedDict[tuple[ScienceVariation, tuple[str, ...]], ScienceGame] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def step(self, variation: ScienceVariation, steps: Sequence[ScienceStep], action: str) -> ScienceStep:
        """Play an action after others, which are played again where no game has come so far.

        Raises: EnvFailure: a machine has ended, or does not answer. ScienceReplayDiffers: the game is not the same.
        """
        with self._game(variation, steps) as (game, actions):
            done = game.step(action)
            actions.append(action)
        if done.is_over:
            self._drop(variation, actions)
        return done

    def admissible(self, variation: ScienceVariation, steps: Sequence[ScienceStep]) -> list[str]:
        """Return the actions that can be done after others. Raises: as `step`."""
        with self._game(variation, steps) as (game, _):
            return game.admissible()

    def new_game(self, variation: ScienceVariation, *, with_gold: bool = False) -> ScienceGame:
        """Start a game that is not kept. Raises: EnvFailure."""
        return ScienceGame(self._machine(), variation, with_gold=with_gold)

    @contextmanager
    def _game(
        self, variation: ScienceVariation, steps: Sequence[ScienceStep]
    ) -> Iterator[tuple[ScienceGame, list[str]]]:
        """Give a game after some steps; what is appended to its actions is where it will be kept."""
        actions = [step.action for step in steps]
        with self._lock:
            game = self._games.pop((variation, tuple(actions)), None)
        if game is None or game.machine.is_lost:
            game = self.new_game(variation)
            for step in steps:
                again = game.step(step.action)
                if again != step:
                    game.close()
                    must, got, do = f"be {step!r:.200}", f"{again!r:.200}", "report the task and its actions"
                    raise ScienceReplayDiffers.of("a step that is played again", must, got, where="scienceworld", do=do)
        try:
            yield game, actions
        except BaseException:  # nobody knows how far it has come
            game.close()
            raise
        with self._lock:
            key = (variation, tuple(actions))
            dropped = [self._games.pop(key)] if key in self._games else []
            self._games[key] = game
            while len(self._games) > MAX_GAMES:
                dropped.append(self._games.popitem(last=False)[1])
        for other in dropped:
            other.close()

    def _drop(self, variation: ScienceVariation, actions: Sequence[str]) -> None:
        """End a game that nobody goes on with."""
        with self._lock:
            game = self._games.pop((variation, tuple(actions)), None)
        if game is not None:
            game.close()

    def _machine(self) -> ScienceMachine:
        """Return the machine with the fewest games."""
        with self._lock:
            self._machines = [machine for machine in self._machines if not machine.is_lost]
            if len(self._machines) < self._num_machines:
                self._machines.append(ScienceMachine())
            return min(self._machines, key=lambda machine: machine.num_games)

    def close(self) -> None:
        """End all machines."""
        with self._lock:
            machines, self._machines = self._machines, []
            self._games.clear()
        for machine in machines:
            machine.close()

    def _forget(self) -> None:
        """Begin without machines in a forked child: they are the parent's."""
        self._machines, self._games, self._lock = [], OrderedDict(), threading.Lock()


@cache
def shared_games() -> SciencePool:
    """Return this process' games."""
    return SciencePool(min(MAX_MACHINES, os.cpu_count() or 1))


@lru_cache(maxsize=10_000)
def task_description(variation: ScienceVariation) -> str:
    """Say what a task is. Raises: EnvFailure."""
    with closing(shared_games().new_game(variation)) as game:
        return game.description()


@lru_cache(maxsize=1000)
def gold_actions(variation: ScienceVariation) -> tuple[str, ...]:
    """Return the simulator's own solution; of some types it takes seconds. Raises: EnvFailure."""
    with closing(shared_games().new_game(variation, with_gold=True)) as game:
        return game.gold()


def _lost(must: str, error: Exception) -> EnvFailure:
    return EnvFailure.of("Java with ScienceWorld", must, str(error), where="scienceworld", do="begin the episode again")
