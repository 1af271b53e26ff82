"""What an MCP client may do in one session: begin episodes, call the tools of the env, say text, read the result."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Final, Literal, NamedTuple

from envgym.authoring.openings import opening_text
from envgym.core.json_types import JsonObject
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.errors import EnvgymError, InfrastructureError, ResetNeeded
from envgym.played import EpisodeOver, PlayedEpisode, PlayedTurn, outcome
from envgym.runtime.error_log import log_error
from envgym.tools import Tool, ToolSpec, collect_tools, tool
from envgym.wrappers import AnyEnv

PREFIX: Final = "env_"
"""Comes before the name of a tool of the env that has the name of one of ours."""
INSTRUCTIONS: Final = (
    "These tools play episodes of the environment {name}. Call episode_start first: it returns the task. Then act with "
    "the other tools; episode_say sends a message or a final answer as text. episode_result returns the reward."
)
_NO_EPISODE: Final = "No episode is running. Call episode_start first."


class McpAnswer(NamedTuple):
    """The answer to a call."""

    text: str
    data: Mapping[str, object] | None = None
    """Structured content: rewards, ending, task."""
    is_error: bool = False


class McpSession:
    """One client's env and its episode; calls may block, and a lock in the episode orders them."""

    def __init__(self, make: Callable[[], AnyEnv], tools: tuple[ToolSpec, ...]) -> None:
        """Make the env at the first call. `tools` are those that it has before an episode."""
        self._make, self._tools = make, tools
        self._lock = Lock()
        self._episode: PlayedEpisode | None = None
        self._is_closed = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that are offered now: ours, then those of the env."""
        return (*(item.spec for item in _own_tools().values()), *(_renamed(spec) for spec in self._tools))

    def call(self, name: str, arguments: JsonObject) -> McpAnswer:
        """Run a call; whatever fails is an answer that says so."""
        own = _own_tools().get(name)
        try:
            if own is not None:
                answer = own.call(self, arguments)
                assert isinstance(answer, McpAnswer), "so annotated"
                return answer
            original = name.removeprefix(PREFIX) if name.removeprefix(PREFIX) in _own_tools() else name
            return _answer_of(self._running().call(original, arguments))
        except EpisodeOver as error:
            return McpAnswer(f"{error} Call episode_start for another one.", is_error=True)
        except ResetNeeded:
            return McpAnswer(_NO_EPISODE, is_error=True)
        except EnvgymError as error:
            return McpAnswer(str(error), is_error=True)
        except Exception as error:  # noqa: BLE001  # whatever an env raises is an answer
            log_error(error, f"{name} failed, and the client was answered with its error")
            return McpAnswer(f"{name} failed: {type(error).__name__}: {error}", is_error=True)

    def close(self) -> None:
        """Close the env; may be called twice. It waits for a call that is running."""
        with self._lock:
            self._is_closed = True
        if self._episode is not None:
            self._episode.close()

    # ---- the tools that every env has --------------------------------------------------------------------------------

    @tool
    def episode_start(
        self, split: Literal["train", "test"] = "train", index: int | None = None, seed: int | None = None
    ) -> McpAnswer:
        """Begin an episode and return its task; an episode that is running is given up.

        Args:
            split: The split of the task.
            index: Number of the task in its split; null draws one.
            seed: Seed of everything random in the episode; null leaves it open.
        """
        try:
            opening = self._made().open(split=split, index=index, seed=seed)
        except InfrastructureError as error:
            return McpAnswer(f"The environment could not be started: {error}", is_error=True)
        self._tools = opening.tools
        return McpAnswer(
            opening_text(opening.messages),
            {"task": opening.task_id, "split": opening.split.value, "index": opening.index},
        )

    @tool
    def episode_say(self, text: str) -> McpAnswer:
        """Send a message or a final answer to the environment as text, and return its reply.

        Args:
            text: The message.
        """
        return _answer_of(self._running().say(text))

    @tool
    def episode_result(self) -> McpAnswer:
        """Return the reward of the episode so far, its components, and how it ended."""
        result = self._running().result()
        data: dict[str, object] = {
            "ending": result.ending,
            "num_turns": result.num_turns,
            **_reward_data("reward", result.reward),
        }
        if isinstance(result.reward, Scored):
            data["components"] = dict(result.reward.components)
        return McpAnswer(f"{outcome(result)}, {result.num_turns} turns", data, isinstance(result.reward, Invalid))

    def _made(self) -> PlayedEpisode:
        with self._lock:
            if self._is_closed:
                raise ResetNeeded(_NO_EPISODE)
            if self._episode is None:
                self._episode = PlayedEpisode(self._make())
            return self._episode

    def _running(self) -> PlayedEpisode:
        if self._episode is None:
            raise ResetNeeded(_NO_EPISODE)
        return self._episode


def _own_tools() -> Mapping[str, Tool]:
    return collect_tools(McpSession)


def _renamed(spec: ToolSpec) -> ToolSpec:
    return replace(spec, name=f"{PREFIX}{spec.name}") if spec.name in _own_tools() else spec


def _answer_of(turn: PlayedTurn) -> McpAnswer:
    data: dict[str, object] = {"ending": _name(turn.ending), "tool_errors": turn.tool_errors}
    data |= {**_reward_data("reward", turn.reward), **_reward_data("total", turn.total)}
    if isinstance(turn.reward, Invalid):
        text = f"The environment failed, and the episode has no valid reward: {turn.reward.reason}"
        return McpAnswer(text, data, is_error=True)
    over = "" if turn.ending is None else f"The episode is over: {turn.ending}."
    text = "\n\n".join(part for part in (str(turn.observation), over) if part)
    return McpAnswer(text, data, turn.tool_errors > 0)


def _name(ending: Ending | None) -> str | None:
    return None if ending is None else ending.value


def _reward_data(name: str, reward: Reward) -> dict[str, object]:
    """Return a reward as structured content; an invalid one has no number."""
    return {name: reward.value} if isinstance(reward, Scored) else {"invalid": reward.reason}
