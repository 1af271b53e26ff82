"""How puzzles pay: 1 for the solution, and with `turn_reward` a share of it for progress, turn by turn."""

from envgym.core.turns import Scored
from envgym.records import Reply

TURN_SHARE = 0.5
"""What all progress is worth, with `turn_reward`, where the puzzle is not solved."""


def earned_so_far(is_solved: bool, progress: float, *, turn_reward: bool) -> float:
    """Return the worth of an episode so far; `progress` lies in [0, 1]."""
    return float(is_solved) or turn_reward * TURN_SHARE * progress


def end_game(text: str, reward: float, **components: bool) -> Reply:
    """Return the last reply of an episode, with what the turn pays."""
    scored = Scored(value=reward, components={name: float(holds) for name, holds in components.items()})
    return Reply(observation=text, reward=scored, terminated=True)
