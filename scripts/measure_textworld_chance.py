"""Measure what random actions earn in `puzzles/textworld-v0`, and write `envs/puzzles/data/textworld_chance.toml`.

Run: python scripts/measure_textworld_chance.py [--episodes 200]. One agent draws among all actions that can be done,
another one among those that only look, move, read, open and take. Of each game the higher mean counts.
"""

import argparse
from pathlib import Path

from envgym.core.tasks import Split
from envgym.envs.puzzles._textworld_simulator import shared_games
from envgym.envs.puzzles.textworld import GAMES, TextWorld
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import estimate_success

PATH = Path(__file__).resolve().parent.parent / "envs" / "puzzles" / "data" / "textworld_chance.toml"
CAREFUL = ("look", "move", "read", "open", "take")
HEAD = """\
# What random actions earn in {turns} turns: the mean over {episodes} episodes of each game, at the upper end of its
# interval of 95 %. Written by scripts/measure_textworld_chance.py.
"""


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    episodes = parser.parse_args().episodes
    rows: dict[str, list[str]] = {"score": [], "solved": []}
    for game in GAMES:
        played = [[play(game, index, is_careful=careful) for index in range(episodes)] for careful in (False, True)]
        for name, place in (("score", 0), ("solved", 1)):
            highs = [
                estimate_success({str(index): [result[place]] for index, result in enumerate(results)}).interval.high
                for results in played
            ]
            rows[name].append(f"{game} = {max(highs):.3f}")
        print(game, rows["score"][-1], rows["solved"][-1], flush=True)
    head = HEAD.format(turns=TextWorld().max_turns, episodes=episodes)
    write_atomic(PATH, head + "".join(f"\n[{name}]\n" + "\n".join(lines) + "\n" for name, lines in rows.items()))


def play(game: str, index: int, *, is_careful: bool) -> tuple[float, float]:
    """Play a game with random actions; return the reward of the episode, and whether it was won."""
    env = TextWorld(games=game)
    env.reset(options={"split": Split.TRAIN, "index": index})
    rng, is_over, total, solved = generator("textworld chance", game, index), False, 0.0, 0.0
    while not is_over:
        actions = shared_games().admissible(env.state.variation, env.state.steps)
        careful = [action for action in actions if action.startswith(CAREFUL)]
        actions = careful if is_careful and careful else actions
        result = env.step(actions[rng.integers(len(actions))])
        is_over = result.terminated or result.truncated
        total, solved = total + result.reward, float(env.state.steps[-1].is_solved)
    return total, solved


if __name__ == "__main__":
    main()
