"""Programs of verifiers play our environments: rewards are those of the episodes, an invalid one is an error there."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

import envgym
import envgym_verifiers
from envgym.errors import InvalidInput
from tests.agents.policies.fake_server import HANG, Server, running
from tests.support.pages import blocks_of
from tests.support.toys import Counter

pytestmark = [pytest.mark.connect, pytest.mark.filterwarnings("ignore")]  # of the libraries
ROOT = Path(__file__).parents[2]
COUNTER, SUMS, BROKEN = (f"tests.support.toys:{name}" for name in ("Counter", "Sums", "OftenBroken"))
LIMIT_S = 120
Json = dict[str, Any]


def count(body: Json) -> Json:
    """Answer as a model that counts to the number of the task, and says DONE."""
    messages = body["messages"]
    (text,) = [message["content"] for message in messages if message["role"] == "user"]
    target, most = map(int, re.findall(r"\d+", text))
    added = sum(
        json.loads(call["function"]["arguments"])["amount"]
        for message in messages
        for call in message.get("tool_calls", ())
    )
    if added == target:
        return completion({"content": "DONE"})
    arguments = json.dumps({"amount": min(most, target - added)})
    function = {"name": body["tools"][0]["function"]["name"], "arguments": arguments}
    return completion({"content": None, "tool_calls": [{"id": f"c{added}", "type": "function", "function": function}]})


def completion(message: Json) -> Json:
    return {
        "id": "reply",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        server.script = [count]
        yield server


def config(env: str, *, agent: Json | None = None, **taskset: Any) -> Any:
    data = {"id": "envgym_verifiers", "env": env, **taskset}
    return resolve_env_config({"taskset": data, "agent": {"runtime": {"type": "subprocess"}, **(agent or {})}})


def play(server: Server, settings: Any, *, tasks: int = 1, system_prompt: str | None = None) -> list[Any]:
    """Play tasks in this process; return their traces."""
    env = load_environment(settings)
    context = vf.ModelContext(client=client(server), model="policy", sampling=vf.SamplingConfig())

    async def run() -> list[Any]:
        chosen = list(env.taskset.take(tasks))
        if system_prompt is not None:
            chosen = [task.with_system_prompt(system_prompt) for task in chosen]
        async with env.serving():
            slots = [slot for task in chosen for slot in env.slots(task)]
            episodes = await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))
        return [trace for episode in episodes for trace in episode.traces]

    return asyncio.run(run())


def client(server: Server) -> Any:
    return vf.EvalClientConfig(base_url=server.url, api_key_var="NO_SUCH_KEY")


def test_the_package_exports_one_taskset_and_one_harness() -> None:
    assert envgym_verifiers.__all__ == ["EnvgymHarness", "EnvgymTaskset"]
    assert config(SUMS).taskset.env == SUMS


def test_vf_eval_is_paid_as_local_play_and_an_invalid_reward_is_an_error(server: Server, tmp_path: Path) -> None:
    (line,) = [
        line for block in blocks_of("docs/connect.md", "bash") for line in block.commands if line.startswith("vf-eval")
    ]
    tested = {"puzzles/guess_number-v0": BROKEN, "8": "4", "MODEL": "policy", "http://127.0.0.1:8000/v1": server.url}
    name, *words = [tested.get(word, word) for word in shlex.split(line)]
    words += ["--env.taskset.seed", "3", "--env.taskset.settings", '{"max_turns": 7}', "--no-rich", "-o", "out"]
    result = subprocess.run(
        [Path(sys.executable).with_name(name), *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=LIMIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    (path,) = tmp_path.glob("out/*/traces.jsonl")
    episodes = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert sorted(episode["task"]["data"]["index"] for episode in episodes) == [0, 0, 1, 1, 2, 2, 3, 3]
    for (trace,) in (episode["traces"] for episode in episodes):
        data, record = trace["task"]["data"], trace["info"]["envgym"]
        assert "payload" not in json.dumps(data)
        if data["index"] % 2 == 0:
            assert (trace["ok"], record["ending"], record.get("reward")) == (False, "ERROR_ENV", None)
            assert "reward of the episode must be valid" in trace["errors"][0]["message"]
            assert "the service is down" in trace["errors"][0]["message"]
            assert not any(trace.get("rewards", {}).values())
            continue
        assert (trace["ok"], trace.get("errors", [])) == (True, [])
        assert (trace["rewards"]["episode_reward"]["score"], record["ending"]) == (1.0, "TERMINATED")
        first = [node["message"] for node in trace["nodes"][:2]]
        assert first == messages_of_local_play(data["index"], data["seed"])
        assert sum(node.get("sampled", False) for node in trace["nodes"]) == record["turns"]
        assert [node.get("parent") for node in trace["nodes"]] == [None, *range(len(trace["nodes"]) - 1)]


def messages_of_local_play(index: int, seed: int) -> list[Json]:
    env = envgym.make(COUNTER)
    observation, _ = env.reset(seed=seed, options={"split": "train", "index": index})
    env.close()
    return [{"role": "system", "content": env.system_prompt}, {"role": "user", "content": str(observation)}]


def test_a_plain_env_is_played(server: Server) -> None:
    server.script = [completion({"content": "no number"})]
    (first, second) = play(server, config(SUMS, split="test", max_turns=1), tasks=2)
    assert [trace.info["envgym"]["index"] for trace in (first, second)] == [0, 1]
    assert [trace.rewards["episode_reward"].value for trace in (first, second)] == [0.0, 0.0]
    assert (first.ok, first.stop_condition) == (True, "agent_completed")
    assert first.task.key == f"{SUMS}/test/0/0"


def test_an_episode_that_verifiers_stops_has_the_reward_so_far(server: Server) -> None:
    (trace,) = play(server, config(COUNTER, agent={"max_turns": 1}))
    record = trace.info["envgym"]
    assert (trace.ok, trace.stop_condition, trace.rewards["episode_reward"].value) == (True, "max_turns", 0.0)
    assert (record["ending"], record["turns"]) == (None, 1)


def test_an_episode_whose_time_ends_before_a_turn_has_no_reward(server: Server) -> None:
    server.script = [HANG]
    (trace,) = play(server, config(COUNTER, agent={"timeout": {"rollout": 0.2}}))
    assert (trace.ok, trace.is_timeout, any(trace.rewards.values())) == (False, True, False)
    assert "episode must have a valid reward" in trace.last_error.message


class Gate(Counter):
    """Waits in one of its methods."""

    blocking = True
    place = ""
    reached, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self._wait("init")

    def begin(self, task: envgym.Task) -> str:
        self._wait("begin")
        return super().begin(task)

    @envgym.tool
    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much to add.
        """
        self._wait("add")
        return super().add(amount)

    def _wait(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            self.goes_on.wait()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    for event in (Gate.reached, Gate.goes_on):
        event.clear()
    yield Gate
    Gate.place = ""
    Gate.goes_on.set()


async def launch(server: Server, env: str, reached: threading.Event | None) -> Any:
    """Play a task with the harness; cancel it once `reached` is set. Returns: its trace."""
    settings = config(env)
    task = next(iter(load_environment(settings).taskset))
    trace = vf.Trace(task=vf.TraceTask(type="EnvgymTask", data=task.data), agent=vf.AgentInfo(config=vf.AgentConfig()))
    harness = envgym_verifiers.EnvgymHarness(vf.HarnessConfig(id="envgym_verifiers"))
    context = vf.ModelContext(client=client(server), model="policy", sampling=vf.SamplingConfig())
    playing = asyncio.create_task(harness.launch(context, trace, None, server.url, "secret", {}, task.data))
    if reached is not None:
        await asyncio.get_running_loop().run_in_executor(None, reached.wait, LIMIT_S)
        playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    return trace


@pytest.mark.parametrize("place", ["init", "begin", "add"])
def test_an_env_that_is_busy_when_it_is_stopped_has_no_reward_and_is_closed(
    server: Server, gate: type[Gate], place: str
) -> None:
    config(f"{__name__}:Gate")  # makes it once
    gate.place = place
    gate.closed.clear()
    trace = asyncio.run(launch(server, f"{__name__}:Gate", gate.reached))
    record = trace.info["envgym"]
    assert (record["reward"], record["ending"], record["turns"]) == (None, "ERROR_ABORTED", 0)
    assert "while the environment was busy" in record["error"]
    assert not gate.closed.is_set()
    gate.goes_on.set()
    assert gate.closed.wait(LIMIT_S)


def test_an_episode_that_is_stopped_while_the_model_writes_has_the_reward_so_far(server: Server) -> None:
    asked = threading.Event()

    def hang(body: Json) -> str:
        asked.set()
        return HANG

    server.script = [count, hang]
    record = asyncio.run(launch(server, COUNTER, asked)).info["envgym"]
    assert (record["reward"], record["ending"], record["turns"], record["error"]) == (0.0, None, 1, None)


def test_a_reply_that_is_cut_is_not_played(server: Server) -> None:
    cut = completion({"content": "DONE"})
    cut["choices"][0]["finish_reason"] = "length"
    server.script = [count, cut]
    (trace,) = play(server, config(COUNTER))
    record = trace.info["envgym"]
    assert (trace.ok, record["ending"], record["turns"], record["reward"]) == (True, "TRUNCATED_TOKENS", 1, 0.0)


def test_a_split_without_end_is_a_taskset_without_end() -> None:
    taskset = load_environment(config("puzzles/guess_number-v0")).taskset
    assert not taskset.bounded
    assert [task.data.seed for task in taskset.take(3)] == [0, 1, 2]
    assert load_environment(config(COUNTER)).taskset.bounded


def test_a_full_context_ends_the_episode_with_the_reward_so_far(server: Server) -> None:
    full = {"error": {"message": "This model's maximum context length is 4096 tokens", "code": 400}}
    server.script = [count, (400, full, {})]
    (trace,) = play(server, config(COUNTER))
    assert (trace.ok, trace.info["envgym"]["ending"]) == (True, "TRUNCATED_TOKENS")
    assert trace.rewards["episode_reward"].value == 0.0


def test_a_model_that_fails_makes_the_rollout_fail(server: Server) -> None:
    server.script = [(401, {"error": {"message": "wrong key"}}, {})]
    (trace,) = play(server, config(COUNTER))
    assert (trace.ok, trace.last_error.type) == (False, "ProviderError")
    assert "wrong key" in trace.last_error.message
    assert not trace.rewards


def test_another_system_prompt_replaces_that_of_the_env(server: Server) -> None:
    (trace,) = play(server, config(COUNTER), system_prompt="Count fast.")
    assert (trace.nodes[0].message.content, trace.rewards["episode_reward"].value) == ("Count fast.", 1.0)


def test_another_harness_gives_no_reward_instead_of_zero(server: Server) -> None:
    task = next(iter(load_environment(config(COUNTER)).taskset))
    trace = vf.Trace(task=vf.TraceTask(type="EnvgymTask", data=task.data), agent=vf.AgentInfo(config=vf.AgentConfig()))
    with pytest.raises(vf.TaskError, match="episode must have a valid reward"):
        asyncio.run(task.score(trace))


def test_the_env_server_plays_a_task_that_a_trainer_sends(server: Server) -> None:
    settings = config(COUNTER, split="test", settings={"max_turns": 9})
    task = next(iter(load_environment(settings).taskset))

    async def run() -> Any:
        env_server = EnvServer(settings, address="tcp://127.0.0.1:0")
        serving = asyncio.create_task(env_server.run())
        trainer = EnvClient(env_server.address)
        try:
            return await trainer.run(client(server), "policy", vf.SamplingConfig(), task.data.model_dump(mode="json"))
        finally:
            await trainer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    (trace,) = asyncio.run(run()).traces
    assert (trace.ok, trace.rewards["episode_reward"].value) == (True, 1.0)
    assert trace.info["envgym"]["env"] == COUNTER


@pytest.mark.parametrize(
    "env, taskset, sentence",
    [
        ("puzzles/guess_numbr-v0", {}, "did you mean puzzles/guess_number-v0"),
        (COUNTER, {"settings": {"turns": 3}}, "keyword argument must be a known name, got 'turns'"),
        (COUNTER, {"settings": {"max_turns": 0}}, "max_turns must be at least 1"),
        (COUNTER, {"split": "tests"}, "did you mean test?"),
        (COUNTER, {"max_turns": 0}, "greater than or equal to 1"),
        (COUNTER, {"seed": -1}, "greater than or equal to 0"),
    ],
)
def test_bad_input_is_a_config_error_with_our_sentence(env: str, taskset: Json, sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        config(env, **taskset)


def test_a_taskset_without_an_env_is_refused() -> None:
    with pytest.raises(InvalidInput, match="env must be the id of an environment"):
        load_environment(config(""))
