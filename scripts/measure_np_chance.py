"""Measure what answers earn that do not look at the instance, and write it to `envs/puzzles/data/np.toml`.

Run: python scripts/measure_np_chance.py. For each kind, size and number of attempts, the agent knows the kind and the
number of things. It draws its answers at random: subsets of k things, k groups at random or evenly, signs, or optimal
answers to other instances. Which of these it does is chosen on some instances, what it earns is measured on others,
and the upper end of the interval of 95 %, rounded up to a hundredth and at least 0.01, is what is declared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, quality_of
from envgym.envs.puzzles._np.problems import MAX_ATTEMPTS, PROBLEMS, SIZES
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import estimate_mean

PATH = Path(__file__).resolve().parent.parent / "envs" / "puzzles" / "data" / "np.toml"
NUM_CHOOSING, NUM_MEASURED = 200, 1000
LOWEST = 0.01
"""Declared where none was paid."""
HEAD = """\
# What 1 to 5 answers earn that do not look at the instance, at most: the upper end of the interval of 95 %, rounded up.
# Written by scripts/measure_np_chance.py."""

BlindAgent = Callable[[np.random.Generator], Answer]
"""Draws an answer."""


def main() -> None:
    """Measure all kinds and sizes, and write the file."""
    lines = [HEAD]
    for kind, problem in PROBLEMS.items():
        lines += ["", f"[{kind}]"]
        for size, num in zip(SIZES, problem.sizes, strict=True):
            chance, name = measure(kind, problem, num)
            lines.append(f"{size} = [{', '.join(f'{value:g}' for value in chance)}]  # {name}")
            print(kind, lines[-1], flush=True)
    write_atomic(PATH, "\n".join(lines) + "\n")


def measure(kind: str, problem: HardProblem, num: int) -> tuple[list[float], str]:
    """Return what the best agent earns at most in 1 to 5 attempts, and what it does in the last case."""
    draws = generator("measure_np_chance", kind, num)
    instances = [problem.draw_improvable(draws, num) for _ in range(NUM_CHOOSING + NUM_MEASURED)]
    agents = blind_agents(problem, instances[0], [problem.solve(instance) for instance in instances[:NUM_CHOOSING]])
    chosen = {name: best_so_far(problem, agent, instances[:NUM_CHOOSING], draws) for name, agent in agents.items()}
    chance: list[float] = []
    name = ""
    for attempt in range(MAX_ATTEMPTS):
        name = max(chosen, key=lambda name: sum(row[attempt] for row in chosen[name]))
        rows = best_so_far(problem, agents[name], instances[NUM_CHOOSING:], draws)
        rewards = {str(index): [row[attempt]] for index, row in enumerate(rows)}
        high = math.ceil(100 * estimate_mean(rewards, rng=draws).interval.high) / 100
        chance.append(max(high, LOWEST, *chance))
    return chance, name


def blind_agents(problem: HardProblem, instance: Instance, solutions: Sequence[Answer]) -> Mapping[str, BlindAgent]:
    """Return the agents by what they do; of the instance they know the numbers of things and groups."""
    num, groups = problem.num_things(instance), problem.num_groups(instance)

    def subset(size: int) -> BlindAgent:
        return lambda rng: tuple((rng.permutation(num)[:size] + 1).tolist())

    def grouped(used: int) -> BlindAgent:
        return lambda rng: tuple((rng.integers(used, size=num) + 1).tolist())

    def evenly(used: int) -> BlindAgent:
        return lambda rng: tuple((rng.permutation(num) % used + 1).tolist())

    def signed(rng: np.random.Generator) -> Answer:
        return tuple(((np.arange(num) + 1) * (2 * rng.integers(2, size=num) - 1)).tolist())

    agents: dict[str, BlindAgent] = {"solutions of others": lambda rng: solutions[int(rng.integers(len(solutions)))]}
    match problem.form:
        case AnswerForm.SUBSET:
            agents |= {f"{size} of {num} things": subset(size) for size in range(1, num + 1)}
        case AnswerForm.GROUPS:
            agents |= {f"{used} groups": grouped(used) for used in range(1, groups + 1)}
            agents |= {f"{used} groups, evenly": evenly(used) for used in range(1, groups + 1)}
        case AnswerForm.LITERALS:
            agents["random signs"] = signed
    return agents


def best_so_far(
    problem: HardProblem, agent: BlindAgent, instances: Sequence[Instance], rng: np.random.Generator
) -> list[list[float]]:
    """Return, for each instance, the quality of the best of the first 1 to 5 answers."""
    rows = []
    for instance in instances:
        optimum, baseline, row = problem.optimum(instance), problem.baseline(instance), [0.0]
        for _ in range(MAX_ATTEMPTS):
            value = problem.evaluate(instance, agent(rng))
            row.append(max(row[-1], quality_of(value, optimum, baseline) if isinstance(value, int) else 0.0))
        rows.append(row[1:])
    return rows


if __name__ == "__main__":
    main()
