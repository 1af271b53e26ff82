"""Games of text in warm Java machines, each shared by many games; a game that is gone is played again and compared."""

import atexit
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from envgym.core.json_types import well_formed
from envgym.errors import EnvFailure, InvalidInput

PROGRAM = "java"
MAX_MACHINES = 2
MAX_ACTION = 200
"""Longer actions, in characters, are none."""
_ANSWER_S = 300.0
_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+UseSerialGC", "-Xmx1g")
"""Constant hash codes of objects, by which sets are ordered, and a bounded memory."""


class GameReplayDiffers(EnvFailure):
    """Actions that are played again give something else."""


def check_installed(package: str, extra: str, where: str) -> None:
    """See that a package and Java are there. Raises: InvalidInput: one is not."""
    do = f"pip install 'envgym[{extra}]'"
    InvalidInput.unless(find_spec(package) is not None, package, "be installed", "no such package", where=where, do=do)
    do = "install it (Debian: apt install default-jre-headless)"
    InvalidInput.unless(shutil.which(PROGRAM), "Java", "be installed", "no program java", where=where, do=do)


def action_in(content: str) -> str | None:
    """Return the action that a message says: its last line, with or without `>`; None: none, or a longer one."""
    lines = [line.strip() for line in well_formed(content).splitlines() if line.strip()]
    text = lines[-1].removeprefix(">").strip() if lines else ""
    return text if text and len(text) <= MAX_ACTION else None


def next_action(solution: Sequence[str], steps: Sequence["GameStep"], *, otherwise: str) -> str:
    """Return the action of a solution after those of it that were done in order; at its end, another one."""
    done = 0
    for step in steps:
        done += done < len(solution) and step.action == solution[done]
    return solution[done] if done < len(solution) else otherwise


class JavaMachine:
    """A running Java machine; used by one thread at a time."""

    def __init__(self, name: str, jar: str) -> None:
        """Start it beside its jar, where only who has its token gets an answer.

        Args:
            name: of the simulator, for messages.
            jar: its path.

        Raises: EnvFailure: it does not start.
        """
        from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, launch_gateway

        self.name = name
        self.lock = threading.RLock()
        self.is_lost = False
        self.num_games = 0
        try:
            port, token, self.process = launch_gateway(
                classpath=jar,
                javaopts=[*_OPTIONS],
                die_on_exit=True,
                cwd=str(Path(jar).parent),
                return_proc=True,
                enable_auth=True,
                daemonize_redirect=True,
            )
        except (OSError, ValueError) as error:
            raise self._lost("start", error) from error
        parameters = GatewayParameters(port=port, auth_token=token, auto_field=True, read_timeout=_ANSWER_S)
        self._gateway = JavaGateway(gateway_parameters=parameters, java_process=self.process)
        self._client = GatewayClient(gateway_parameters=parameters)
        self._gateway.set_gateway_client(self._client)
        _running.add(self)

    @property
    def packages(self) -> Any:  # proxy of the machine's packages
        return self._gateway.jvm

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
                raise self._lost("have enough memory", error) from None
            raise  # the simulator has refused something, and the machine goes on
        except (Py4JError, OSError) as error:
            self.close()
            raise self._lost("answer", error) from error

    def forget(self, *objects: Any) -> None:  # proxies of Java objects
        """Let go of objects; references to proxies are cycles, which Python may keep for long."""
        for item in objects:
            self._gateway.detach(item)

    def close(self) -> None:
        self.is_lost = True
        _running.discard(self)
        with suppress(OSError):
            self._gateway.close()
        self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait()

    def abandon(self) -> None:
        """Let go of it in a forked child without a word: connections are shared with the parent, whose it is.

        Otherwise proxies and connections that Python finds unused would say so, and the parent read the answers.
        """
        self.is_lost = True
        self._client.is_connected = False
        for connection in self._client.deque:
            connection.stream.close()
            connection.socket.close()  # of this process; a connection's own close would end it for the parent
        self.process.stdin.close()  # the machine ends when nobody holds it
        self.process.returncode = 0  # no child of this process

    def _lost(self, must: str, error: Exception) -> EnvFailure:
        where, do = self.name.lower(), "begin the episode again"
        return EnvFailure.of(f"Java with {self.name}", must, str(error), where=where, do=do)


_running: WeakSet[JavaMachine] = WeakSet()
"""The machines of this process."""


def _abandon_all() -> None:
    for machine in list(_running):
        machine.abandon()
    _running.clear()


os.register_at_fork(after_in_child=_abandon_all)  # before any pool forgets its games there


class GameStep(Protocol):
    """An action and what followed; equal where the same followed."""

    @property
    def action(self) -> str: ...

    @property
    def is_over(self) -> bool: ...


StartT = TypeVar("StartT", bound=Hashable)
StepT = TypeVar("StepT", bound=GameStep)
MachineT = TypeVar("MachineT", bound=JavaMachine)


class JavaGame(ABC, Generic[MachineT, StepT]):
    def __init__(self, machine: MachineT) -> None:
        """Count it among the games of its machine."""
        self.machine = machine
        with machine.lock:
            machine.num_games += 1

    @abstractmethod
    def step(self, action: str) -> StepT:
        """Play an action. Raises: EnvFailure: the machine has ended, or does not answer."""

    @abstractmethod
    def admissible(self) -> list[str]:
        """Return the actions that can be done now, in order. Raises: as `step`."""

    @abstractmethod
    def objects(self) -> Sequence[Any]:
        """Return the proxies that the machine may let go of with the game."""

    def close(self) -> None:
        if not self.machine.is_lost:
            with self.machine.asked():
                self.machine.num_games -= 1
                self.machine.forget(*self.objects())


GameT = TypeVar("GameT", bound=JavaGame[Any, Any])


class GamePool(ABC, Generic[StartT, StepT, MachineT, GameT]):
    """The machines of a process, and the games in them; used by all threads."""

    max_games = 64
    """Games that are kept in all machines together; one that is needed again is played again from the start."""

    def __init__(self, num_machines: int | None = None) -> None:
        self._num_machines = num_machines or min(MAX_MACHINES, os.cpu_count() or 1)
        self._machines: list[MachineT] = []
        self._games: OrderedDict[tuple[StartT, tuple[str, ...]], GameT] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @abstractmethod
    def start_machine(self) -> MachineT:
        """Start a machine. Raises: EnvFailure."""

    @abstractmethod
    def start_game(self, machine: MachineT, start: StartT) -> GameT:
        """Start a game in a machine. Raises: EnvFailure."""

    def step(self, start: StartT, steps: Sequence[StepT], action: str) -> StepT:
        """Play an action after others, which are played again where no game has come so far.

        Raises: EnvFailure: a machine has ended, or does not answer. GameReplayDiffers: the game is not the same.
        """
        with self._game(start, steps) as (game, actions):
            done: StepT = game.step(action)
            actions.append(action)
        if done.is_over:
            self._drop(start, actions)
        return done

    def admissible(self, start: StartT, steps: Sequence[StepT]) -> list[str]:
        """Return the actions that can be done after others. Raises: as `step`."""
        with self._game(start, steps) as (game, _):
            return game.admissible()

    def new_game(self, start: StartT) -> GameT:
        """Start a game that is not kept. Raises: EnvFailure."""
        return self.start_game(self.machine(), start)

    @contextmanager
    def _game(self, start: StartT, steps: Sequence[StepT]) -> Iterator[tuple[GameT, list[str]]]:
        """Give a game after some steps; what is appended to its actions is where it will be kept."""
        actions = [step.action for step in steps]
        with self._lock:
            game = self._games.pop((start, tuple(actions)), None)
        if game is None or game.machine.is_lost:
            game = self.new_game(start)
            for step in steps:
                again = game.step(step.action)
                if again != step:
                    game.close()
                    must, got, do = f"be {step!r:.200}", f"{again!r:.200}", "report the task and its actions"
                    where = game.machine.name.lower()
                    raise GameReplayDiffers.of("a step that is played again", must, got, where=where, do=do)
        try:
            yield game, actions
        except BaseException:  # nobody knows how far it has come
            game.close()
            raise
        with self._lock:
            key = (start, tuple(actions))
            dropped = [self._games.pop(key)] if key in self._games else []
            self._games[key] = game
            while len(self._games) > self.max_games:
                dropped.append(self._games.popitem(last=False)[1])
        for other in dropped:
            other.close()

    def _drop(self, start: StartT, actions: Sequence[str]) -> None:
        with self._lock:
            game = self._games.pop((start, tuple(actions)), None)
        if game is not None:
            game.close()

    def machine(self) -> MachineT:
        """Return the machine with the fewest games. Raises: EnvFailure: none can be started."""
        with self._lock:
            self._machines = [machine for machine in self._machines if not machine.is_lost]
            if len(self._machines) < self._num_machines:
                self._machines.append(self.start_machine())
            return min(self._machines, key=lambda machine: machine.num_games)

    def close(self) -> None:
        with self._lock:
            machines, self._machines = self._machines, []
            self._games.clear()
        for machine in machines:
            machine.close()

    def _forget(self) -> None:
        """Begin without machines in a forked child: they are the parent's."""
        self._machines, self._games, self._lock = [], OrderedDict(), threading.Lock()
