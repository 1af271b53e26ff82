"""Push every box onto a goal: `puzzles/sokoban-v0`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._grids import MOVES, board_of, canonical_rows
from envgym.envs.puzzles._rewards import earned_so_far, end_game
from envgym.envs.puzzles._sokoban import (
    SokobanBoard,
    all_pulls,
    apply_move,
    next_push,
    pulls,
    reach,
    read_board,
    write_board,
)
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

MOVES_AT_ONCE = 10
MAX_PLAN, MAX_MOVES = 40, 60
"""Moves of the solution of a room at most, and moves that the agent has."""
SEARCHED = 300
"""States among which the generator looks for a start."""
INNER_WALLS = 7
"""One place in so many, inside, is a wall."""
CHANCE = {1: (0.25, 0.15), 2: (0.12, 0.05), 3: (0.05,)}
"""What moves that do not look earn at most, by boxes and by size from the smallest on; measured, see the card."""
TURN_CHANCE = 0.15
"""What they earn at most besides, with `turn_reward`."""
_WHERE = "puzzles/sokoban-v0"
_HINT = f"Say up, down, left or right, or up to {MOVES_AT_ONCE} of these words."


@dataclass(frozen=True, slots=True)
class SokobanState:
    """A room and how things stand in it."""

    room: SokobanBoard
    player: int
    boxes: int
    left: int
    """Moves left."""
    at_start: int
    """Boxes on goals at the start."""
    best: int
    """The most boxes that have been on goals."""
    paid: float = 0.0
    """Rewards of the turns so far."""

    @property
    def on_goals(self) -> int:
        """Boxes on goals."""
        return (self.boxes & self.room.goals).bit_count()


class Sokoban(Env[SokobanState]):
    """The agent says moves; the episode ends when all boxes are on goals or no move is left."""

    system_prompt = (
        "Push every box ($) onto a goal (.). You are @; # is a wall, - is floor, * is a box on a goal, + is you on a "
        f"goal. You can push one box, and pull none. {_HINT}"
    )

    def __init__(
        self,
        *,
        size: int = 7,
        boxes: int = 2,
        turn_reward: bool = False,
        max_turns: int | None = 40,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the rooms.

        Args:
            size: Rows and columns, walls around included, 6 (7 for 3 boxes) to 10: of size 5 there are only 18 tasks.
            boxes: 1 to 3.
            turn_reward: Pay for boxes on goals, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        check_range("boxes", boxes, 1, 3, where=_WHERE)
        smallest = max(6, boxes + 4)
        check_range("size", size, smallest, 10, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.size, self.boxes, self.turn_reward = size, boxes, turn_reward
        chance = CHANCE[boxes]
        self.chance_score = chance[min(size - smallest, len(chance) - 1)] + (TURN_CHANCE if turn_reward else 0.0)
        self.tasks = GeneratedTasks(self._draw, name="puzzles/sokoban")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        start = None
        while start is None:
            start = _draw_start(rng, _draw_room(rng, self.size, self.boxes))
        room, player, boxes, pushes, moves = start
        rows = write_board(room, player, boxes)
        board, symmetry = canonical_rows(rows)
        return TaskDraft(
            prompt="\n".join([*rows, f"Moves left: {MAX_MOVES}."]),
            payload={"board": list(board)},
            metadata={"symmetry": symmetry, "pushes": pushes, "moves": moves, "boxes": self.boxes, "size": self.size},
        )

    def begin(self, task: Task) -> str:
        room, player, boxes = read_board(board_of(task))
        on_goals = (boxes & room.goals).bit_count()
        self.state = SokobanState(room, player, boxes, MAX_MOVES, on_goals, on_goals)
        return self._show()

    def respond(self, action: Action) -> Reply:
        words = plain_answer(action.content).replace(",", " ").split()
        if not 1 <= len(words) <= MOVES_AT_ONCE or not set(words) <= set(MOVES):
            return Reply(observation=f"{_HINT}\n{self._show()}")
        before = now = self.state
        for word in words:
            if now.left and now.boxes != now.room.goals:
                now = _next_state(now, now.room.steps[MOVES.index(word)])
        is_solved = now.boxes == now.room.goals
        progress = (now.best - now.at_start) / max(1, self._num_boxes - now.at_start)
        earned = earned_so_far(is_solved, progress, turn_reward=self.turn_reward)
        self.state = SokobanState(now.room, now.player, now.boxes, now.left, now.at_start, now.best, earned)
        if now.left and not is_solved:
            return Reply(observation=self._show(), reward=earned - before.paid)
        end = "Solved: every box is on a goal." if is_solved else "No moves left."
        return end_game(end, earned - before.paid, solved=is_solved)

    @property
    def _num_boxes(self) -> int:
        return self.state.boxes.bit_count()

    def _show(self) -> str:
        now = self.state
        return "\n".join([*write_board(now.room, now.player, now.boxes), f"Moves left: {now.left}."])

    def oracle(self) -> str:
        """Walk to the next box of a solution with the fewest pushes, and push it; at a dead end, any move."""
        now = self.state
        moves = next_push(now.room, now.player, now.boxes, all_pulls(now.room)) or [0]
        return " ".join(MOVES[move] for move in moves[:MOVES_AT_ONCE])

    fork_state = share_state


def _next_state(now: SokobanState, step: int) -> SokobanState:
    player, boxes = apply_move(now.room, now.player, now.boxes, step)
    on_goals = (boxes & now.room.goals).bit_count()
    return SokobanState(now.room, player, boxes, now.left - 1, now.at_start, max(now.best, on_goals), now.paid)


def _draw_room(rng: np.random.Generator, size: int, num_goals: int) -> SokobanBoard:
    inside = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    while True:
        places = rng.permutation(inside).tolist()
        floor = sum(1 << place for place in places[len(inside) // INNER_WALLS :])
        goals = sum(1 << place for place in places[-num_goals:])
        if reach(floor, floor & -floor, size) == floor:
            return SokobanBoard(size, floor, goals)


def _draw_start(rng: np.random.Generator, room: SokobanBoard) -> tuple[SokobanBoard, int, int, int, int] | None:
    """Draw room, player, boxes, number of pushes and moves; None where the room has no start that is far enough."""
    best_pushes = pulls(room, SEARCHED)
    num_boxes = room.goals.bit_count()
    far = [key for key, (pushes, _, _) in best_pushes.items() if pushes >= num_boxes + 1 and key[0] & room.goals == 0]
    if not far:
        return None
    boxes, corner = far[rng.integers(len(far))]
    region = reach(room.floor & ~boxes, corner, room.width)
    places = [1 << place for place in range(region.bit_length()) if region >> place & 1]
    player = places[rng.integers(len(places))]
    moves, at, now = 0, player, boxes
    while (plan := next_push(room, at, now, best_pushes)) is not None:
        moves += len(plan)
        for move in plan:
            at, now = apply_move(room, at, now, room.steps[move])
    return (room, player, boxes, best_pushes[boxes, corner][0], moves) if moves <= MAX_PLAN else None
