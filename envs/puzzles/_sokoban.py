"""Sokoban rooms as bit masks: reading, writing, moving, and how many pushes each state is from its end."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

WALL, FLOOR, GOAL, BOX, BOX_ON_GOAL, PLAYER, PLAYER_ON_GOAL = "#-.$*@+"

Key = tuple[int, int]
"""Boxes, and the lowest place that the player can reach: all that matters for the next push."""
Push = tuple[int, int, int]
"""Pushes to the end, the place of the box to push, and the number of the move that pushes it."""


@dataclass(frozen=True, slots=True)
class SokobanBoard:
    """What does not change; masks have one bit for each place, row by row. The outermost places are walls."""

    width: int
    floor: int
    goals: int

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Return by how many places each of the moves up, right, down and left goes on."""
        return (-self.width, 1, self.width, -1)


def read_board(rows: Sequence[str]) -> tuple[SokobanBoard, int, int]:
    """Return room, player and boxes of a board."""
    cells = "".join(rows)

    def mask(kinds: str) -> int:
        return sum(1 << place for place, cell in enumerate(cells) if cell in kinds)

    room = SokobanBoard(len(rows[0]), mask("-.$*@+"), mask(".*+"))
    return room, mask("@+"), mask("$*")


def write_board(room: SokobanBoard, player: int, boxes: int) -> tuple[str, ...]:
    """Return the board that `read_board` reads."""
    cells: list[str] = []
    bit, last = 1, room.floor.bit_length() + room.width
    while len(cells) < last:
        on_goal = bool(room.goals & bit)
        if boxes & bit:
            cells.append(BOX_ON_GOAL if on_goal else BOX)
        elif player & bit:
            cells.append(PLAYER_ON_GOAL if on_goal else PLAYER)
        else:
            cells.append(GOAL if on_goal else FLOOR if room.floor & bit else WALL)
        bit <<= 1
    text = "".join(cells)
    text += WALL * (-len(text) % room.width)
    return tuple(text[start : start + room.width] for start in range(0, len(text), room.width))


def shift(mask: int, step: int) -> int:
    """Move every place of a mask on by `step`."""
    return mask << step if step > 0 else mask >> -step


def apply_move(room: SokobanBoard, player: int, boxes: int, step: int) -> tuple[int, int]:
    """Return player and boxes after a move; where it is not possible they stay."""
    to = shift(player, step)
    if not to & room.floor:
        return player, boxes
    if to & boxes:
        beyond = shift(to, step)
        return (to, boxes ^ to ^ beyond) if beyond & room.floor & ~boxes else (player, boxes)
    return to, boxes


def reach(free: int, start: int, width: int) -> int:
    """Return the places that can be walked to from `start` over `free` ones."""
    seen, before = start, 0
    while seen != before:
        before = seen
        seen = (seen | seen << 1 | seen >> 1 | seen << width | seen >> width) & free
    return seen


def key_of(room: SokobanBoard, player: int, boxes: int) -> Key:
    """Return a key that a state shares with all from which the same pushes are possible."""
    region = reach(room.floor & ~boxes, player, room.width)
    return boxes, region & -region


def pulls(room: SokobanBoard, limit: int | None = None) -> dict[Key, Push]:
    """Play backwards from the end, by pulling: return the next push of a shortest way for every state found.

    A breadth-first search, so the number of pushes is exact; it stops at `limit` states.
    """
    best_pushes: dict[Key, Push] = {}
    queue: deque[Key] = deque()
    rest = room.floor & ~room.goals
    while rest:
        region = reach(room.floor & ~room.goals, rest & -rest, room.width)
        rest &= ~region
        best_pushes[room.goals, region & -region] = (0, 0, 0)
        queue.append((room.goals, region & -region))
    while queue and (limit is None or len(best_pushes) < limit):
        boxes, corner = queue.popleft()
        region, pushes = reach(room.floor & ~boxes, corner, room.width), best_pushes[boxes, corner][0]
        left = boxes
        while left:
            box = left & -left
            left ^= box
            for move, step in enumerate(room.steps):
                stand, back = shift(box, -step), shift(box, -2 * step)
                if stand & region and back & room.floor & ~boxes:
                    key = key_of(room, back, boxes ^ box ^ stand)
                    if key not in best_pushes:
                        best_pushes[key] = (pushes + 1, stand, move)
                        queue.append(key)
    return best_pushes


@lru_cache(maxsize=64)
def all_pulls(room: SokobanBoard) -> Mapping[Key, Push]:
    """Return the next push for every state of a room that can be solved."""
    return MappingProxyType(pulls(room))


def shortest_path(room: SokobanBoard, player: int, boxes: int, goal: int) -> list[int]:
    """Return the numbers of the moves of a shortest walk to `goal`, which can be reached."""
    free, queue = room.floor & ~boxes, deque([player])
    ways: dict[int, list[int]] = {player: []}
    while goal not in ways:
        place = queue.popleft()
        for move, step in enumerate(room.steps):
            to = shift(place, step)
            if to & free and to not in ways:
                ways[to] = [*ways[place], move]
                queue.append(to)
    return ways[goal]


def next_push(room: SokobanBoard, player: int, boxes: int, pushes: Mapping[Key, Push]) -> list[int] | None:
    """Return the moves up to and with the next push of a shortest solution, or None where there is none."""
    push = pushes.get(key_of(room, player, boxes))
    if push is None or push[0] == 0:
        return None
    _, box, move = push
    return [*shortest_path(room, player, boxes, shift(box, -room.steps[move])), move]
