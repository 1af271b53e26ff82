"""Cross a frozen lake without falling into a hole: `puzzles/frozen_lake-v0`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._grids import MOVES, board_of, canonical_rows, neighbors, rows_of
from envgym.envs.puzzles._rewards import TURN_SHARE, earned_so_far, end_game
from envgym.errors import InvalidInput
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

ICE, HOLE, GOAL, AGENT = ".OGA"
SLIP = 3
"""On slippery ice one move in so many goes to a side, while slips are left."""
MAX_MOVES = 30
"""How many moves a lake needs at most, however it slips; at least 2."""
MAX_DRAWS = 20_000
_WHERE = "puzzles/frozen_lake-v0"
_HINT = "Say up, down, left or right."


@dataclass(frozen=True, slots=True)
class LakeMap:
    """What does not change in an episode."""

    size: int
    cells: str
    """Row by row, without the agent."""
    start: int
    moves: tuple[tuple[float, ...], ...]
    """By slips left and place: how many moves the goal is away, however it slips; infinite where it can be missed."""

    @classmethod
    def of(cls, rows: Sequence[str], slips: int) -> "LakeMap":
        """Survey a lake on which the agent stands on its start."""
        cells = "".join(rows)
        special = (cells.index(GOAL), *(place for place, cell in enumerate(cells) if cell == HOLE))
        moves = survey(len(rows), special, slips)[:, 0]
        return cls(len(rows), cells.replace(AGENT, ICE), cells.index(AGENT), tuple(map(tuple, moves.tolist())))


@dataclass(frozen=True, slots=True)
class FrozenLakeState:
    """Where the agent is."""

    lake: LakeMap
    place: int
    slips: int
    """How often the ice may still carry the agent to a side."""
    nearest: float
    """How few moves the goal has been away, were there no slips."""
    paid: float = 0.0
    """Rewards of the turns so far."""


class FrozenLake(Env[FrozenLakeState]):
    """The agent says one move a turn, sees the lake, and must reach G without stepping on O."""

    def __init__(
        self,
        *,
        size: int = 4,
        holes: int | None = None,
        slips: int = 0,
        turn_reward: bool = False,
        max_turns: int | None = MAX_MOVES,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the lakes.

        Args:
            size: Rows and columns, 3 to 10.
            holes: 1 to a quarter of the places, an eighth where it is slippery; None is the most there may be.
            slips: How often at most the ice carries the agent to a side, 0 to 5; 0 is ice that is not slippery.
            turn_reward: Pay for coming nearer to the goal, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut; no lake needs more than 30.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        check_range("size", size, 3, 10, where=_WHERE)
        check_range("slips", slips, 0, 5, where=_WHERE)
        most = size * size // (8 if slips else 4)
        holes = most if holes is None else holes
        check_range("holes", holes, 1, most, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.size, self.holes, self.slips, self.turn_reward = size, holes, slips, turn_reward
        hit = 1 / (holes + 1)
        self.chance_score = hit + (TURN_SHARE * (1 - hit) if turn_reward else 0.0)
        slippery = f" The ice is slippery: while slips are left, 1 move in {SLIP} goes to a side." if slips else ""
        self.system_prompt = f"You are {AGENT} on a frozen lake. Reach {GOAL}; {HOLE} is a hole.{slippery} {_HINT}"
        self.tasks = GeneratedTasks(self._draw, name="puzzles/frozen_lake")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        """Draw a start and special places, of which one is the goal and the others are holes.

        Each of them could be the goal, so the first of them that a blind walk meets is it once in holes + 1.
        """
        start, special, moves = self._draw_places(rng)
        cells = [ICE] * self.size**2
        for place, cell in ((start, AGENT), (special[0], GOAL), *((hole, HOLE) for hole in special[1:])):
            cells[place] = cell
        rows = rows_of("".join(cells), self.size)
        board, symmetry = canonical_rows(rows)
        return TaskDraft(
            prompt=_show_map(rows, self.slips or None),
            payload={"board": list(board)},
            metadata={"symmetry": symmetry, "size": self.size, "holes": self.holes, "moves": moves},
        )

    def _draw_places(self, rng: np.random.Generator) -> tuple[int, tuple[int, ...], int]:
        for _ in range(MAX_DRAWS):
            start, *special = rng.permutation(self.size**2)[: self.holes + 2].tolist()
            if any(way[start] in special for way in neighbors(self.size)):
                continue  # one move away: too near, whatever else
            moves = survey(self.size, special, self.slips)[-1, :, start]
            if moves.max() <= MAX_MOVES:
                return start, tuple(special), int(moves[0])
        got, do = (self.size, self.holes, self.slips), "lower holes or slips, or raise size"
        raise InvalidInput.of("(size, holes, slips)", "leave lakes to cross", got, where=_WHERE, do=do)

    def begin(self, task: Task) -> str:
        lake = LakeMap.of(board_of(task), self.slips)
        self.state = FrozenLakeState(lake, lake.start, self.slips, lake.moves[0][lake.start])
        return self._show()

    def respond(self, action: Action) -> Reply:
        word = plain_answer(action.content)
        if word not in MOVES:
            return Reply(observation=f"{_HINT}\n{self._show()}")
        state, lake, slip = self.state, self.state.lake, self._slip()
        place = neighbors(lake.size)[(MOVES.index(word) + slip) % 4][state.place]
        nearest = min(state.nearest, lake.moves[0][place])
        first, is_goal = lake.moves[0][lake.start], lake.cells[place] == GOAL
        earned = earned_so_far(is_goal, (first - nearest) / first, turn_reward=self.turn_reward)
        self.state = FrozenLakeState(lake, place, state.slips - abs(slip), nearest, earned)
        if lake.cells[place] == ICE:
            return Reply(observation=self._show(), reward=earned - state.paid)
        end = "You reached the goal." if is_goal else "You fell into a hole."
        return end_game(end, earned - state.paid, goal=is_goal)

    def _slip(self) -> int:
        """Return -1 or 1 where the ice carries the agent to that side of its move, else 0."""
        if not self.state.slips:
            return 0
        draw = int(self.np_random.integers(2 * SLIP))
        return (-1, 1)[draw] if draw < 2 else 0

    def _show(self) -> str:
        state = self.state
        cells = state.lake.cells[: state.place] + AGENT + state.lake.cells[state.place + 1 :]
        return _show_map(rows_of(cells, state.lake.size), state.slips if self.slips else None)

    def oracle(self) -> str:
        """Say the move after which the fewest moves are needed, however the ice slips."""
        state, moves = self.state, self.state.lake.moves
        ways = [way[state.place] for way in neighbors(state.lake.size)]

        def needed(move: int) -> float:
            sides = (ways[move - 1], ways[(move + 1) % 4]) if state.slips else ()
            return max(moves[state.slips][ways[move]], *(moves[state.slips - 1][side] for side in sides), 0.0)

        return MOVES[min(range(4), key=needed)]

    fork_state = share_state


def survey(size: int, special: Sequence[int], slips: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return how many moves the goal is away at worst: by slips left, by which special place is it, by place.

    W_k(s) = 1 + min_a max(W_k(a), W_{k-1}(side of a), W_{k-1}(other side of a)); 0 at the goal, infinite at a hole.
    """
    ways, num = np.array(neighbors(size)), len(special)
    fixed = np.full((num, size * size), np.inf)
    fixed[range(num), special] = 0.0
    is_special = np.zeros(size * size, dtype=bool)
    is_special[list(special)] = True
    layers: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
    for _ in range(slips + 1):
        sides = layers[-1][:, ways] if layers else np.zeros((num, 4, 1))
        sides = np.maximum(np.roll(sides, 1, axis=1), np.roll(sides, -1, axis=1))
        worst, before = fixed, None
        while before is None or not np.array_equal(before, worst):
            moved = np.maximum(worst[:, ways], sides).min(axis=1) + 1
            worst, before = np.where(is_special, fixed, moved), worst
        layers.append(worst)
    return np.stack(layers)


def _show_map(rows: Sequence[str], slips: int | None) -> str:
    return "\n".join(rows) + (f"\nSlips left: {slips}." if slips is not None else "")
