"""Games in a house of text, by the simulator TextWorldExpress: `puzzles/textworld-v0`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from envgym.authoring.sources import check_index
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.data_files import read_toml
from envgym.envs.puzzles._java_games import action_in, check_installed, next_action
from envgym.envs.puzzles._textworld_simulator import (
    TextWorldStep,
    TextWorldVariation,
    content_hash,
    gold_actions,
    shared_games,
    task_description,
)
from envgym.errors import InvalidInput, check_known
from envgym.records import Reply

_TABLE: Mapping[str, Mapping[str, Any]] = read_toml("puzzles/data/textworld.toml")
GAMES = tuple(_TABLE)
PARAMETERS: Mapping[str, Mapping[str, Sequence[int]]] = {
    game: {name: limits for name, limits in row.items() if name != "game"} for game, row in _TABLE.items()
}
"""Game -> its parameters -> the least, the most and the default."""
FIRST_SEED: Mapping[str, int] = {"train": 0, "dev": 10_000, "test": 20_000}
NUM_SEEDS = 1000
"""Seeds of a game in each of the package's sets."""
REWARDS = ("score", "solved")
_CAREFUL_VERBS = ("look", "move", "read", "open", "take")
_WHERE = "puzzles/textworld-v0"
_HINT = "Say one action, such as look around, inventory, move north, open fridge or take coin."


@dataclass(frozen=True, slots=True)
class TextWorldTasks:
    """The package's own seeds, set by set: the first seed of each game, then the next of each."""

    games: tuple[str, ...]
    parameters: tuple[tuple[str, int], ...]
    """The ones that differ from the defaults, in order."""
    test_split: str
    """What makes up the test split: `test` or `dev`."""

    def size(self, split: Split) -> int:
        """Return the number of games. Raises: as `task`."""
        return len(self._variations(split))

    def task(self, split: Split, index: int) -> Task:
        """Return a game. Raises: InvalidInput: beyond the end, or the package refuses the parameters. EnvFailure."""
        variations = self._variations(split)
        kind, variation = variations[check_index(index, len(variations), f"{split} of {_WHERE}")]
        return Task(
            id=f"{kind}/{variation.seed}",
            prompt=task_description(variation),
            payload={"game": kind, "seed": variation.seed, "parameters": variation.parameters},
            split=split,
            metadata={"game": kind, "seed": variation.seed},
        )

    def _variations(self, split: Split) -> tuple[tuple[str, TextWorldVariation], ...]:
        return _variations(self, "train" if split is Split.TRAIN else self.test_split)


@cache
def _variations(tasks: TextWorldTasks, fold: str) -> tuple[tuple[str, TextWorldVariation], ...]:
    """Return the games of a set; in train without those of the test split."""
    rows = [
        (game, variation_of(game, fold, FIRST_SEED[fold] + number, tasks.parameters))
        for number in range(NUM_SEEDS)
        for game in tasks.games
    ]
    if fold != "train":
        return tuple(rows)
    smaller = [game for game in tasks.games if any(name in PARAMETERS[game] for name, _ in tasks.parameters)]
    held_out = {game: _hashes(game, tasks.test_split, tasks.parameters) for game in smaller}
    train_rows = tuple(row for row in rows if row[0] not in held_out or content_hash(row[1]) not in held_out[row[0]])
    missing = [game for game in tasks.games if all(kind != game for kind, _ in train_rows)]
    must, do = "leave games that are not in the test split", "choose parameters with more games"
    InvalidInput.unless(not missing, f"parameters of {missing[:1]}", must, tasks.parameters, where=_WHERE, do=do)
    return train_rows


@cache
def _hashes(game: str, fold: str, parameters: tuple[tuple[str, int], ...]) -> frozenset[str]:
    seeds = range(FIRST_SEED[fold], FIRST_SEED[fold] + NUM_SEEDS)
    return frozenset(content_hash(variation_of(game, fold, seed, parameters)) for seed in seeds)


def variation_of(game: str, fold: str, seed: int, parameters: Sequence[tuple[str, int]] = ()) -> TextWorldVariation:
    """Return the arguments with which the package starts a game: a name, all of its parameters, a set and a seed."""
    values = {name: default for name, (_, _, default) in PARAMETERS[game].items()}
    values |= {name: value for name, value in parameters if name in values}
    text = ",".join(f"{name}={value}" for name, value in values.items())
    return TextWorldVariation(str(_TABLE[game]["game"]), text, fold, seed)


@dataclass(frozen=True, slots=True)
class TextWorldState:
    """A game so far; a simulator is brought to it when it is needed."""

    variation: TextWorldVariation
    steps: tuple[TextWorldStep, ...]


class TextWorld(Env[TextWorldState]):
    """A message is an action; the episode ends when the game is won or lost."""

    blocking = True
    system_prompt = (
        "You play a game in a world of text. Each of your messages is one action, and you see what it does. Actions "
        "are: look around, inventory, examine X, read X, take X, put X in Y, open X, close X, move north, open door to "
        "north, close door to north (or another direction), slice X, dice X, chop X, cook X in Y, prepare meal, eat X, "
        "in lower case and with the full names that you see; where Simon says what to do, just that."
    )

    def __init__(
        self,
        *,
        games: str | Sequence[str] = GAMES,
        parameters: Mapping[str, int] | None = None,
        reward: str = "score",
        test_split: str = "test",
        admissible: bool = False,
        max_turns: int | None = 100,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the games.

        Args:
            games: One or several of 9, such as coin, cookingworld or twc.
            parameters: Of the package, such as {"numLocations": 3}; each changes the chosen games that have it.
            reward: `score` pays what the score gains in a turn, of 1 in all; `solved` pays 1 for a game that is won.
            test_split: `test` or `dev`: which seeds of the package make up the test split.
            admissible: List the actions that can be done in every observation.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: textworld-express or Java is not installed, or a parameter is out of its range.
            UnknownName: a value that does not exist.
        """
        check_installed("textworld_express", "textworld", _WHERE)
        super().__init__(max_turns=max_turns, **options)
        names = (games,) if isinstance(games, str) else tuple(dict.fromkeys(games))
        for game in names or ("",):
            check_known("game", game, GAMES, where=_WHERE)
        check_known("reward", reward, REWARDS, where=_WHERE)
        check_known("test_split", test_split, ("test", "dev"), where=_WHERE)
        self.reward, self.admissible = reward, admissible
        self.tasks = TextWorldTasks(names, _changed(names, parameters or {}), test_split)
        self.chance_score = _chance_of(names, reward) if not self.tasks.parameters else 1.0

    def begin(self, task: Task) -> str:
        seed = task.payload["seed"]
        assert isinstance(seed, int), "written by TextWorldTasks"
        fold = max((name for name, first in FIRST_SEED.items() if first <= seed), key=FIRST_SEED.__getitem__)
        variation = replace(
            variation_of(str(task.payload["game"]), fold, seed), parameters=str(task.payload["parameters"])
        )
        self.state = TextWorldState(variation, ())
        return f"{task.prompt}\n\n{self._shown(shared_games().first_observation(variation))}"

    def respond(self, action: Action) -> Reply:
        """Do the action, and pay what the score has gained; a score below 0 counts as 0."""
        text = action_in(action.content)
        if text is None:
            return Reply(observation=_HINT)
        before = max(self.state.steps[-1].score, 0.0) if self.state.steps else 0.0
        done = shared_games().step(self.state.variation, self.state.steps, text)
        self.state = replace(self.state, steps=(*self.state.steps, done))
        gained, solved = max(done.score, 0.0) - before, float(done.is_solved)
        value = solved if self.reward == "solved" else gained
        reward = Scored(value=value, components={"score": gained, "solved": solved, "failed": float(done.is_failed)})
        if not done.is_over:
            return Reply(observation=self._shown(done.observation), reward=reward)
        ending = "The game is won." if done.is_solved else "The game is lost."
        return Reply(observation=f"{done.observation.strip()}\n{ending}", reward=reward, terminated=True)

    def _shown(self, observation: str) -> str:
        """Return an observation, and the actions that can be done where they are to be listed."""
        text = observation.strip() or "Nothing is said."
        if not self.admissible:
            return text
        return f"{text}\nYou can: {', '.join(shared_games().admissible(self.state.variation, self.state.steps))}."

    def chance_agents(self, rng: np.random.Generator) -> Mapping[str, Callable[[int, str], str]]:
        """Return agents that draw among the actions that can be done: of all, or of those that lose nothing."""

        def draw_action(turn: int, observation: str, *, is_careful: bool = False) -> str:
            actions = shared_games().admissible(self.state.variation, self.state.steps)
            careful = [action for action in actions if action.startswith(_CAREFUL_VERBS)] if is_careful else []
            actions = careful or actions
            return actions[rng.integers(len(actions))]

        return {"any action": draw_action, "any careful action": partial(draw_action, is_careful=True)}

    def oracle(self) -> str:
        """Say the next action of the package's solution, after those of it that were done in order."""
        return next_action(gold_actions(self.state.variation), self.state.steps, otherwise="look around")

    fork_state = share_state


def _changed(games: Sequence[str], parameters: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    ranges = {name: limits for game in games for name, limits in PARAMETERS[game].items()}
    for name, value in parameters.items():
        check_known("parameter", name, ranges, where=_WHERE)
        low, high, _ = ranges[name]
        is_fine = type(value) is int and low <= value <= high
        must = f"be a whole number from {low} to {high}"
        InvalidInput.unless(is_fine, name, must, value, where=_WHERE, do="choose another value")
    defaults = {name: {PARAMETERS[game][name][2] for game in games if name in PARAMETERS[game]} for name in ranges}
    return tuple(sorted((name, value) for name, value in parameters.items() if defaults[name] != {value}))


@cache
def _chance_of(games: tuple[str, ...], reward: str) -> float:
    table = read_toml("puzzles/data/textworld_chance.toml")
    return sum(float(table[reward][game]) for game in games) / len(games)
