"""Open every place without a mine: `puzzles/minesweeper-v0`."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._grids import board_of, canonical_rows, rows_of
from envgym.envs.puzzles._minesweeper import UNKNOWN, View, conclusions, draw_mines, open_cells
from envgym.envs.puzzles._rewards import earned_so_far, end_game
from envgym.errors import InvalidInput
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

MINE, START, SAFE = "*s."
MAX_DRAWS = 5_000
CHANCE, TURN_CHANCE = 0.06, 0.2
"""What places that are named without looking earn at most, and besides with `turn_reward`; measured, see the card."""
_WHERE = "puzzles/minesweeper-v0"
_MOVE = re.compile(r"(open|flag) (\d{1,2}) (\d{1,2})")


@dataclass(frozen=True, slots=True)
class MinesweeperState:
    """A board, and what is seen of it."""

    size: int
    mines: frozenset[int]
    view: View
    at_start: int
    """Places open at the start."""
    flags: frozenset[int] = frozenset()
    paid: float = 0.0
    """Rewards of the turns so far."""

    @property
    def num_open(self) -> int:
        """Places that are open."""
        return len(self.view) - self.view.count(UNKNOWN)

    @property
    def num_safe(self) -> int:
        """Places without a mine."""
        return len(self.view) - len(self.mines)


class Minesweeper(Env[MinesweeperState]):
    """The agent opens one place a turn; a mine ends the episode, as does the last safe place."""

    def __init__(
        self,
        *,
        size: int = 6,
        mines: int = 6,
        turn_reward: bool = False,
        max_turns: int | None = 100,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the boards.

        Args:
            size: Rows and columns, 5 to 12.
            mines: `size` to a fifth of the places.
            turn_reward: Pay for opened places, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        check_range("size", size, 5, 12, where=_WHERE)
        check_range("mines", mines, size, size * size // 5, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.size, self.mines, self.turn_reward = size, mines, turn_reward
        self.chance_score = CHANCE + (TURN_CHANCE if turn_reward else 0.0)
        self.hint = f"Say open ROW COLUMN, such as open 1 {size}, or flag ROW COLUMN to mark a mine."
        self.system_prompt = (
            "Open every place without a mine. A number tells how many of the up to eight places around hold one, # is "
            f"not open, F is a flag. Rows and columns are counted from 1, from the top left. {self.hint}"
        )
        self.tasks = GeneratedTasks(self._draw, name="puzzles/minesweeper")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        for _ in range(MAX_DRAWS):
            layout = draw_mines(rng, self.size, self.mines)
            if layout is not None:
                break
        else:
            got, do = (self.size, self.mines), "lower mines"
            raise InvalidInput.of("(size, mines)", "leave boards without a guess", got, where=_WHERE, do=do)
        start, mines = layout
        cells = "".join(START if at == start else MINE if at in mines else SAFE for at in range(self.size**2))
        rows = rows_of(cells, self.size)
        board, symmetry = canonical_rows(rows)
        return TaskDraft(
            prompt=_show_board(_initial_state(cells, self.size)),
            payload={"board": list(board)},
            metadata={"symmetry": symmetry, "size": self.size, "mines": self.mines},
        )

    def begin(self, task: Task) -> str:
        rows = board_of(task)
        self.state = _initial_state("".join(rows), len(rows))
        return _show_board(self.state)

    def respond(self, action: Action) -> Reply:
        match = _MOVE.fullmatch(plain_answer(action.content).replace(",", " ").replace("  ", " "))
        row, column = (int(number) - 1 for number in match.groups()[1:]) if match else (-1, -1)
        state = self.state
        if match is None or not (0 <= row < state.size and 0 <= column < state.size):
            return Reply(observation=f"{self.hint}\n{_show_board(state)}")
        place = row * state.size + column
        if state.view[place] != UNKNOWN:
            return Reply(observation=f"That place is open.\n{_show_board(state)}")
        if match.group(1) == "flag":
            self.state = _next_state(state, state.view, state.flags ^ {place}, state.paid)
            return Reply(observation=_show_board(self.state))
        if place in state.mines:
            return end_game("You opened a mine.", 0.0, cleared=False)
        return self._open(place)

    def _open(self, place: int) -> Reply:
        state = self.state
        after = _next_state(state, open_cells(state.view, state.mines, place, state.size), state.flags, state.paid)
        is_cleared = after.num_open == after.num_safe
        progress = (after.num_open - after.at_start) / (after.num_safe - after.at_start)
        earned = earned_so_far(is_cleared, progress, turn_reward=self.turn_reward)
        self.state = _next_state(after, after.view, after.flags, earned)
        if not is_cleared:
            return Reply(observation=_show_board(after), reward=earned - state.paid)
        return end_game("Cleared: every safe place is open.", earned - state.paid, cleared=True)

    def oracle(self) -> str:
        """Open a place that is safe by what is seen; where nothing can be concluded, one that is safe."""
        state = self.state
        safe, _ = conclusions(state.view, state.size)
        unknown = (place for place, number in enumerate(state.view) if number == UNKNOWN and place not in state.mines)
        place = min(safe) if safe else next(unknown)
        return f"open {place // state.size + 1} {place % state.size + 1}"

    fork_state = share_state


def _initial_state(cells: str, size: int) -> MinesweeperState:
    mines = frozenset(place for place, cell in enumerate(cells) if cell == MINE)
    view = open_cells((UNKNOWN,) * len(cells), mines, cells.index(START), size)
    return MinesweeperState(size, mines, view, len(view) - view.count(UNKNOWN))


def _next_state(state: MinesweeperState, view: View, flags: frozenset[int], paid: float) -> MinesweeperState:
    return MinesweeperState(state.size, state.mines, view, state.at_start, flags, paid)


def _show_board(state: MinesweeperState) -> str:
    cells = "".join(
        str(number) if number != UNKNOWN else "F" if place in state.flags else "#"
        for place, number in enumerate(state.view)
    )
    return "\n".join([*rows_of(cells, state.size), f"Mines: {len(state.mines)}."])
