"""Forks by replay: run an episode's actions again in a new instance, and verify that everything agrees.

For an env whose state cannot be copied (a process, a page) but whose episodes repeat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np

from envgym.core.messages import Observation
from envgym.core.tasks import Task
from envgym.errors import EnvgymError, ForkUnsupported
from envgym.records import StepRecord

EnvT = TypeVar("EnvT", bound=gymnasium.Env[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All that repeats an episode besides its task."""

    generator: np.random.Generator
    """The env's generator as it stood when the episode began; never drawn from."""
    first: Observation
    turns: tuple[StepRecord, ...] = ()


def copy_generator(generator: np.random.Generator) -> np.random.Generator:
    """Return a generator that continues with the same numbers (several times faster than a deep copy)."""
    bits = generator.bit_generator
    return restore_generator(type(bits), bits.state)


def restore_generator(
    kind: Callable[[int], np.random.BitGenerator], state: Mapping[str, Any]
) -> np.random.Generator:  # NumPy's
    """Make a generator from the class and the state of its bits."""
    bits = kind(0)
    bits.state = state
    return np.random.Generator(bits)


def replay(recording: Recording, env: EnvT, *, task: Task, name: str) -> EnvT:
    """Play a recorded episode again in `env`, a new instance, and return it; it is closed where that fails.

    Raises: ForkUnsupported: the replay differs; the first difference is named. InfrastructureError: `env` could not be
        set up.
    """
    try:
        env.np_random = copy_generator(recording.generator)
        _, info = env.reset(options={"task": task})
        check = partial(check_equal, where=name, kind=ForkUnsupported)
        check("first observation", recording.first, info["envgym"].observation)
        for recorded in recording.turns:
            replayed = env.step(recorded.action)[-1]["envgym"]
            check(f"observation of turn {recorded.turn}", recorded.observation, replayed.observation)
            check(f"reward of turn {recorded.turn}", recorded.reward, replayed.reward)
            check(f"ending of turn {recorded.turn}", recorded.ending, replayed.ending)
    except Exception:
        env.close()
        raise
    return env


def check_equal(what: str, recorded: object, replayed: object, *, where: str, kind: type[EnvgymError]) -> None:
    """Refuse a replay in which the value called `what` differs. Raises: `kind`."""
    is_same = recorded == replayed
    if isinstance(recorded, Observation) and isinstance(replayed, Observation):
        is_same = is_same and recorded.messages == replayed.messages
    if not is_same:
        must, do = f"equal {recorded!r:.200}", "make the episode repeatable or declare ForkCapability.NONE"
        raise kind.of(f"{what} of the replay", must, repr(replayed), where=where, do=do)
