"""Measure what random baselines prove, and write it to `envs/math/data/metamath_chance.toml`.

Run: python scripts/measure_metamath_chance.py. Three agents: one says labels drawn from all that may be used, turn by
turn, with `ph` for what a goal does not determine; one says all labels in turn, hypotheses first, then theorems without
premises; one says the proof of another statement of the same family and level. The best of them is the chance score of
a family at a level, counted with one more statement proved and one more not.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import envgym
from envgym.conformance.agents import Agent
from envgym.conformance.env_under_test import play
from envgym.core.tasks import Split
from envgym.envs.math._families import LEVELS
from envgym.envs.math._metamath.statements import FAMILIES, MAX_HYPOTHESES
from envgym.envs.math._metamath.tasks import statement_tasks
from envgym.envs.math._metamath.theory import Rule, propositional
from envgym.files import write_atomic
from envgym.seeds import generator

NUM_TASKS = 200
PATH = Path(__file__).resolve().parent.parent / "envs" / "math" / "data" / "metamath_chance.toml"
HEAD = f"""\
# Share of the statements of each family that a random baseline proves at levels 1, 2 and 3: the best of three agents on
# {NUM_TASKS} statements in 40 turns, counted with one more statement proved and one more not. Written by
# scripts/measure_metamath_chance.py.
"""


def main() -> None:
    """Measure all families, and write the file."""
    rows = []
    for name in sorted(FAMILIES):
        shares = [measure(name, level) for level in LEVELS]
        print(name, json.dumps(shares), flush=True)
        rows.append(
            f"{name} = {[round((max(share.values()) * NUM_TASKS + 1) / (NUM_TASKS + 2), 3) for share in shares]}"
        )
    write_atomic(PATH, "\n".join([HEAD, *rows]) + "\n")


def measure(family: str, level: int) -> Mapping[str, float]:
    """Return the share of statements that each agent proves."""
    tasks = [statement_tasks(family, level, ()).task(Split.TRAIN, index) for index in range(NUM_TASKS)]
    theory = propositional()
    rules = [theory.rule(item) for item in theory.provable]
    hypotheses = [f"h{number}" for number in range(1, MAX_HYPOTHESES + 1)]
    labels = [*hypotheses, *map(_step, sorted(rules, key=lambda rule: len(rule.premises)))]

    def drawing(index: int) -> Agent:
        draw = generator("measure_metamath_chance", family, level, index)
        return lambda turn, observation: labels[int(draw.integers(len(labels)))]

    def borrowing(index: int) -> Agent:
        proof = tasks[(index + 1) % NUM_TASKS].metadata["proof"]
        assert isinstance(proof, list)
        return lambda turn, observation: str(proof[turn % len(proof)])

    agents = {
        "drawn": drawing,
        "in turn": lambda index: lambda turn, observation: labels[turn % len(labels)],
        "borrowed": borrowing,
    }
    with closing(envgym.make("math/metamath-v0", families=family)) as env:
        return {
            name: sum(play(env, agent(index), seed=index, task=task).reward for index, task in enumerate(tasks))
            / NUM_TASKS
            for name, agent in agents.items()
        }


def _step(rule: Rule) -> str:
    """Write a step with `ph` for all that the goal does not determine."""
    given = ", ".join(f"{name} := ph" for name in rule.free)
    return f"{rule.label} with {given}" if given else rule.label


if __name__ == "__main__":
    main()
