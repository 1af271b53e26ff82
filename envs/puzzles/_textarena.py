"""Games of the package textarena, each with dice of its own: the same seed plays the same game, and copies agree.

The games draw from Python's global generator. Here the name `random` in their modules stands for the dice of the game
that is being played in this thread; outside of a game it is Python's own module, so others may use textarena beside us.
"""

import builtins
import copy
import importlib
import pickle
import random
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any

from envgym.errors import InvalidInput

MAX_MOVE_CHARS = 100
_MOVE = re.compile(r"\[([^\[\]]*)\]")
_SHARED = ("word_data", "game_board_data", "all_sets", "deck", "clues")
"""Attributes of games that no move changes; copies share them."""
_PACKAGE = "textarena"


class _Dice:
    """Python's generator of one game; copies of it share one until they throw, as most games never do after a start."""

    def __init__(self, generator: random.Random, *, is_shared: bool = False) -> None:
        self._generator, self._is_shared = generator, is_shared

    def own(self) -> random.Random:
        """Return the generator to throw with, which no other game has."""
        if self._is_shared:
            generator = random.Random(0)
            generator.setstate(self._generator.getstate())
            self._generator, self._is_shared = generator, False
        return self._generator

    def copy(self) -> "_Dice":
        self._is_shared = True
        return _Dice(self._generator, is_shared=True)


_dice: ContextVar[_Dice | None] = ContextVar("dice", default=None)


class _SeededRandom:
    def __getattr__(self, name: str) -> Any:  # Any: whatever the module holds
        dice = _dice.get()
        return getattr(dice.own() if dice is not None and hasattr(random.Random, name) else random, name)


def _print(*args: object, **options: Any) -> None:  # Any: as print takes them
    """Print, but not what a game says to its own author."""
    if _dice.get() is None:
        builtins.print(*args, **options)


@contextmanager
def _rolling(dice: _Dice) -> Iterator[None]:
    """Let the games draw from `dice` within the block."""
    token = _dice.set(dice)
    try:
        yield
    finally:
        _dice.reset(token)


class TextArenaGame:
    def __init__(self, inner: Any, dice: _Dice) -> None:  # Any: an untyped package
        self.inner = inner
        self._dice = dice

    @classmethod
    def start(cls, name: str, seed: int) -> "TextArenaGame":
        """Start the game registered under `name`. Raises: InvalidInput: textarena is not installed."""
        make, options = _game_class(name)
        dice = _Dice(random.Random(seed))
        with _rolling(dice):
            inner = make(**options)
            inner.reset(num_players=1, seed=seed)
        return cls(inner, dice)

    @property
    def is_over(self) -> bool:
        return bool(self.inner.state.done)

    def play(self, move: str) -> None:
        with _rolling(self._dice):
            self.inner.step(move)
        self.inner.state.logs.clear()

    def shown(self) -> str:
        """Return the game's messages since the last call, and at the end why it ended."""
        _, messages = self.inner.get_observation()
        texts = [text for _, text, kind in messages if kind.name != "PLAYER_ACTION"]
        if self.is_over:
            texts.append(str(self.inner.state.game_info[0].get("reason") or "The game is over."))
        return "\n".join(text.strip("\n") for text in texts)

    def earned(self, full: float) -> float:
        """Return the game's reward, as a share of its `full` reward; losses are 0, as is what is no number."""
        paid = (self.inner.state.rewards or {}).get(0)
        return min(max(paid / full, 0.0), 1.0) if isinstance(paid, int | float) else 0.0

    def copy(self) -> "TextArenaGame":
        """Return an independent game that goes on from here with the same dice.

        The games are plain data: pickling copies them several times faster than a deep copy.
        """
        inner = copy.copy(self.inner)
        own = {name: value for name, value in vars(inner).items() if name not in _SHARED}
        vars(inner).update(pickle.loads(pickle.dumps(own, pickle.HIGHEST_PROTOCOL)))
        return TextArenaGame(inner, self._dice.copy())


def move_of(text: str) -> str | None:
    """Return the move as the games read it: what the last square brackets hold, else the whole text.

    One move is played for a turn: several at once would let an agent name all candidates. None for a text that is none.
    """
    moves = _MOVE.findall(text)
    move = " ".join((moves[-1] if moves else text).split())
    return f"[{move}]" if move and len(move) <= MAX_MOVE_CHARS else None


def check_installed(where: str) -> None:
    """See that textarena is there. Raises: InvalidInput: it is not."""
    if find_spec(_PACKAGE) is None:
        do = "pip install 'envgym[textarena]'"
        raise InvalidInput.of(_PACKAGE, "be installed", "no such package", where=where, do=do)


@cache
def _game_class(name: str) -> tuple[Any, dict[str, Any]]:  # Any: an untyped package
    """Return the class of a game and its settings; the first call imports the package, which takes seconds."""
    check_installed("puzzles/textarena-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(_PACKAGE)
        spec = sys.modules[f"{_PACKAGE}.envs.registration"].ENV_REGISTRY[name]
        module_name, _, class_name = spec.entry_point.partition(":")
        module = importlib.import_module(module_name)
    _isolate()
    return getattr(module, class_name), dict(spec.kwargs)


def _isolate() -> None:
    """Give the modules of the package our dice, as far as they are imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_PACKAGE}.") and vars(module).get("random") is random:
            vars(module).update(random=_SeededRandom(), print=_print)
