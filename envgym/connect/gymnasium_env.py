"""Environments of Gymnasium's own registry that speak text, by the id `gymnasium://module:Name-v0`."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envgym.authoring.sources import GeneratedTasks, TaskDraft
from envgym.config.arguments import read_bounds
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Ending
from envgym.env import Env, ForkCapability
from envgym.errors import EnvFailure, InvalidInput
from envgym.records import Reply, StepRecord

SCHEME = "gymnasium://"
MAX_TURNS = 100
"""Turns of an environment that was registered without a limit of its own."""
_UNKNOWN = "the environment is of another project, which does not declare it"

_COLORED = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

AnyGymEnv = gymnasium.Env[Any, Any]  # its spaces are read when it is made


class GymnasiumEnv(Env[AnyGymEnv]):
    """Any environment of Gymnasium with text observations, and text or named actions; a task is a seed of its reset."""

    blocking = True
    unchecked = {  # noqa: RUF012  # a constant of the class
        "oracle_reaches_optimum": _UNKNOWN,
        "chance_stays_at_declared": _UNKNOWN,
        "answer_is_hidden": "a task is a seed",
    }

    def __init__(
        self,
        env_id: str,
        /,
        *,
        kwargs: Mapping[str, Any] | None = None,
        observation: str | int | None = None,
        render: bool = False,
        actions: Sequence[str] | None = None,
        instructions: str = "",
        reward_range: Sequence[float] = (0.0, 1.0),
        forkable: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Make the environment by `gymnasium.make`.

        Args:
            env_id: `gymnasium://` and the id that `gymnasium.make` takes: `Name-v0`, or `module:Name-v0`, which imports
                the module first.
            kwargs: keyword arguments of the environment.
            observation: the entry of a Dict or Tuple observation that is the text.
            render: show the text that `render()` draws in the mode `ansi`, in place of the observation; coloured
                characters are put in square brackets.
            actions: names of the actions of a Discrete space, in order; None: their numbers.
            instructions: the system message, before the names of the actions.
            reward_range: bounds of the reward of an episode, which `envgym check` tests.
            forkable: whether a deep copy of the environment continues on its own.
            max_turns: turns until the episode is cut; None: the registered limit, or else 100.
            render_mode: as for any env.

        Raises: InvalidInput: it cannot be made, or its spaces hold no text.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.reward_range = read_bounds("reward_range", reward_range, where=env_id)
        self._inner_id = env_id.removeprefix(SCHEME)
        made_with = {**(kwargs or {}), **({"render_mode": "ansi"} if render else {})}
        self.state = _make(env_id, self._inner_id, made_with)
        try:
            self._names = _action_names(self.state.action_space, actions, env_id)
            self._key = None if render else _text_key(self.state.observation_space, observation, env_id)
        except InvalidInput:
            self.state.close()
            raise
        if max_turns is None:
            registered = self.state.spec.max_episode_steps if self.state.spec is not None else None
            self.max_turns = registered or MAX_TURNS
        self._shows_render = render
        self.fork_capability = ForkCapability.STATE if forkable else ForkCapability.NONE  # type: ignore[misc]  # of each
        choices = f"Answer with one of these actions: {', '.join(self._names)}." if self._names else ""
        self.system_prompt = "\n\n".join(part for part in (instructions, choices) if part)
        self.tasks = GeneratedTasks(self._draw, name=env_id)
        self._is_truncated = False

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        seed = int(rng.integers(2**31))
        return TaskDraft(prompt=f"{self._inner_id}, seed {seed}", payload={"env": self._inner_id, "seed": seed})

    def begin(self, task: Task) -> str:
        """Reset the environment with the seed of the task."""
        seed = task.payload.get("seed")
        if not isinstance(seed, int):
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("task", "hold a seed", task.id, where=self._inner_id, do=do)
        self._is_truncated = False
        return self._text(self.state.reset(seed=seed)[0])

    def respond(self, action: Action) -> Reply:
        """Play the action; a text that is none is answered with the ones that there are."""
        choice = self._choice(action.content)
        if choice is None:
            return Reply(observation=self._advice())
        observation, reward, terminated, truncated, _ = self.state.step(choice)
        self._is_truncated = bool(truncated) and not terminated
        return Reply(observation=self._text(observation), reward=reward, terminated=bool(terminated))  # type: ignore[arg-type]  # checked there

    def _play(self, action: Action) -> StepRecord:
        """Play one turn; the environment's own limit ends the episode as a limit on turns."""
        record = super()._play(action)
        ends = self._is_truncated and record.ending is None
        return replace(record, ending=Ending.TRUNCATED_TURNS) if ends else record

    def fork_state(self) -> AnyGymEnv:
        """Return a deep copy. Raises: EnvFailure: it cannot be copied."""
        try:
            return copy.deepcopy(self.state)
        except Exception as error:
            must, do = "be copied by copy.deepcopy", "leave forkable out"
            raise EnvFailure.of(
                self._inner_id, must, f"{type(error).__name__}: {error}", where="fork", do=do
            ) from error

    def close(self) -> None:
        self.state.close()

    def _text(self, observation: Any) -> str:  # of any space
        text: object = observation if self._key is None else observation[self._key]
        if self._shows_render:
            text = self.state.render()
        if not isinstance(text, str):
            must, do = "be a text", "name its entry with observation=..., or pass render=true"
            raise EnvFailure.of("observation", must, type(text).__name__, where=self._inner_id, do=do)
        return _plain(text) if self._shows_render else str(text)

    def _choice(self, text: str) -> str | np.int64 | None:
        """Return the action of the inner env that a text names; None: there is none."""
        space = self.state.action_space
        if isinstance(space, spaces.Discrete):
            index = _named(text, self._names)
            return None if index is None else space.start + np.int64(index)
        if isinstance(space, spaces.Text):  # its charset is rarely declared with care, its length is a bound
            return text if space.min_length <= len(text) <= space.max_length else None
        return text if space.contains(text) else None

    def _advice(self) -> str:
        space = self.state.action_space
        if self._names:
            return f"Answer with one of these actions: {', '.join(self._names)}."
        if isinstance(space, spaces.Text):
            return f"Answer with {space.min_length} to {space.max_length} characters."
        return "This text is not an action of the environment."


def _make(env_id: str, inner_id: str, kwargs: Mapping[str, Any]) -> AnyGymEnv:
    try:
        return gymnasium.make(inner_id, disable_env_checker=True, **kwargs)
    except Exception as error:  # importing and making run code of others
        got, do = f"{type(error).__name__}: {error}", "check the id, the module before its colon, and kwargs"
        raise InvalidInput.of(env_id, "be made by gymnasium.make", got, where="make", do=do) from error


def _plain(drawing: str) -> str:
    """Return a drawing without the codes of a terminal; coloured characters, such as the player's, are in brackets."""
    return _ESCAPE.sub("", _COLORED.sub(r"[\1]", drawing))


def _is_text(space: object) -> bool:
    return isinstance(space, spaces.Text) or (isinstance(space, spaces.Space) and isinstance(space.sample(), str))


def _action_names(space: object, actions: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the names of a Discrete space's actions, none for a space of texts. Raises: InvalidInput."""
    if isinstance(space, spaces.Discrete):
        if actions is None:
            return tuple(str(space.start + index) for index in range(int(space.n)))
        entries: Sequence[object] = actions  # settings may hold anything
        names = [name for name in entries if isinstance(name, str) and _folded(name)]
        if isinstance(actions, str) or not len(actions) == len(names) == len({*map(_folded, names)}) == space.n:
            must, do = f"be {space.n} different names", 'name each action once, in order, and quote words such as "no"'
            raise InvalidInput.of("actions", must, repr(actions), where=where, do=do)
        return tuple(names)
    if not _is_text(space):
        do = "wrap the environment in one that takes text"
        raise InvalidInput.of("action space", "be Text or Discrete", repr(space), where=where, do=do)
    InvalidInput.unless(
        actions is None, "actions", "be left out for a Text action space", actions, where=where, do="leave it out"
    )
    return ()


def _text_key(space: object, key: str | int | None, where: str) -> str | int | None:
    """Return the entry of an observation that is its text; None: the observation itself. Raises: InvalidInput."""
    do = "wrap the environment in one that shows text, or pass render=true if it draws in the mode ansi"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        entries = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        texts = [name for name, entry in entries.items() if _is_text(entry)]
        InvalidInput.unless(texts, "observation space", "hold a Text", repr(space), where=where, do=do)
        if key not in texts:
            must = f"name the entry with the text: {' or '.join(map(repr, texts))}"
            raise InvalidInput.of("observation", must, repr(key), where=where, do=f"pass observation={texts[0]}")
        return key
    InvalidInput.unless(
        key is None, "observation", "be left out for this space", repr(key), where=where, do="leave it out"
    )
    InvalidInput.unless(_is_text(space), "observation space", "be Text", repr(space), where=where, do=do)
    return None


def _named(text: str, names: Sequence[str]) -> int | None:
    """Return the number of the name that a text is, or else of the only one that it mentions; None: no such one."""
    folded, answer = [_folded(name) for name in names], _folded(text)
    whole = answer.strip(".,;:!?\"'`*_ ")
    if whole in folded:
        return folded.index(whole)
    spans = [
        (match.start(), match.end(), index)
        for index, name in enumerate(folded)
        for match in re.finditer(rf"(?<![\w.-]){re.escape(name)}(?!\w|[.,]\d)", answer)
    ]
    mentioned = {index for start, end, index in spans if not any(_is_inside(start, end, other) for other in spans)}
    return mentioned.pop() if len(mentioned) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _is_inside(start: int, end: int, span: tuple[int, int, int]) -> bool:
    """Return whether a longer span holds this one, as `turn left` holds `left`."""
    return span[0] <= start and end <= span[1] and span[1] - span[0] > end - start
