"""Environments that a reader of a run plays: their cards, and episodes in this process.

Only registered ids are made: a run may name code of its own in its settings, and looking at a run executes none of it.
An episode that nobody goes on with gives way to a new one; one that was never played gives way first.
"""

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as CallTimeout
from time import monotonic
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from envgym.authoring.env_card import card_of, describe, example_episode
from envgym.authoring.typed_actions import as_action, how_to_act
from envgym.core.signatures import usage
from envgym.core.turns import Scored
from envgym.errors import EnvFailure, InvalidInput, UnknownName
from envgym.records import ResetRecord, StepRecord
from envgym.registry import creator_of, find, make
from envgym.viewer.clip import Json
from envgym.wrappers import AnyEnv

MAX_SESSIONS: Final = 16
IDLE_S: Final = 1800.0
"""After so long without a turn an episode is ended when another one begins."""
CALL_S: Final = 60.0
"""Longest call of an environment that a page waits for."""

Result = TypeVar("Result")


class EnvRequest(BaseModel):
    """Which environment to describe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_id: str = Field(max_length=200)


class OpenRequest(BaseModel):
    """Which episode to begin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_id: str = Field(max_length=200)
    seed: int = Field(0, ge=0, lt=2**31)
    split: str = Field("train", pattern="^(train|test)$")


class ActionRequest(BaseModel):
    """What the player does: text, or `/TOOL ARGUMENTS`; or nothing, and the oracle acts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field("", max_length=200_000)
    is_oracle: bool = False


class ViewerEpisode:
    """One environment, called in a thread of its own, which also made it."""

    def __init__(self, env_id: str) -> None:
        self.id = secrets.token_urlsafe(18)
        self.env_id = env_id
        self.num_turns = 0
        self.last_call = monotonic()
        self._env: AnyEnv | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"play {env_id}")

    def begin(self, seed: int, split: str) -> Json:
        """Make the environment and reset it. Raises: EnvgymError: it cannot be made."""

        def work() -> Json:
            self._env = make(self.env_id)
            record: ResetRecord = self._env.reset(seed=seed, options={"split": split}).info["envgym"]
            return {
                "system_prompt": record.system_prompt,
                "tools": [f"/{usage(tool.name, tool.parameters)}: {tool.description}" for tool in record.tools],
                "how": how_to_act(record.tools, "Ctrl+Enter sends"),
                "observation": str(record.observation),
                "task_id": record.task.id,
            }

        return self._call(work)

    def step(self, text: str, *, is_oracle: bool) -> Json:
        """Play a turn; text that is no action is answered with `refused`, and nothing has happened.

        Raises: EnvgymError: the environment has no oracle, or has ended.
        """

        def work() -> Json:
            env = self._env
            assert env is not None, "it has begun"
            try:
                tools = [tool.spec for tool in env.unwrapped.toolset().values()]
                action = env.oracle() if is_oracle else as_action(text, tools)
            except InvalidInput as error:
                return {"refused": str(error)}
            self.num_turns += 1
            record: StepRecord = env.step(action).info["envgym"]
            reward = record.reward
            components = dict(reward.components) if isinstance(reward, Scored) else {}
            return {
                "action": action,
                "observation": str(record.observation),
                "reward": reward.value if isinstance(reward, Scored) else None,
                "components": components,
                "ending": None if record.ending is None else record.ending.value,
                "error": record.error or ("" if isinstance(reward, Scored) else reward.reason),
                "tool_errors": record.tool_errors,
            }

        return self._call(work)

    def close(self) -> None:
        """Close the environment when it is free."""
        self._thread.submit(lambda: None if self._env is None else self._env.close())
        self._thread.shutdown(wait=False)

    def _call(self, work: Callable[[], Result]) -> Result:
        self.last_call = monotonic()
        try:
            return self._thread.submit(work).result(timeout=CALL_S)
        except CallTimeout:
            must, do = f"answer within {CALL_S:g} s", "play it with `envgym play`"
            raise EnvFailure.of("environment", must, "nothing", where=self.env_id, do=do) from None


class PlayTable:
    """The episodes that are being played, at most `MAX_SESSIONS`."""

    def __init__(self) -> None:
        self._episodes: dict[str, ViewerEpisode] = {}
        self._lock = threading.Lock()

    def open(self, env_id: str) -> ViewerEpisode:
        """Begin an episode; where all places are taken, the one that was left longest ends, unplayed ones first."""
        episode = ViewerEpisode(env_id)
        with self._lock:
            now = monotonic()
            ended = [item for item in self._episodes.values() if now - item.last_call > IDLE_S]
            left = [item for item in self._episodes.values() if item not in ended]
            if len(left) >= MAX_SESSIONS:
                ended.append(min(left, key=lambda item: (item.num_turns > 0, item.last_call)))
            for item in ended:
                del self._episodes[item.id]
            self._episodes[episode.id] = episode
        for item in ended:
            item.close()
        return episode

    def begin(self, body: bytes) -> Json:
        """Begin an episode of a registered environment. Raises: as `env_card`, of an `OpenRequest`."""
        opening = OpenRequest.model_validate_json(body)
        check_registered(opening.env_id)
        episode = self.open(opening.env_id)
        try:
            return {"session": episode.id, **episode.begin(opening.seed, opening.split)}
        except BaseException:
            self.end(episode.id)
            raise

    def step(self, session: str, body: bytes) -> Json:
        """Play a turn; the episode's place is free when it has ended. Raises: as `env_card`, of an `ActionRequest`."""
        action = ActionRequest.model_validate_json(body)
        reply = self.get(session).step(action.text, is_oracle=action.is_oracle)
        if reply.get("ending") is not None:
            self.end(session)
        return reply

    def get(self, session: str) -> ViewerEpisode:
        """Return an episode that was begun. Raises: UnknownName: it is over, or never was."""
        with self._lock:
            if session not in self._episodes:
                do = "begin a new episode"
                raise UnknownName.of("episode", "be under way", "one that has ended", where="play", do=do)
            return self._episodes[session]

    def end(self, session: str) -> None:
        with self._lock:
            item = self._episodes.pop(session, None)
        if item is not None:
            item.close()

    def close(self) -> None:
        for session in list(self._episodes):
            self.end(session)


_cards: dict[str, Json] = {}


def env_card(body: bytes) -> Json:
    """Return the card of a registered environment, with an episode of its oracle.

    Raises: ValidationError: `body` is no JSON of an `EnvRequest`. EnvgymError: the environment cannot be made.
    """
    id = EnvRequest.model_validate_json(body).env_id
    check_registered(id)
    if id not in _cards:
        env, creator = make(id), creator_of(id)
        try:
            _cards[id] = {**describe(env, creator), "example": example_episode(env), "card": card_of(creator)}
        finally:
            env.close()
    return _cards[id]


def check_registered(env_id: str) -> None:
    """See that an id is registered: import paths, files and addresses run what a run names. Raises: InvalidInput."""
    if ":" in env_id:
        must, do = "be a registered id to be shown or played here", f"run `envgym play {env_id}`"
        raise InvalidInput.of("environment", must, env_id, where="envgym view", do=do)
    find(env_id)
