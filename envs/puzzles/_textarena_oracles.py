"""The next best move in games of textarena, read off their hidden state.

Every oracle takes a running game, an object of an untyped package (Any), and says what stands between the brackets.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any


def _crosswords(game: Any) -> str:  # Any: see the module
    state = game.state.game_state
    row, column = next(_places(state["board"], "_"))
    return f"{row} {column} {state['solution'][row][column]}"


def _frozen_lake(game: Any) -> str:  # Any: see the module
    state = game.state.game_state
    start, goal, holes = tuple(state["player_pos"]), tuple(state["goal_pos"]), set(_places(state["grid"], "H"))
    queue, ways = deque([start]), {start: ""}
    while goal not in ways:
        row, column = queue.popleft()
        for move, (down, right) in game.actions.items():
            to = row + down, column + right
            if to not in ways and to not in holes and min(to) >= 0 and max(to) < game.size:
                ways[to] = ways[row, column] or move
                queue.append(to)
    return ways[goal]


def _guess_the_number(game: Any) -> str:  # Any: see the module
    low, high = game.min_number, game.max_number
    for guess, hint in game.state.game_state["guess_history"]:
        low, high = (max(low, guess + 1), high) if hint == "higher" else (low, min(high, guess - 1))
    return str((low + high) // 2)


def _lights_out(game: Any) -> str:  # Any: see the module
    grid = game.state.game_state["grid"]
    tries = (_chased(grid, first) for first in itertools.product((False, True), repeat=game.size))
    row, column = min((presses for presses in tries if presses is not None), key=len)[0]
    return f"{row} {column}"


def _chased(grid: list[list[bool]], first: tuple[bool, ...]) -> list[tuple[int, int]] | None:
    """Return the presses that begin with `first` in the top row and put out row after row; None if lights are left."""
    size = len(grid)
    lit, presses, pressed = [row[:] for row in grid], [], list(first)
    for row in range(size):
        for column in range(size):
            if pressed[column]:
                presses.append((row, column))
                for down, right in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)):
                    if 0 <= row + down < size and 0 <= column + right < size:
                        lit[row + down][column + right] ^= True
        pressed = lit[row][:]
    return None if any(lit[-1]) else presses


def _logic_puzzle(game: Any) -> str:  # Any: see the module
    for name, rows in game.game_board_solution.items():
        for row, marks in rows.items():
            for item, mark in marks.items():
                if game.game_board[name][row][item] != mark:
                    return f"{row} {item} {mark}"
    raise AssertionError("a game that goes on has a wrong mark")


def _mastermind(game: Any) -> str:  # Any: see the module
    """Guess the first code that agrees with all answers so far; where there are too many codes, the secret one."""
    state = game.state.game_state
    if state["duplicate_numbers"]:
        return " ".join(map(str, state["secret_code"]))
    codes = itertools.permutations(range(1, state["num_numbers"] + 1), state["code_length"])
    answers = [(entry["guess"], (entry["black"], entry["white"])) for entry in state["history"]]
    return " ".join(map(str, next(code for code in codes if all(_pegs(code, *one) for one in answers))))


def _pegs(code: tuple[int, ...], guess: list[int], pegs: tuple[int, int]) -> bool:
    """Return whether `guess` would get these black and white pegs for `code`; neither repeats a number."""
    black = sum(one == other for one, other in zip(code, guess, strict=True))
    return (black, len(set(code) & set(guess)) - black) == pegs


def _minesweeper(game: Any) -> str:  # Any: see the module
    if game.first_move:
        return f"{game.rows // 2} {game.cols // 2}"
    return next(f"{row} {column}" for row, column in _places(game.revealed, False) if game.grid[row][column] != -1)


def _secretary(game: Any) -> str:  # Any: see the module
    state = game.state.game_state
    return "accept" if state["draws"][state["current_idx"] - 1] == max(state["draws"]) else "continue"


def _set(game: Any) -> str:  # Any: see the module
    """Name a set; where there is none, three cards are dealt before the move is read."""
    state = game.state.game_state
    dealt = state["deck"][:-4:-1]
    for cards in (state["board"], [*state["board"], *dealt]):
        for places in itertools.combinations(range(len(cards)), 3):
            if all(len(set(values)) != 2 for values in zip(*(cards[at] for at in places), strict=True)):
                return ", ".join(str(at + 1) for at in places)
    return "1, 2, 3"


def _sudoku(game: Any) -> str:  # Any: see the module
    row, column = next(_places(game.state.game_state["board"], 0))
    return f"{row + 1} {column + 1} {game.full_grid[row][column]}"


def _places(rows: list[list[Any]], what: object) -> Iterator[tuple[int, int]]:  # Any: cells of any kind
    return ((at, to) for at, row in enumerate(rows) for to, cell in enumerate(row) if cell == what)


ORACLES: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "Crosswords": _crosswords,
        "FrozenLake": _frozen_lake,
        "GuessTheNumber": _guess_the_number,
        "LightsOut": _lights_out,
        "LogicPuzzle": _logic_puzzle,
        "Mastermind": _mastermind,
        "Minesweeper": _minesweeper,
        "Secretary": _secretary,
        "Set": _set,
        "Sudoku": _sudoku,
        "ThreeCardMonte": lambda game: str(game.ball_pos),
    }
)
"""By the name of a game without its version."""
