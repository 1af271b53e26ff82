"""A taskset of verifiers as an agent program: each episode is a rollout of its environment with the model that trains.

    python verifiers_program.py env.toml 500 > rows.jsonl    # write its tasks as rows of data/file-v0
    agent: {program: {run: [python, verifiers_program.py, env.toml], reward: result}}
    agent: {program: {run: "verifiers_program.py:play", reward: result}}    # with env.toml in $VERIFIERS_ENV

The file holds the table `env` of verifiers. The command needs verifiers alone, the function envgym beside it.
"""

import asyncio
import json
import os
import sys
import tomllib
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config


def load(path: str) -> Any:
    """Return the environment of a file."""
    with open(path, "rb") as file:
        return load_environment(resolve_env_config(tomllib.load(file)["env"]))


def write_rows(env: Any, count: int) -> None:
    """Print the first tasks. The rollout gives the reward, so that no row has an answer."""
    for task in env.taskset.take(count):
        row = {"id": str(task.data.idx), "prompt": f"Task {task.data.idx}: {task.data.prompt_text}", "answer": "none"}
        print(json.dumps(row))


async def rollout(env: Any, index: int, base_url: str, model: str) -> dict[str, Any] | None:
    """Play a task; return its reward and parts, None if it has no reward. Raises: RuntimeError: the rollout failed."""
    (task,) = env.taskset.include(idx=[index])
    (slot,) = env.slots(task)
    client = vf.EvalClientConfig(base_url=base_url, api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_slot(slot, vf.ModelContext(client=client, model=model, sampling=vf.SamplingConfig()))
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    errors = [error for holder in (episode, *traces) for error in holder.errors]
    if errors or len(traces) != 1:
        raise RuntimeError(str(errors[-1].message) if errors else f"{len(traces)} agents train, not one")
    rewards = traces[0].rewards
    if not rewards or None in rewards.values():
        return None
    return {"reward": traces[0].reward, "components": {name: reward.value for name, reward in rewards.items()}}


def play(task: Any) -> dict[str, Any] | None:
    """Play a task of envgym in its process."""
    return asyncio.run(rollout(load(os.environ["VERIFIERS_ENV"]), int(task.id), task.base_url, task.model))


if __name__ == "__main__":
    if "ENVGYM_TASK_FILE" not in os.environ:
        write_rows(load(sys.argv[1]), int(sys.argv[2]))
    else:
        with open(os.environ["ENVGYM_TASK_FILE"], encoding="utf-8") as file:
            task = json.load(file)
        url = os.environ["OPENAI_BASE_URL"]
        try:
            result = asyncio.run(rollout(load(sys.argv[1]), int(task["id"]), url, task["model"]))
        except RuntimeError as error:
            sys.exit(f"the rollout failed: {error}")
        with open(os.environ["ENVGYM_RESULT"], "w", encoding="utf-8") as file:
            json.dump(result, file)
