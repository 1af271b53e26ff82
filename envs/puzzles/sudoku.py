"""Fill a grid so that each row, column and box has every digit: `puzzles/sudoku-v0`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._latin import BOXES, Grid, GridSymmetry, canonical_symmetry, draw_puzzle
from envgym.envs.puzzles._rewards import earned_so_far, end_game
from envgym.errors import InvalidInput
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

BLANKS = {4: (6, 10), 6: (10, 22), 9: (10, 50)}
"""Size -> how many places may be empty."""
CHANCE = {4: 0.05, 6: 0.01, 9: 0.01}
TURN_CHANCE = 0.05
"""What digits that are said without looking earn at most, and besides with `turn_reward`; see the card."""
_WHERE = "puzzles/sudoku-v0"
DIGITS = "123456789"


@dataclass(frozen=True, slots=True)
class SudokuState:
    """A grid and what belongs into it."""

    cells: Grid
    solution: Grid
    blanks: int
    """Places empty at the start."""
    paid: float = 0.0
    """Rewards of the turns so far."""


class Sudoku(Env[SudokuState]):
    """The agent fills one place or several a turn; a wrong digit ends the episode, as does the full grid."""

    def __init__(
        self,
        *,
        size: int = 9,
        blanks: int | None = None,
        turn_reward: bool = False,
        max_turns: int | None = 60,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the grids.

        Args:
            size: Rows, columns and digits: 4, 6 or 9.
            blanks: Empty places: 6 to 10, 10 to 22 or 10 to 50, by size; None is 8, 14 or 30.
            turn_reward: Pay for filled places, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        InvalidInput.unless(size in BOXES, "size", "be 4, 6 or 9", size, where=_WHERE, do="pass one of them")
        blanks = {4: 8, 6: 14, 9: 30}[size] if blanks is None else blanks
        check_range("blanks", blanks, *BLANKS[size], where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.size, self.blanks, self.turn_reward = size, blanks, turn_reward
        self.chance_score = CHANCE[size] + (TURN_CHANCE if turn_reward else 0.0)
        high, wide = BOXES[size]
        self.hint = "Say ROW COLUMN DIGIT, such as 1 2 3, or several of these with ; between them."
        self.system_prompt = (
            f"Fill every . so that each row, each column and each box of {high} rows and {wide} columns has the digits "
            f"1 to {size} once. Rows and columns are counted from 1, from the top left. {self.hint} A wrong digit ends "
            "the game."
        )
        self.tasks = GeneratedTasks(self._draw, name="puzzles/sudoku")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        grid, full = draw_puzzle(rng, self.size, self.blanks)
        orientation = canonical_symmetry(grid, self.size)
        grid_text, solution_text = (_text(orientation.canonical(item)) for item in (grid, full))
        return TaskDraft(
            prompt=_show_grid(grid, self.size),
            payload={"size": self.size, "grid": grid_text, "solution": solution_text},
            metadata={"symmetry": orientation.symmetry, "digits": _text(orientation.digits), "blanks": grid.count(0)},
        )

    def begin(self, task: Task) -> str:
        symmetry = task.metadata.get("symmetry", 0)
        assert isinstance(symmetry, int), "made by _draw"
        orientation = GridSymmetry(_size_of(task), symmetry, _grid(task.metadata.get("digits", "")))
        cells, solution = (orientation.apply(_grid(task.payload[name])) for name in ("grid", "solution"))
        self.state = SudokuState(cells, solution, cells.count(0))
        return _show_grid(cells, orientation.size)

    def respond(self, action: Action) -> Reply:
        """Fill places in the order in which they are said, until one cannot be filled, and pay."""
        size, before = _size_of(self.task), self.state
        words = plain_answer(action.content).replace(",", " ").replace(";", " ").split()
        if not words or len(words) % 3 or not set(words) <= set(DIGITS[:size]):
            return Reply(observation=f"{self.hint}\n{_show_grid(before.cells, size)}")
        cells, problem, is_wrong = list(before.cells), "", False
        numbers = [int(word) for word in words]
        for row, column, digit in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            place = (row - 1) * size + column - 1
            is_wrong = not cells[place] and before.solution[place] != digit
            if is_wrong or cells[place]:
                state = "filled already" if cells[place] else f"not {digit}"
                problem = f"Row {row}, column {column} is {state}.\n"
                break
            cells[place] = digit
        is_solved = 0 not in cells
        progress = (before.blanks - cells.count(0)) / before.blanks
        earned = earned_so_far(is_solved, progress, turn_reward=self.turn_reward)
        self.state = SudokuState(tuple(cells), before.solution, before.blanks, earned)
        if not is_solved and not is_wrong:
            return Reply(observation=problem + _show_grid(cells, size), reward=earned - before.paid)
        end = "Solved." if is_solved else f"Wrong: {problem.strip()}"
        return end_game(end, earned - before.paid, solved=is_solved)

    def oracle(self) -> str:
        """Fill the first row that is not full."""
        size, cells = _size_of(self.task), self.state.cells
        row = cells.index(0) // size
        places = [place for place in range(row * size, (row + 1) * size) if not cells[place]]
        return "; ".join(f"{row + 1} {place % size + 1} {self.state.solution[place]}" for place in places)

    fork_state = share_state


def _size_of(task: Task) -> int:
    size = task.payload["size"]
    assert isinstance(size, int), "made by _draw"
    return size


def _text(grid: Sequence[int]) -> str:
    return "".join(map(str, grid))


def _grid(text: JsonValue) -> Grid:
    return tuple(map(int, str(text)))


def _show_grid(cells: Sequence[int], size: int) -> str:
    rows = (cells[start : start + size] for start in range(0, size * size, size))
    return "\n".join(" ".join(str(digit) if digit else "." for digit in row) for row in rows)
