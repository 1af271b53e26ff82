"""Find a hidden word of five letters: `puzzles/wordle-v0`."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envgym.authoring import ListTasks, TaskDraft, check_range
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.envs.puzzles._codes import Codes, GuessingEnv, Hint, chance_score
from envgym.envs.puzzles._wordle import LENGTH, encode_words, hidden_codes, load_words, mark_letters, number_marks
from envgym.records import Reply
from envgym.seeds import generator
from envgym.verifiers.extract import plain_answer

MAX_GUESSES = 12
_WHERE = "puzzles/wordle-v0"
_HINT = "Say one English word of five letters."


class Wordle(GuessingEnv):
    """Every word of the list is a guess; the episode ends with the hidden word or the last guess."""

    system_prompt = (
        f"Find the hidden word. {_HINT} The letters of your word are marked: G is in its place, Y is elsewhere in the "
        "hidden word, - is not in it."
    )

    def __init__(
        self,
        *,
        guesses: int = 6,
        only_words: bool = True,
        turn_reward: bool = False,
        max_turns: int | None = 15,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the games.

        Args:
            guesses: 1 to 12.
            only_words: Refuse guesses that are not in the list; otherwise any five letters are a guess.
            turn_reward: Pay for letters in their places, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut; messages that are no guess count too.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, or the word list is not installed.
        """
        check_range("guesses", guesses, 1, MAX_GUESSES, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.guesses, self.only_words, self.turn_reward = guesses, only_words, turn_reward
        self.tasks = _all_tasks(guesses)
        hit = guesses / min(self.tasks.size(split) for split in Split)
        self.chance_score = chance_score(hit, LENGTH, turn_reward=turn_reward)

    def code_of(self, task: Task) -> str:
        return str(task.payload["word"])

    def read_guess(self, action: Action) -> str | Reply:
        guess = plain_answer(action.content).replace(" ", "")
        if len(guess) != LENGTH or not guess.isascii() or not guess.isalpha():
            return Reply(observation=_HINT)
        if self.only_words and guess not in load_words().allowed:
            return Reply(observation=f"{guess.upper()} is not in the word list. {_HINT}")
        return guess

    def give_hint(self, code: str, guess: str) -> Hint:
        marks = mark_letters(code, guess)
        return Hint(marks.count("G"), f"{' '.join(guess.upper())}\n{' '.join(marks)}\n")

    def reveal(self, code: str) -> str:
        return f"The word was {code.upper()}."

    def possible_codes(self) -> Codes:
        return hidden_codes()

    def encode(self, code: str) -> Codes:
        return encode_words((code,)).reshape(-1)

    def decode(self, row: Codes) -> str:
        return bytes(row).decode("ascii")

    def number_hints(self, codes: Codes, guess: Codes) -> NDArray[np.int64]:
        return number_marks(codes, guess)


@lru_cache(maxsize=MAX_GUESSES)
def _all_tasks(guesses: int) -> ListTasks:
    """Return the words in an order that tells nothing; nobody changes them, so all envs may share them."""
    words, prompt = load_words().hidden, f"{_HINT} Guesses left: {guesses}."
    order = generator("puzzles/wordle").permutation(len(words)).tolist()
    return ListTasks([TaskDraft(prompt=prompt, payload={"word": words[place]}) for place in order])
