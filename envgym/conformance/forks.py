"""Checks of `fork`: a copy goes on exactly like the original, and neither touches the other."""

from collections.abc import Callable
from contextlib import closing
from functools import partial

from envgym.conformance.agents import random_actions
from envgym.conformance.env_under_test import (
    ActionScript,
    EnvUnderTest,
    ObservedEpisode,
    continue_episode,
    first_difference,
)
from envgym.conformance.report import CheckFailed
from envgym.env import ForkCapability
from envgym.errors import ForkUnsupported, ResetNeeded
from envgym.wrappers import AnyEnv

MAX_REPLAYED_TURNS = 4
"""A replay plays all earlier turns again, so only the first turns are forked."""


def fork_agrees(subject: EnvUnderTest) -> str:
    """Fork at every turn of each script: the same actions must give the same results on both sides."""
    count = 0
    for script in subject.scripts:
        with closing(subject.make()) as env:
            if env.fork_capability is ForkCapability.NONE:
                return _refuses(env)
            expected = script.play(env)
            for turn in range(_play_forked(env, expected)):
                begun = script.play(env, turn)
                with closing(env.fork()) as twin, closing(twin.fork()) as grandchild:
                    for name, copy in (("the fork", twin), ("the original", env), ("the fork of the fork", grandchild)):
                        _agree(
                            expected,
                            script.continue_episode(copy, begun),
                            f"{name} after turn {turn}, seed {script.seed}",
                        )
                count += 1
    return f"{count} forks, each with its original and its own fork"


def forks_are_independent(subject: EnvUnderTest) -> str:
    """Play other actions on one side, then the script on the other: it must not notice."""
    count = 0
    for script in subject.scripts:
        with closing(subject.make()) as env:
            if env.fork_capability is ForkCapability.NONE:
                return _refuses(env)
            expected = script.play(env)
            for turn in range(_play_forked(env, expected)):
                _play_apart(env, script, expected, turn)
                count += 1
    return f"{count} forks that went another way"


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


def _play_forked(env: AnyEnv, expected: ObservedEpisode) -> int:
    if env.fork_capability is ForkCapability.REPLAY:
        return min(len(expected.turns), MAX_REPLAYED_TURNS)
    return len(expected.turns)


def _refuses(env: AnyEnv) -> str:
    """Check that an env without forks says so."""
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


def _agree(expected: ObservedEpisode, got: ObservedEpisode, what: str) -> None:
    difference = first_difference(expected, got)
    if difference is not None:
        raise CheckFailed(f"{what} differs: {difference}")
