"""A session of an OpenEnv server: one env, its episode, and the answers to frames. May block."""

from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import Any

from envgym.authoring.openings import prompt_text, system_text
from envgym.chats.fields import plain_json
from envgym.chats.openai import messages_to_wire
from envgym.connect.openenv_frames import (
    RESERVED_TOOLS,
    Act,
    CallTool,
    ErrorCode,
    Frame,
    FrameError,
    Json,
    Observed,
    Query,
    Reset,
    Rpc,
    RpcCode,
    RpcError,
    observation_frame,
    rpc_frame,
    rpc_result,
    state_frame,
)
from envgym.core.messages import Message, Role
from envgym.core.turns import Invalid, Scored
from envgym.env import Env
from envgym.errors import EnvFailure, InvalidInput, ResetNeeded
from envgym.played import EpisodeOver, Opening, PlayedEpisode, PlayedTurn
from envgym.tools import ToolSpec


class OpenEnvSession:
    """An env that one client plays."""

    def __init__(self, env_id: str, make: Callable[[], Env[Any]], tools: tuple[ToolSpec, ...]) -> None:
        """Make the env. `tools` are those that it has before an episode. Raises: whatever the env raises."""
        self.env_id = env_id
        self._episode = PlayedEpisode(make())
        self._tools = tools
        self._opening: Opening | None = None
        self._episode_id = ""

    def answer(self, frame: Frame) -> str:
        """Return the frame that answers a client's frame.

        Raises: FrameError: the frame cannot be answered now, and the session continues. RpcError: likewise, for a
            request inside a frame of type mcp. InfrastructureError: the reward of the episode is invalid, for which
            the protocol has no form.
        """
        if isinstance(frame, Act):
            return observation_frame(_observed(self._play(lambda: self._episode.act(frame.action))))
        if isinstance(frame, CallTool):
            return observation_frame(_observed(self._call(frame), called=frame.name))
        if isinstance(frame, Reset):
            return observation_frame(self.reset(frame))
        if isinstance(frame, Rpc):
            return rpc_frame(rpc_result(frame, self._rpc(frame)))
        if frame is Query.LIST_TOOLS:
            return observation_frame(Observed(observation={"tools": tools_json(self._tools)}, reward=None, done=False))
        return state_frame(self.state())

    def state(self) -> Json:
        """Return the state of the episode, without anything that the client was not shown."""
        if self._opening is None:
            return no_episode(self.env_id)
        result = self._episode.result()
        return {
            "episode_id": self._episode_id,
            "step_count": result.num_turns,
            "env_id": self.env_id,
            "task_id": self._opening.task_id,
            "split": self._opening.split.value,
            "ending": result.ending,
            "total_reward": result.reward.value if isinstance(result.reward, Scored) else None,
        }

    def close(self) -> None:
        """Close the env."""
        self._episode.close()

    def reset(self, frame: Reset) -> Observed:
        """Start an episode. Raises: FrameError: there is no such task. InfrastructureError: the env fails."""
        try:
            opening = self._episode.open(seed=frame.seed, split=frame.split, index=frame.index)
        except InvalidInput as error:
            raise FrameError(str(error)) from error
        check_tool_names(opening.tools, self.env_id)
        self._opening, self._tools = opening, opening.tools
        self._episode_id = frame.episode_id or token_hex(8)
        return _opened(opening)

    def _call(self, frame: CallTool) -> PlayedTurn:
        return self._play(lambda: self._episode.call(frame.name, frame.arguments))

    def _play(self, play: Callable[[], PlayedTurn]) -> PlayedTurn:
        """Play a turn. Raises: FrameError: no episode runs. EnvFailure: its reward is invalid."""
        try:
            played = play()
        except (EpisodeOver, ResetNeeded) as error:
            raise FrameError(str(error), ErrorCode.EXECUTION_ERROR) from error
        except InvalidInput as error:
            raise FrameError(str(error)) from error
        if isinstance(played.reward, Invalid):
            reason = f"{played.reward.cause}: {played.reward.reason}"
            do = "leave the episode out, and connect again"
            raise EnvFailure.of("reward of the episode", "be valid", reason, where=self.env_id, do=do)
        return played

    def _rpc(self, request: Rpc) -> Json:
        if request.method == "tools/call":
            name, arguments = request.params.get("name"), request.params.get("arguments", {})
            if not isinstance(name, str) or not isinstance(arguments, dict):
                must, do = "have a name and an object of arguments", "send both"
                message = str(InvalidInput.of("params", must, request.params, where=request.method, do=do))
                raise RpcError(message, request_id=request.id)
            try:
                return _tool_result(self._call(CallTool(name=name, arguments=arguments)))
            except FrameError as error:
                raise RpcError(str(error), RpcCode.SERVER_ERROR, request.id) from error
        return answer_rpc(request, self._tools)


def no_episode(env_id: str) -> Json:
    """Return the state before an episode."""
    return {"episode_id": None, "step_count": 0, "env_id": env_id}


def answer_rpc(request: Rpc, tools: Iterable[ToolSpec]) -> Json:
    """Return the result of a request that plays no turn. Raises: RpcError: there is no such method."""
    if request.method == "tools/list":
        return {"tools": tools_json(tools, schema="inputSchema")}
    do = "call a tool in a session, at /ws"
    error = InvalidInput.of("method", "be tools/list, or tools/call", request.method, where="MCP", do=do)
    raise RpcError(str(error), RpcCode.METHOD_NOT_FOUND, request.id)


def tools_json(tools: Iterable[ToolSpec], *, schema: str = "input_schema") -> list[Json]:
    """Return the JSON form of tools; `schema` is the key of the JSON schema of their arguments."""
    return [{"name": tool.name, "description": tool.description, schema: plain_json(tool.parameters)} for tool in tools]


def check_tool_names(tools: Iterable[ToolSpec], env_id: str) -> None:
    """Check that no tool has a name that the protocol reserves. Raises: InvalidInput."""
    if taken := sorted(RESERVED_TOOLS & {spec.name for spec in tools}):
        must, do = f"have no tool named {', '.join(sorted(RESERVED_TOOLS))}", "rename the tool"
        raise InvalidInput.of(env_id, must, ", ".join(taken), where="OpenEnv", do=do)


# ---- what the client is shown ----------------------------------------------------------------------------------------


def _opened(opening: Opening) -> Observed:
    observation = {
        "text": prompt_text(opening.messages),
        "messages": messages_to_wire(opening.messages),
        "tools": tools_json(opening.tools),
        "system_prompt": system_text(opening.messages),
        "task_id": opening.task_id,
        "ending": None,
        "tool_errors": 0,
    }
    return Observed(observation=observation, reward=None, done=False)


def _observed(played: PlayedTurn, called: str | None = None) -> Observed:
    observation = {
        "text": str(played.observation),
        "messages": messages_to_wire(played.messages),
        "ending": played.ending,
        "tool_errors": played.tool_errors,
    }
    if called is not None:
        observation |= {"tool_name": called, **_tool_answer(played)}
    reward = played.reward.value if isinstance(played.reward, Scored) else None
    return Observed(observation=observation, reward=reward, done=played.ending is not None)


def _tool_answer(played: PlayedTurn) -> Json:
    message = _tool_message(played)
    if message is None or not message.is_error:
        return {"result": str(played.observation) if message is None else message.content, "error": None}
    return {"result": None, "error": {"error_type": "execution_error", "message": message.content}}


def _tool_result(played: PlayedTurn) -> Json:
    """Return the result of a tool call in MCP's form; its `_meta` has what MCP has no field for."""
    message = _tool_message(played)
    return {
        "content": [{"type": "text", "text": str(played.observation)}],
        "isError": message is not None and message.is_error,
        "_meta": {
            "reward": played.reward.value if isinstance(played.reward, Scored) else None,
            "done": played.ending is not None,
        },
    }


def _tool_message(played: PlayedTurn) -> Message | None:
    return next((message for message in played.messages if message.role is Role.TOOL), None)
