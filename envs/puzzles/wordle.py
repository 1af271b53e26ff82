"""Find a hidden word of five letters: `puzzles/wordle-v0`."""

from functools import lru_cache
from typing import Any

from envgym.authoring import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.rewards import Scored
from envgym.core.tasks import Split, Task
from envgym.env import Env, Reply
from envgym.envs.puzzles._codes import Board, chance_score, narrowing_guess
from envgym.envs.puzzles._play import check_range, read_answer
from envgym.envs.puzzles._wordle import LENGTH, all_marks, encoded, hidden_codes, load_words, marks, number_of
from envgym.seeds import generator

MAX_GUESSES = 12
_WHERE = "puzzles/wordle-v0"
_HINT = "Say one English word of five letters."


class Wordle(Env[Board]):
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

    def begin(self, task: Task) -> str:
        """Hide the word."""
        self.state = Board(str(task.payload["word"]))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Mark a guess, and pay."""
        guess = read_answer(action).replace(" ", "")
        if len(guess) != LENGTH or not guess.isascii() or not guess.isalpha():
            return Reply(observation=_HINT)
        if self.only_words and guess not in load_words().allowed:
            return Reply(observation=f"{guess.upper()} is not in the word list. {_HINT}")
        board = self.state
        found = marks(board.code, guess)
        self.state = board.after(guess, found.count("G"), turn_reward=self.turn_reward)
        earned, is_found = self.state.paid - board.paid, guess == board.code
        left = self.guesses - len(self.state.guesses)
        if left and not is_found:
            text = f"{' '.join(guess.upper())}\n{' '.join(found)}\nGuesses left: {left}."
            return Reply(observation=text, reward=earned)
        reward = Scored(value=earned, components={"found": float(is_found)})
        end = "Correct." if is_found else f"The word was {board.code.upper()}."
        return Reply(observation=end, reward=reward, terminated=True)

    def oracle(self) -> str:
        """Guess a word that agrees with all marks and leaves few others at worst; the last guess is the word itself."""
        board = self.state
        if len(board.guesses) == self.guesses - 1:
            return board.code
        possible = hidden_codes()
        for guess in board.guesses:
            agrees = all_marks(possible, encoded((guess,))[0]) == number_of(marks(board.code, guess))
            possible = possible[agrees]
        return bytes(narrowing_guess(possible, all_marks)).decode("ascii")

    def fork_state(self) -> Board:
        """Share the board: it is immutable."""
        return self.state


@lru_cache(maxsize=MAX_GUESSES)
def _all_tasks(guesses: int) -> ListTasks:
    """Return the words in an order that tells nothing; nobody changes them, so all envs may share them."""
    words, prompt = load_words().hidden, f"{_HINT} Guesses left: {guesses}."
    order = generator("puzzles/wordle").permutation(len(words)).tolist()
    return ListTasks([TaskDraft(prompt=prompt, payload={"word": words[place]}) for place in order])
