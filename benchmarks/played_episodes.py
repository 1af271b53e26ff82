"""What playing an environment for another program costs above `Env.step`, in microseconds of CPU a call.

Run: python -m benchmarks.played_episodes [--calls 2000] [--repeat 5]. Prints one JSON line: the best of the repeats.
Targets on two idle cores: at most 100 above `step`, for TRL's methods and for our part of an MCP call. At most 200 for
our part of a turn in verifiers (the body of its request, its reply as an action, the answer of the environment), and of
one in inspect-ai, which is measured where that is installed.
"""

import json
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import Any, Final

import envgym
from benchmarks._options import print_result, read_options
from envgym import Action, Env, Reply, Split, Task, tool
from envgym.authoring import ListTasks, TaskDraft
from envgym.connect.chat_player import ChatConversation
from envgym.connect.mcp_session import McpSession
from envgym.connect.trl import environment
from envgym.parsing import tool_call_action
from envgym.played import PlayedEpisode

TARGETS: Final = {"trl_above_step": 100, "mcp_above_step": 100, "verifiers": 200, "inspect_above_step": 200}
HERE: Final = "benchmarks.played_episodes:Trivial"


class Trivial(Env[int]):
    """Adds numbers, as long as it is asked to."""

    tasks = ListTasks([TaskDraft(prompt=f"Add {n}.", payload={"n": n}) for n in range(100)])

    def begin(self, task: Task) -> str:
        self.state = 0
        return task.prompt

    @tool
    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: What to add.
        """
        self.state += number
        return str(self.state)

    def respond(self, action: Action) -> Reply:
        return Reply(terminated=True)


def verifiers_turn(episode: PlayedEpisode, conversation: ChatConversation) -> Callable[[], object]:
    """Return a function that plays the first turn after the task, with the messages as text on both sides."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"number": 1}'}}
    reply = json.dumps({"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]})
    num_first = len(conversation.messages)

    def play() -> None:
        json.dumps(conversation.request("policy"))
        turn = episode.act(conversation.take(json.loads(reply)))
        conversation.answer(turn.messages)
        del conversation.messages[num_first:]

    return play


def microseconds(call: Callable[[], object], calls: int, repeat: int) -> float:
    """Return the least CPU time of a call in several rounds, in microseconds."""
    best = float("inf")
    for _ in range(repeat):
        begun = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, time.process_time() - begun)
    return 1e6 * best / calls


def inspect_turn(episode: PlayedEpisode) -> Callable[[], object]:
    """Return a call of our part of a turn in inspect-ai: the message of the model is there, its reply is written."""
    from inspect_ai.model import ChatMessageAssistant, ModelName, ModelOutput
    from inspect_ai.solver import TaskState
    from inspect_ai.tool import ToolCall

    from envgym.connect.inspect_task import play_turn

    state = TaskState(model=ModelName("mockllm/model"), sample_id=0, epoch=1, input="", messages=[])
    call = ToolCall(id="call", function="add", arguments={"number": 1})
    state.output = ModelOutput.from_message(ChatMessageAssistant(content="", tool_calls=[call]))

    def turn() -> None:
        play_turn(state, episode)
        state.messages.clear()

    return turn


def measure(calls: int, repeat: int) -> dict[str, float]:
    """Return the time of a call by each way to play."""
    action = tool_call_action("add", number=1)
    row: dict[str, Any] = {"split": "train", "index": 0, "seed": 0}
    trl = environment(HERE)
    with (
        closing(envgym.make(HERE)) as env,
        closing(PlayedEpisode(envgym.make(HERE))) as episode,
        closing(PlayedEpisode(envgym.make(HERE))) as chat_episode,
        closing(McpSession(lambda: envgym.make(HERE), ())) as session,
        closing(trl),
    ):
        env.reset(seed=0, options={"split": Split.TRAIN, "index": 0})
        episode.open(seed=0, index=0)
        session.call("episode_start", row)
        conversation = ChatConversation(chat_episode.open(seed=0, index=0))
        instance: Any = trl()
        instance.reset(**row)
        ways: dict[str, Callable[[], object]] = {
            "step": lambda: env.step(action),
            "played": lambda: episode.call("add", {"number": 1}),
            "trl": lambda: instance.add(number=1),
            "mcp": lambda: session.call("add", {"number": 1}),
            "verifiers": verifiers_turn(chat_episode, conversation),
        }
        if find_spec("inspect_ai") is not None:
            ways["inspect"] = inspect_turn(episode)
        for call in ways.values():
            call()
        return {name: round(microseconds(call, calls, repeat), 2) for name, call in ways.items()}


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, calls=2000, repeat=5)
    print_result("played_episodes", **measure(options.calls, options.repeat), targets=TARGETS)


if __name__ == "__main__":
    main()
