"""Measure what texts earn that were written before the task, and write `envs/math/data/instructions_chance.toml`.

Run: python scripts/measure_instructions_chance.py. The agent knows how tasks are drawn, but not which one it has. It
writes lists of topics and of words that are asked for, of several lengths, in many forms: in lower or upper case, with
bullets, sections, paragraphs, a title, placeholders, first and last phrases, or as a JSON object. Up to three texts are
chosen on some tasks, what they earn is measured on others, and the upper end of the interval of 95 %, rounded up to a
hundredth and at least 0.01, is what is declared. `base` is what they earn where topic and length alone count, the most
of all settings and of a kind that asks for no length: with chosen kinds of constraints it is no more.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from envgym.core.tasks import Split
from envgym.envs.math._instructions.kinds import KINDS
from envgym.envs.math._instructions.writer import DATA
from envgym.envs.math.instructions import (
    MAX_ATTEMPTS,
    MAX_CONSTRAINTS,
    REWARDS,
    Instructions,
    InstructionTask,
    grade_text,
)
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import estimate_mean

PATH = Path(__file__).resolve().parent.parent / "envs" / "math" / "data" / "instructions_chance.toml"
NUM_CHOOSING, NUM_MEASURED = 200, 600
LENGTHS = (52, 66, 80, 94, 110, 130)
FORMS = ("words", "related", "capitals", "sections", "paragraphs", "list", "everything", "json")
LOWEST = 0.01
HEAD = """\
# What 1 to 3 texts earn that were written before the task, at most: the upper end of the interval of 95 %, rounded up.
# Written by scripts/measure_instructions_chance.py."""


def main() -> None:
    """Measure all numbers of constraints, and write the file."""
    draws = generator("measure_instructions_chance")
    texts = [blind_text(draws, form, length) for form, length in product(FORMS, LENGTHS)]
    rows: dict[str, dict[str, list[float]]] = {reward: {} for reward in REWARDS}
    base = [LOWEST] * MAX_ATTEMPTS
    for num, kinds in (*((num, tuple(KINDS)) for num in range(1, MAX_CONSTRAINTS + 1)), (1, ("no_commas",))):
        tasks = list(draw_tasks(num, kinds))
        grades = [[grade_text(text, task).components for text in texts] for task in tasks]
        about = [[part["topic"] * part["own_words"] for part in row] for row in grades]
        base = list(map(max, base, measure(np.array(about), draws)))
        for reward in REWARDS if len(kinds) > 1 else ():
            rows[reward][str(num)] = measure(np.array([[part[reward] for part in row] for row in grades]), draws)
        print(num, kinds, {reward: rows[reward][str(num)] for reward in REWARDS}, base, flush=True)
    for reward in REWARDS:
        rows[reward]["base"] = base
    lines = [HEAD]
    for reward in REWARDS:
        lines += ["", f"[{reward}]"]
        lines += [
            f"{name} = [{', '.join(f'{value:g}' for value in row)}]" for name, row in sorted(rows[reward].items())
        ]
    write_atomic(PATH, "\n".join(lines) + "\n")


def draw_tasks(num: int, kinds: Sequence[str]) -> Iterator[InstructionTask]:
    """Yield tasks of both splits, as many of each."""
    env = Instructions(constraints=num, kinds=kinds)
    for index in range((NUM_CHOOSING + NUM_MEASURED) // 2):
        for split in Split:
            env.reset(options={"split": split.value, "index": index})
            yield env.state.given


def measure(earned: np.ndarray, rng: np.random.Generator) -> list[float]:
    """Return what the best texts earn at most in 1 to 3 attempts; `earned` is [tasks, texts]."""
    chance: list[float] = []
    best = np.zeros(len(earned))
    for _ in range(MAX_ATTEMPTS):
        sums = np.maximum(best[:, None], earned)[:NUM_CHOOSING].sum(axis=0)
        best = np.maximum(best, earned[:, int(sums.argmax())])
        rewards = {str(index): [float(value)] for index, value in enumerate(best[NUM_CHOOSING:])}
        high = math.ceil(100 * estimate_mean(rewards, rng=rng).interval.high) / 100
        chance.append(max(high, LOWEST, *chance))
    return chance


def blind_text(rng: np.random.Generator, form: str, length: int) -> str:
    """Write a text of about `length` words: topics as often as the length asks for, then other words once."""
    times = max(2, length // 30)
    topics = [topic for field in DATA["fields"] for topic in field["topics"]]
    related = list(dict.fromkeys(word for field in DATA["fields"] for word in field["related"]))
    others = [
        *related,
        *DATA["common"],
        *(word for clause in DATA["clauses"] for word in clause.split() if word != "{}"),
    ]
    others = [word for word in dict.fromkeys(map(str.lower, others)) if word not in topics]
    num = max(1, (length - length // 2) // times)
    chosen = [topics[at] for at in rng.permutation(len(topics))[:num]]
    words = chosen * times
    spare = max(0, length - len(words))
    words += others[:spare] if form == "related" else others[-spare:] if spare else []
    return shape(form, [words[at] for at in rng.permutation(len(words))])


def shape(form: str, words: Sequence[str]) -> str:
    """Put words into a form."""
    text = " ".join(words)
    match form:
        case "capitals":
            return text.upper()
        case "sections":
            return f"part 1\n{text}\npart 2\nletters kkk www ppp ggg"
        case "paragraphs":
            third = len(words) // 3
            return "\n\n".join(" ".join(part) for part in (words[:third], words[third : 2 * third], words[2 * third :]))
        case "list":
            return "\n".join(f"- {' '.join(words[at::4])}" for at in range(4))
        case "everything":
            start, end = DATA["starts"][0].lower(), DATA["ends"][0].lower()
            lines = [f"{start}. [a] [b]", "<<title>>", f"{text}. kkkkk wwwww", "", "- one.", "- two.", end]
            return "\n".join(lines)
        case "json":
            half = len(words) // 2
            return json.dumps({"advice": " ".join(words[:half]), "summary": " ".join(words[half:])})
    return text


if __name__ == "__main__":
    main()
