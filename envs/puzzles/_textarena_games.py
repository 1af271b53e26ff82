"""What is known about the games of textarena 0.7.4 that are offered: the content of a start, and what chance earns.

Chance was measured: the best of several lists of moves that are fixed beforehand, over 36 to 120 starts; see the card.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from envgym.core.json_types import JsonValue

Content = Callable[[Any], JsonValue]
"""Tells what a start is, whatever its seed; Any: a game of an untyped package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSpec:
    chance: float
    """What the best fixed moves win at most."""
    chance_partial: float
    """What they earn at most with partial credit."""
    content: Content | None = None
    """None where chance decides during the game: then the seed is part of what the start is."""
    full: float = 1.0
    """The game's own highest reward."""
    is_sure: bool = True
    """False where the game's limits leave no way to win some starts: the oracle then tries each that is drawn."""


def _grid(game: Any) -> JsonValue:  # Any: as in Content
    rows = game.state.game_state["grid"]
    return ["".join(" O"[cell] if isinstance(cell, bool) else cell for cell in row) for row in rows]


def _lake(game: Any) -> JsonValue:  # Any: as in Content
    return [_grid(game), *game.state.game_state["player_pos"]]


def _cards(game: Any) -> JsonValue:  # Any: as in Content
    state = game.state.game_state
    return [" ".join(card) for card in (*state["board"], *state["deck"])]


def _shuffle(game: Any) -> JsonValue:  # Any: as in Content
    return [text for _, text, _ in game.state.observations[0][1:]]


def _state(name: str) -> Content:
    return lambda game: game.state.game_state[name]


def _board(game: Any) -> JsonValue:  # Any: as in Content
    return ["".join(map(str, row)) for row in game.game_board]


def _words(game: Any) -> JsonValue:  # Any: as in Content
    return sorted(game.state.game_state["placed_words"])


GAMES: Mapping[str, GameSpec] = MappingProxyType(
    {
        "2048-v0": GameSpec(chance=0.05, chance_partial=0.4),
        "2048-v0-easy": GameSpec(chance=0.35, chance_partial=0.7),
        "Blackjack-v0": GameSpec(chance=0.03, chance_partial=0.4),
        "Crosswords-v0": GameSpec(chance=0.01, chance_partial=0.03, content=_words, is_sure=False),
        "Crosswords-v0-hardcore": GameSpec(chance=0.02, chance_partial=0.03, content=_words, is_sure=False),
        "FrozenLake-v0": GameSpec(chance=0.45, chance_partial=0.7, content=_lake),
        "FrozenLake-v0-hardcore": GameSpec(chance=0.2, chance_partial=0.5, content=_lake),
        "FrozenLake-v0-random": GameSpec(chance=0.1, chance_partial=0.35, content=_lake),
        "GuessTheNumber-v0-hardcore": GameSpec(chance=0.25, chance_partial=0.8, content=_state("game_number")),
        "LightsOut-v0": GameSpec(chance=0.01, chance_partial=0.15, content=_grid),
        "LogicPuzzle-v0": GameSpec(chance=0.15, chance_partial=0.15, content=lambda game: sorted(game.clues)),
        "LogicPuzzle-v0-hard": GameSpec(chance=0.15, chance_partial=0.15, content=lambda game: sorted(game.clues)),
        "Mastermind-v0": GameSpec(chance=0.1, chance_partial=0.5, content=_state("secret_code")),
        "Mastermind-v0-extreme": GameSpec(chance=0.01, chance_partial=0.3, content=_state("secret_code")),
        "Mastermind-v0-hard": GameSpec(chance=0.05, chance_partial=0.4, content=_state("secret_code")),
        "Minesweeper-v0": GameSpec(chance=0.01, chance_partial=0.4),
        "Minesweeper-v0-medium": GameSpec(chance=0.03, chance_partial=0.3),
        "Minesweeper-v0-small": GameSpec(chance=0.05, chance_partial=0.45),
        "Secretary-v0": GameSpec(chance=0.3, chance_partial=0.3, content=_state("draws")),
        "Secretary-v0-long": GameSpec(chance=0.2, chance_partial=0.2, content=_state("draws")),
        "Set-v0": GameSpec(chance=0.03, chance_partial=0.05, content=_cards, full=20.0, is_sure=False),
        "Sudoku-v0": GameSpec(chance=0.02, chance_partial=0.03, content=_board),
        "Sudoku-v0-easy": GameSpec(chance=0.02, chance_partial=0.03, content=_board),
        "Sudoku-v0-medium": GameSpec(chance=0.02, chance_partial=0.03, content=_board),
        "Sudoku-v0-very-easy": GameSpec(chance=0.02, chance_partial=0.03, content=_board),
        "ThreeCardMonte-v0": GameSpec(chance=0.4, chance_partial=0.4, content=_shuffle),
    }
)
"""By registered name, without textarena's wrappers."""
