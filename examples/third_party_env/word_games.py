"""Spell a word backwards: `word_games/backwards-v0`."""

import numpy as np

from envgym.authoring import GeneratedTasks, RubricEnv, TaskDraft
from envgym.verifiers import Exact


def draw(rng: np.random.Generator) -> TaskDraft:
    """Draw a word of three to six letters."""
    word = "".join(chr(letter) for letter in rng.integers(ord("a"), ord("z") + 1, size=rng.integers(3, 7)))
    return TaskDraft(prompt=f"Spell {word} backwards.", payload={"word": word, "answer": word[::-1]})


class Backwards(RubricEnv):
    """Spell a word backwards."""

    tasks = GeneratedTasks(draw, name="word_games/backwards")
    rubric = Exact()
