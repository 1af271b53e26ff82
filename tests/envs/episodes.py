"""What the tests of environments play, and the classes that run the conformance checks."""

from typing import Any

from envgym.conformance import EnvConformance
from envgym.conformance.env_under_test import ObservedEpisode, play
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env
from envgym.records import StepResult


def conformance(env_id: str, *, num_tasks: int = 20, **kwargs: Any) -> type[EnvConformance]:  # the env's own arguments
    """Make a test class of the conformance checks on an env with some arguments."""
    return type("Test", (EnvConformance,), {"env_id": env_id, "env_kwargs": kwargs, "num_tasks": num_tasks})


def play_actions(env: Env[Any], task: Task, *actions: str) -> ObservedEpisode:  # any state
    """Play an episode of the given actions, to its end or until they are over."""
    return play(env, lambda turn, _: actions[turn], seed=0, task=task, max_turns=len(actions))


def rewards_of(episode: ObservedEpisode) -> list[float]:
    """Return what each turn is paid."""
    rewards = [turn.reward for turn in episode.turns]
    return [reward.value for reward in rewards if isinstance(reward, Scored)]


def step_after_fork(env: Env[Any], task: Task, twin_action: str, action: str) -> tuple[StepResult, StepResult]:
    """Fork an env at the start of a task; return a step of the fork, and one of the env after it."""
    env.reset(options={"task": task})
    twin = env.fork()
    return twin.step(twin_action), env.step(action)
