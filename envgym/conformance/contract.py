"""Checks of single turns: nothing raises, all stays in its bounds, records agree with Gymnasium's tuple; and its own
checker, its vector env, and what a reset, a turn and a fork cost.
"""

import math
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from statistics import median

from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from envgym.conformance.agents import echo, hostile_actions, random_agent
from envgym.conformance.env_under_test import CheckFailed, EnvUnderTest, ObservedEpisode, oracle_of, play
from envgym.core.messages import Action, Observation
from envgym.core.turns import Ending, Invalid, Scored
from envgym.env import MAX_ACTION_CHARS, ForkCapability
from envgym.records import ResetRecord, ResetResult, StepRecord, StepResult
from envgym.wrappers import AnyEnv

MAX_TURN_S = 5.0
"""No text may keep an env that does not block busy for longer."""


def hostile_actions_are_answered(subject: EnvUnderTest) -> str:
    """Say every hostile text: no exception, no `ERROR_` ending, no hanging."""
    count, slowest = 0, 0.0
    with closing(subject.make()) as env:
        result: ResetResult | StepResult = env.reset(seed=subject.seed)
        tools = result.info["envgym"].tools
        is_over = False
        for action in hostile_actions(tools):
            if is_over:
                env.reset(seed=subject.seed + count)
            start = time.perf_counter()
            try:
                result = env.step(action)
            except Exception as error:
                raise CheckFailed(f"{action!r:.80} raises {type(error).__name__}: {error}") from error
            slowest = max(slowest, time.perf_counter() - start)
            record: StepRecord = result.info["envgym"]
            if record.ending is not None and record.ending.is_error:
                raise CheckFailed(f"{action!r:.80} ends the episode with {record.ending}: {record.error}")
            if result.observation not in env.observation_space:
                raise CheckFailed(f"{action!r:.80} gets an observation of {len(result.observation)} characters")
            if slowest > MAX_TURN_S and not env.blocking:
                raise CheckFailed(f"{action!r:.80} takes {slowest:.1f} s in an env that declares blocking = False")
            is_over = result.terminated or result.truncated
            count += 1
    return f"{count} actions, the longest over {MAX_ACTION_CHARS} characters; slowest {slowest * 1e3:.0f} ms"


def rewards_in_range(subject: EnvUnderTest) -> str:
    """Play the oracle, an echo and random actions: each episode's reward must lie in the declared range."""
    episodes = _some_episodes(subject)
    with closing(subject.make()) as env:
        low, high = env.unwrapped.reward_range
        chance, optimum = env.unwrapped.chance_score, env.unwrapped.optimum
    if not low <= chance <= optimum <= high:
        text = f"reward_range {low, high}, chance_score {chance} and optimum {optimum}"
        raise CheckFailed(f"{text} must be ordered: low <= chance <= optimum <= high")
    rewards = [episode.reward for episode in episodes]
    for episode, reward in zip(episodes, rewards, strict=True):
        if not low - 1e-9 <= reward <= high + 1e-9:
            raise CheckFailed(f"task {episode.first.task.id} pays {reward:g}, outside the declared [{low:g}, {high:g}]")
    return f"{len(rewards)} episodes paid {min(rewards):g} to {max(rewards):g}, declared [{low:g}, {high:g}]"


def observations_in_bound(subject: EnvUnderTest) -> str:
    """Play likewise: every observation must lie within the env's space."""
    longest = 0
    episodes = _some_episodes(subject)
    with closing(subject.make()) as env:
        for episode in episodes:
            for text in (episode.observation, *(turn.observation for turn in episode.turns)):
                longest = max(longest, len(text))
                if text not in env.observation_space:
                    raise CheckFailed(f"an observation of {len(text)} characters is outside {env.observation_space}")
    return f"longest observation {longest} characters"


def _some_episodes(subject: EnvUnderTest) -> list[ObservedEpisode]:
    episodes = list(subject.oracle_episodes) if subject.has_oracle else []
    with closing(subject.make()) as env:
        for task in subject.played_tasks:
            episodes.append(play(env, echo, seed=subject.seed, task=task))
            agent = random_agent(episodes[-1].first.tools, subject.seed + len(episodes))
            episodes.append(play(env, agent, seed=subject.seed, task=task))
    return episodes


def records_are_consistent(subject: EnvUnderTest) -> str:
    """Compare every record with Gymnasium's tuple that carries it."""
    count = 0
    with closing(subject.make()) as env:
        for script in subject.scripts:
            reset = env.reset(seed=script.seed)
            _check_reset(env, reset, script.seed)
            for turn, action in enumerate(script.actions):
                result = env.step(action)
                _check_step(result, turn, action)
                count += 1
                if result.terminated or result.truncated:
                    break
        if subject.has_oracle:
            task = subject.played_tasks[0]
            if play(env, oracle_of(env), seed=subject.seed, task=task).task_key != task.key:
                raise CheckFailed("reset(options={'task': task}) starts another task")
    return f"{count} turns"


def _check_reset(env: AnyEnv, result: ResetResult, seed: int) -> None:
    record = result.info.get("envgym")
    _require(isinstance(record, ResetRecord), "info['envgym'] of reset must be a ResetRecord")
    _require(set(result.info) == {"envgym"}, f"info must have the one key envgym, got {sorted(result.info)}")
    assert isinstance(record, ResetRecord), "just required"
    _require(isinstance(record.observation, Observation), "the record's observation must be an Observation")
    _require(record.task == env.task, "the record's task must be env.task")
    _require(record.seed == seed, f"the record's seed must be {seed}, got {record.seed}")


def _check_step(result: StepResult, turn: int, action: str) -> None:
    record = result.info.get("envgym")
    _require(isinstance(record, StepRecord), "info['envgym'] of step must be a StepRecord")
    assert isinstance(record, StepRecord), "just required"
    _require(set(result.info) == {"envgym"}, f"info must have the one key envgym, got {sorted(result.info)}")
    _require(record.turn == turn, f"turn must be {turn}, got {record.turn}")
    _require(type(record.action) is Action, "the record must hold an Action")
    _require(record.action == action, "the record must hold the action that was passed to step")
    _require(str(record.observation) == str(result.observation), "record and tuple must hold one observation")
    _require({type(result.terminated), type(result.truncated)} == {bool}, "the flags must be bool")
    is_cut = record.ending is not None and record.ending is not Ending.TERMINATED
    _require(result.terminated == (record.ending is Ending.TERMINATED), "terminated must mean TERMINATED")
    _require(result.truncated == is_cut, "truncated must mean any other ending")
    is_error = record.ending is not None and record.ending.is_error
    _require(isinstance(record.reward, Invalid) == is_error, "a reward is invalid exactly at an ERROR_ ending")
    _require((record.error is not None) == is_error, "the record must hold an error exactly at an ERROR_ ending")
    value = record.reward.value if isinstance(record.reward, Scored) else 0.0
    _require({type(result.reward)} == {float} and math.isfinite(result.reward), "the reward must be a finite float")
    _require(result.reward == value, "record and tuple must hold one reward")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise CheckFailed(rule)


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
    messages = [str(item.message) for item in caught if _EXPECTED_WARNING not in str(item.message)]
    if messages:
        raise CheckFailed(f"check_env warns: {messages[0]}")
    return "check_env" if has_spec else "check_env, without its render modes (the env was not made by id)"


def runs_in_vector_env(subject: EnvUnderTest) -> str:
    """Play in `SyncVectorEnv`: each env must show what it shows alone."""
    seeds: list[int | None] = [subject.seed + index for index in range(_NUM_ENVS)]
    script = subject.scripts[0]
    with closing(subject.make()) as alone:
        expected = [str(alone.reset(seed=seed).observation) for seed in seeds]
    vector = SyncVectorEnv([subject.make] * _NUM_ENVS)
    try:
        observations, _ = vector.reset(seed=seeds)
        if list(observations) != expected:
            raise CheckFailed("the first observations in SyncVectorEnv are not those of single envs")
        for action in script.actions:
            observations, rewards, _, _, _ = vector.step([action] * _NUM_ENVS)
            if len(observations) != _NUM_ENVS or rewards.shape != (_NUM_ENVS,):
                raise CheckFailed(f"SyncVectorEnv returns {len(observations)} observations for {_NUM_ENVS} envs")
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
