"""Checks against Gymnasium itself: its own checker and its vector env; and what a reset, a turn and a fork cost."""

import time
import warnings
from collections.abc import Callable
from contextlib import closing
from statistics import median

from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from envgym.conformance.env_under_test import EnvUnderTest
from envgym.conformance.report import CheckFailed
from envgym.env import ForkCapability

_EXPECTED_WARNING = "environment not having a spec"
_NUM_ENVS = 3
_REPEATS = 15
_SLOW_TURN_S = 0.25


def passes_gymnasium_checker(subject: EnvUnderTest) -> str:
    """Run `gymnasium.utils.env_checker.check_env`; its warnings count as failures."""
    with closing(subject.make()) as env, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env.unwrapped)
        except Exception as error:
            raise CheckFailed(f"check_env: {type(error).__name__}: {error}") from error
        has_spec = env.spec is not None
    told = [str(item.message) for item in caught if _EXPECTED_WARNING not in str(item.message)]
    if told:
        raise CheckFailed(f"check_env warns: {told[0]}")
    return "check_env" if has_spec else "check_env, without its render modes (the env was not made by id)"


def runs_in_vector_env(subject: EnvUnderTest) -> str:
    """Play in `SyncVectorEnv`: each env must show what it shows alone."""
    seeds: list[int | None] = [subject.seed + index for index in range(_NUM_ENVS)]
    script = subject.scripts[0]
    with closing(subject.make()) as alone:
        expected = [str(alone.reset(seed=seed).observation) for seed in seeds]
    vector = SyncVectorEnv([subject.make] * _NUM_ENVS)
    try:
        shown, _ = vector.reset(seed=seeds)
        if list(shown) != expected:
            raise CheckFailed("the first observations in SyncVectorEnv are not those of single envs")
        for action in script.actions:
            shown, rewards, _, _, _ = vector.step([action] * _NUM_ENVS)
            if len(shown) != _NUM_ENVS or rewards.shape != (_NUM_ENVS,):
                raise CheckFailed(f"SyncVectorEnv returns {len(shown)} observations for {_NUM_ENVS} envs")
    finally:
        vector.close()
    return f"SyncVectorEnv of {_NUM_ENVS}, {len(script.actions)} turns"


def costs_are_known(subject: EnvUnderTest) -> str:
    """Time a reset, a turn and a fork; an env that does not declare `blocking` must not be slow."""
    script = subject.scripts[-1]
    turns: list[float] = []
    with closing(subject.make()) as env:
        resets = [_seconds(lambda: env.reset(seed=script.seed)) for _ in range(_REPEATS)]
        while len(turns) < _REPEATS:
            env.reset(seed=script.seed)
            for action in script.actions:
                start = time.perf_counter()
                result = env.step(action)
                turns.append(time.perf_counter() - start)
                if result.terminated or result.truncated:
                    break
        env.reset(seed=script.seed)
        cost = f"reset {_format(resets)}, turn {_format(turns)}"
        if env.fork_capability is not ForkCapability.NONE:
            forks = [_seconds(lambda: env.fork().close()) for _ in range(_REPEATS)]
            cost += f", fork {_format(forks)} ({env.fork_capability})"
        if median(turns) > _SLOW_TURN_S and not env.blocking:
            raise CheckFailed(f"{cost}: a turn this slow must be declared with blocking = True")
    return cost


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _format(durations: list[float]) -> str:
    value = median(durations)
    return f"{value * 1e6:.0f} us" if value < 1e-3 else f"{value * 1e3:.1f} ms"
