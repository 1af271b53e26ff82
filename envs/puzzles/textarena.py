"""Games for one player of the package textarena, made reproducible and forkable: `puzzles/textarena-v0`."""

from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, NoOracle
from envgym.envs.puzzles._textarena import TextArenaGame, check_installed, move_of
from envgym.envs.puzzles._textarena_games import GAMES
from envgym.envs.puzzles._textarena_oracles import ORACLES
from envgym.errors import EnvFailure, InvalidInput, check_known, sentence
from envgym.records import Reply

MAX_STARTS = 200
"""Starts that are drawn for one task: those that the oracle cannot win are passed over."""
MAX_ORACLE_MOVES = 200
_WHERE = "puzzles/textarena-v0"


class TextArena(Env[TextArenaGame]):
    """One game; each message is one move."""

    system_prompt = (
        "Play the game. Each of your messages is one move, which you write in square brackets as the game asks for it; "
        "of several, the last one counts."
    )

    def __init__(
        self,
        *,
        game: str = "Mastermind-v0",
        partial_credit: bool = False,
        max_turns: int | None = 2000,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the game.

        Args:
            game: Its name in textarena's registry, without a wrapper; the card lists those that are offered.
            partial_credit: Pay the game's own reward where it is not won, instead of 0.
            max_turns: Turns until the episode is cut; most games have a limit of their own.
            **options: As in `Env`.

        Raises: InvalidInput: textarena is not installed. UnknownName: no such game is offered; near names are listed.
        """
        check_installed(_WHERE)
        check_known("game", game, GAMES, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.game, self.partial_credit = game, partial_credit
        facts = GAMES[game]
        self.chance_score = facts.chance_partial if partial_credit else facts.chance
        self.tasks = GeneratedTasks(self._draw, name=f"{_WHERE} {game}")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        for _ in range(MAX_STARTS):
            seed = int(rng.integers(2**31))
            start = TextArenaGame.start(self.game, seed)
            payload = _payload(self.game, start, seed)
            opening = start.shown()
            if GAMES[self.game].is_sure or self._is_won_by_oracle(start):
                return TaskDraft(prompt=opening, payload=payload, metadata={"game": self.game, "seed": seed})
        raise EnvFailure(f"{self.game}: the oracle wins none of {MAX_STARTS} starts")

    def _is_won_by_oracle(self, start: TextArenaGame) -> bool:
        for _ in range(min(MAX_ORACLE_MOVES, self.max_turns or MAX_ORACLE_MOVES)):
            start.play(self._best(start))
            if start.is_over:
                break
        return start.earned(GAMES[self.game].full) == 1.0

    def begin(self, task: Task) -> str:
        """Start the game. Raises: InvalidInput: the task is of another game, or of another version of textarena."""
        seed = task.metadata.get("seed")
        self.state = TextArenaGame.start(self.game, seed if isinstance(seed, int) else 0)
        if not isinstance(seed, int) or _payload(self.game, self.state, seed) != task.payload:
            do = "take it from an env of the same game and version of textarena"
            raise InvalidInput.of("task", f"be a start of {self.game}", task.id, where=_WHERE, do=do)
        return self.state.shown()

    def respond(self, action: Action) -> Reply:
        """Make the move; at the end pay."""
        move = move_of(action.content)
        if move is None:
            return Reply(observation="Write one short move in square brackets, as the game asks for it.")
        if self.game == "Set-v0" and _repeats(move):
            return Reply(observation="Name three different cards.")
        self.state.play(move)
        text = self.state.shown()
        if not self.state.is_over:
            return Reply(observation=text)
        share = self.state.earned(GAMES[self.game].full)
        is_won = share == 1.0
        value = share if self.partial_credit else float(is_won)
        reward = Scored(value=value, components={"won": float(is_won), "share": share})
        return Reply(observation=text, reward=reward, terminated=True)

    def oracle(self) -> str:
        """Make the best move by the hidden state. Raises: NoOracle: for games that chance decides."""
        if _family(self.game) not in ORACLES:
            do = "use another game where an oracle is needed"
            raise NoOracle(sentence("oracle", "know a sure way to win", "none", where=self.game, do=do))
        return self._best(self.state)

    def _best(self, state: TextArenaGame) -> str:
        return f"[{ORACLES[_family(self.game)](state.inner)}]"

    def fork_state(self) -> TextArenaGame:
        return self.state.copy()


def _payload(game: str, start: TextArenaGame, seed: int) -> JsonObject:
    """Return the identity of a start: its content, and the seed only where the game throws dice later on."""
    content = GAMES[game].content
    return {"game": game, "seed": seed} if content is None else {"game": game, "start": content(start.inner)}


def _family(game: str) -> str:
    return game.partition("-")[0]


def _repeats(move: str) -> bool:
    """Return whether a card is named twice, which textarena takes for a set."""
    cards = [card.strip() for card in move.strip("[]").split(",")]
    return len(set(cards)) < len(cards)
