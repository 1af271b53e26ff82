"""Measure what random actions earn in `puzzles/science-v0`, and write `envs/puzzles/data/science_chance.toml`.

Run: python scripts/measure_science_chance.py [--episodes 4]. In each turn the agent draws among the actions that can be
done, except those that focus on something: these end an episode, mostly without a reward. Listing the actions takes
long, so there are few episodes, and the highest score of a type counts.
"""

import argparse
from pathlib import Path

from envgym.core.tasks import Split
from envgym.envs.puzzles._science_simulator import shared_games
from envgym.envs.puzzles.science import KINDS, Science
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import estimate_success

PATH = Path(__file__).resolve().parent.parent / "envs" / "puzzles" / "data" / "science_chance.toml"
TURNS = 50
HEAD = """\
# What random actions that can be done earn in {turns} turns. `solved`: the upper end of the interval of 95 % over all
# episodes; `score`: the highest of {episodes} episodes of each type of task. Written by
# scripts/measure_science_chance.py.
"""


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4)
    episodes = parser.parse_args().episodes
    lines, solved = ["", "[score]"], dict[str, list[float]]()
    for kind in KINDS:
        scores = [play(kind, index) for index in range(episodes)]
        solved |= {f"{kind} {index}": [float(score >= 1.0)] for index, score in enumerate(scores)}
        lines.append(f"{kind} = {max(scores):.2f}")
        print(kind, scores, flush=True)
    rate = estimate_success(solved).interval.high
    head = HEAD.format(turns=TURNS, episodes=episodes)
    write_atomic(PATH, "\n".join([f"{head}\nsolved = {rate:.3f}", *lines]) + "\n")


def play(kind: str, index: int) -> float:
    """Play a variation with random actions; return the highest score on the way."""
    env = Science(kinds=kind, max_turns=TURNS)
    env.reset(options={"split": Split.TRAIN, "index": index})
    rng, is_over, best = generator("science chance", kind, index), False, 0
    while not is_over:
        actions = shared_games().admissible(env.state.variation, env.state.steps)
        actions = [action for action in actions if not action.startswith("focus")]
        result = env.step(actions[rng.integers(len(actions))])
        is_over, best = result.terminated or result.truncated, max(best, env.state.steps[-1].score)
    return best / 100


if __name__ == "__main__":
    main()
