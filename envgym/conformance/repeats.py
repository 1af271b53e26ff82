"""Checks that an episode depends on its seed and actions alone (not on luck, neighbours, threads or pickle), and forks.

A copy goes on exactly like the original, and neither touches the other.
"""

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TypeVar

import numpy as np

from envgym.conformance.agents import Agent, random_actions
from envgym.conformance.env_under_test import (
    ActionScript,
    CheckFailed,
    CheckSkipped,
    EnvUnderTest,
    ObservedEpisode,
    continue_episode,
    first_difference,
)
from envgym.env import ForkCapability
from envgym.errors import ForkUnsupported, ResetNeeded
from envgym.wrappers import AnyEnv

ValueT = TypeVar("ValueT")


def same_seed_same_episode(subject: EnvUnderTest) -> str:
    """Play each script in two instances and twice in one: all must agree."""
    for script in subject.scripts:
        with closing(subject.make()) as one, closing(subject.make()) as other:
            expected = script.play(one)
            _agree(expected, script.play(other), f"a second instance with seed {script.seed}")
            _agree(expected, script.play(one), f"the same instance, reset again with seed {script.seed}")
    return f"{len(subject.scripts)} scripts, each in two instances and after a second reset"


def no_global_rng(subject: EnvUnderTest) -> str:
    """Play each script and look whether Python's or NumPy's global generator moved."""
    with closing(subject.make()) as env:
        subject.scripts[0].play(env)  # what is imported on first use may draw
        before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002  # the global state is what is tested
        for script in subject.scripts:
            script.play(env)
        after = random.getstate(), repr(np.random.get_state())  # noqa: NPY002  # likewise
    for name, was, now in zip(("random", "numpy.random"), before, after, strict=True):
        if was != now:
            raise CheckFailed(f"an episode changes the global random state of {name}; draw from self.np_random")
    return "the global random state did not change"


def interleaved_with_another(subject: EnvUnderTest) -> str:
    """Play each script while a second instance plays between its turns."""
    for script in subject.scripts:
        with closing(subject.make()) as env, closing(subject.make()) as neighbour:
            expected = script.play(env)
            beside = script.play(env, agent=_play_disturbed(script, neighbour))
            _agree(expected, beside, f"seed {script.seed} beside a second instance")
    return f"{len(subject.scripts)} scripts beside a second instance"


def _play_disturbed(script: ActionScript, neighbour: AnyEnv) -> Agent:
    """Return the script's agent, which lets `neighbour` play a turn of another episode before each of its own."""
    is_over = True

    def agent(turn: int, observation: str) -> str:
        nonlocal is_over
        if is_over:
            neighbour.reset(seed=script.seed + turn + 1)
        result = neighbour.step(script.actions[turn])
        is_over = result.terminated or result.truncated
        return script.actions[turn]

    return agent


def in_two_threads(subject: EnvUnderTest) -> str:
    """Play all scripts in two threads at once, each with its own instances."""

    def play_all(order: int) -> list[ObservedEpisode]:
        episodes = []
        for script in subject.scripts[::order]:
            with closing(subject.make()) as env:
                episodes.append(script.play(env))
        return episodes[::order]

    expected = play_all(1)
    with ThreadPoolExecutor(max_workers=2) as pool:
        for got in pool.map(play_all, (1, -1)):
            for script, before, now in zip(subject.scripts, expected, got, strict=True):
                _agree(before, now, f"seed {script.seed} in a thread beside another")
    return f"{len(subject.scripts)} scripts in each of two threads"


def survives_pickle(subject: EnvUnderTest) -> str:
    """Send an env through pickle in the middle of each script: it must go on the same way."""
    for script in subject.scripts:
        with closing(subject.make()) as env:
            if env.fork_capability is not ForkCapability.STATE:
                raise CheckSkipped(f"fork capability is {env.fork_capability}: the state lives outside Python")
            expected = script.play(env)
            middle = len(expected.turns) // 2
            begun = script.play(env, middle)
            with closing(_through_pickle(env)) as twin:
                _agree(
                    expected, script.continue_episode(twin, begun), f"seed {script.seed}, pickled after turn {middle}"
                )
            copied = _through_pickle(expected)
            if copied.first != expected.first or first_difference(expected, copied):
                raise CheckFailed("a typed record differs after it is pickled and restored")
    return f"{len(subject.scripts)} scripts, pickled in the middle"


def _through_pickle(value: ValueT) -> ValueT:
    try:
        twin: ValueT = pickle.loads(pickle.dumps(value))
    except Exception as error:
        raise CheckFailed(f"cannot be pickled: {type(error).__name__}: {error}") from error
    return twin


# ---- forks ----------------------------------------------------------------------------------------------------------

MAX_REPLAYED_TURNS = 4
"""A replay plays all earlier turns again, so only the first turns are forked."""


def fork_agrees(subject: EnvUnderTest) -> str:
    """Fork at every turn of each script: the same actions must give the same results on both sides."""
    return _fork_at_every_turn(subject, _play_alike, "forks, each with its original and its own fork")


def forks_are_independent(subject: EnvUnderTest) -> str:
    """Play other actions on one side, then the script on the other: it must not notice."""
    return _fork_at_every_turn(subject, _play_apart, "forks that went another way")


def _fork_at_every_turn(
    subject: EnvUnderTest, check: Callable[[AnyEnv, ActionScript, ObservedEpisode, int], None], what: str
) -> str:
    """Call `check` with an env, a script, the episode that it gives, and each turn to fork after."""
    count = 0
    for script in subject.scripts:
        with closing(subject.make()) as env:
            if env.fork_capability is ForkCapability.NONE:
                return _refuses(env)
            expected = script.play(env)
            is_replayed = env.fork_capability is ForkCapability.REPLAY
            num_turns = min(len(expected.turns), MAX_REPLAYED_TURNS) if is_replayed else len(expected.turns)
            for turn in range(num_turns):
                check(env, script, expected, turn)
            count += num_turns
    return f"{count} {what}"


def _play_alike(env: AnyEnv, script: ActionScript, expected: ObservedEpisode, turn: int) -> None:
    """Let the fork, the original and the fork of the fork go on with the script."""
    begun = script.play(env, turn)
    with closing(env.fork()) as twin, closing(twin.fork()) as grandchild:
        for name, copy in (("the fork", twin), ("the original", env), ("the fork of the fork", grandchild)):
            _agree(expected, script.continue_episode(copy, begun), f"{name} after turn {turn}, seed {script.seed}")


def _play_apart(env: AnyEnv, script: ActionScript, expected: ObservedEpisode, turn: int) -> None:
    """Let the fork go astray before the original goes on, and the other way round."""
    astray = tuple(random_actions(expected.first.tools, turn + 1, len(expected.turns)))
    begun = script.play(env, turn)
    with closing(env.fork()) as twin, closing(env.fork()) as other:
        list(continue_episode(twin, lambda index, _: astray[index], "", start=turn, max_turns=len(astray)))
        twin.reset(seed=script.seed + 1)
        where = f"after turn {turn}, seed {script.seed}"
        _agree(expected, script.continue_episode(env, begun), f"the original, whose fork went another way {where},")
        _agree(expected, script.continue_episode(other, begun), f"a fork, whose original and sibling went on {where},")


def _refuses(env: AnyEnv) -> str:
    env.reset(seed=0)
    try:
        env.fork()
    except ForkUnsupported:
        return "declares that it cannot be forked, and refuses"
    raise CheckFailed("declares fork capability none, but fork() returns something")


def order_is_enforced(subject: EnvUnderTest) -> str:
    """Step and fork before a reset, and step after the end: each must raise ResetNeeded."""
    with closing(subject.make()) as env:
        _needs_reset(partial(env.step, ""), "step before the first reset")
        if env.fork_capability is not ForkCapability.NONE:
            _needs_reset(env.fork, "fork before the first reset")
    ended = 0
    for script in subject.scripts:
        with closing(subject.make()) as env:
            if script.play(env).ending is not None:
                ended += 1
                _needs_reset(partial(env.step, ""), "step after the end")
                _needs_reset(partial(env.step, ""), "a second step after the end")
        env.close()  # closing twice must be harmless
    return f"before the first reset, and after {ended} endings; close() twice is harmless"


def _needs_reset(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except ResetNeeded:
        return
    raise CheckFailed(f"{what} must raise ResetNeeded, but it returns")


# ---- both -----------------------------------------------------------------------------------------------------------


def _agree(expected: ObservedEpisode, got: ObservedEpisode, what: str) -> None:
    if difference := first_difference(expected, got):
        raise CheckFailed(f"{what} gives another episode: {difference}")
