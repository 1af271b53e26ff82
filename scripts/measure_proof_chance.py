"""Measure what agents prove that do not read the theorem, and write it to `envs/math/data/proofs_chance.toml`.

Run: python scripts/measure_proof_chance.py [FAMILY ...]. Three agents without automation: one says tactics drawn from a
short list, turn by turn; one says the proof of another theorem of the same family and level; one says a single tactic
that tries all of the list by itself, as long as one does something. The best of them is the chance score of a family at
a level, counted with one more theorem proved and one more not.
"""

import argparse
import json
import tomllib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import envgym
from envgym.conformance.agents import Agent, say
from envgym.conformance.env_under_test import play
from envgym.core.tasks import Split, Task
from envgym.envs.math._families import LEVELS
from envgym.envs.math._theorem_tasks import FAMILIES, theorem_tasks
from envgym.files import write_atomic
from envgym.seeds import generator

TACTICS = (
    "intros.",
    "assumption.",
    "reflexivity.",
    "simpl.",
    "split.",
    "left.",
    "right.",
    "exfalso.",
    "constructor.",
    "simpl in *.",
    "subst.",
    "f_equal.",
    "match goal with H : _ |- _ => apply H end.",
    "match goal with H : _ |- _ => destruct H end.",
    "match goal with H : _ |- _ => induction H end.",
    "match goal with H : _ = _ |- _ => rewrite H end.",
    "rewrite Nat.add_comm.",
    "rewrite Nat.mul_comm.",
    "rewrite Nat.add_assoc.",
    "apply Nat.lt_le_incl.",
    "eapply Nat.le_trans.",
)
NUM_TASKS = 24
MAX_TURNS = 60
PATH = Path(__file__).resolve().parent.parent / "envs" / "math" / "data" / "proofs_chance.toml"
HEAD = f"""\
# Share of the theorems of each family that an agent proves that does not read them, at levels 1, 2 and 3: the best of
# three agents on {NUM_TASKS} theorems, in {MAX_TURNS} turns without automation, counted with one more theorem
# proved and one more not. Written by scripts/measure_proof_chance.py.
"""


def main() -> None:
    """Measure families, and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", metavar="FAMILY", nargs="*", help="names (default: all)")
    table: dict[str, list[float]] = tomllib.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    for name in parser.parse_args().families or FAMILIES:
        shares = [measure(name, level) for level in LEVELS]
        print(name, json.dumps(shares), flush=True)
        table[name] = [round((max(share.values()) * NUM_TASKS + 1) / (NUM_TASKS + 2), 3) for share in shares]
        rows = [f"{family} = {table[family]}" for family in sorted(table)]
        write_atomic(PATH, "\n".join([HEAD, *rows]) + "\n")


def measure(family: str, level: int) -> Mapping[str, float]:
    """Return the share of theorems that each agent proves."""
    tasks = [theorem_tasks(family, level, ()).task(Split.TRAIN, index) for index in range(NUM_TASKS)]
    everything = f"repeat first [{' | '.join(f'progress ({tactic[:-1]})' for tactic in TACTICS[::-1])}]."

    def drawing(index: int, task: Task) -> Agent:
        draw = generator("measure_proof_chance", family, level, index)
        return lambda turn, observation: TACTICS[int(draw.integers(len(TACTICS)))]

    def borrowing(index: int, task: Task) -> Agent:
        proof = tasks[(index + 1) % NUM_TASKS].metadata["proof"]
        assert isinstance(proof, list)
        return lambda turn, observation: str(proof[turn]) if turn < len(proof) else "reflexivity."

    agents = {
        "drawn": (drawing, MAX_TURNS),
        "borrowed": (borrowing, MAX_TURNS),
        "all at once": (lambda index, task: say(everything), 1),
    }
    with closing(envgym.make("math/proofs-v0", families=family, tactic_s=2.0)) as env:
        return {
            name: sum(
                play(env, agent(index, task), seed=index, task=task, max_turns=turns).reward
                for index, task in enumerate(tasks)
            )
            / NUM_TASKS
            for name, (agent, turns) in agents.items()
        }


if __name__ == "__main__":
    main()
