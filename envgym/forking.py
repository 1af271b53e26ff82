"""Forks by replay: run an episode's actions again in a new instance, and verify that everything agrees.

For an env whose state cannot be copied (a process, a page) but whose episodes repeat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from envgym.core.messages import Observation
from envgym.core.tasks import Task
from envgym.errors import EnvgymError, ForkUnsupported, InvalidInput
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
    return _restored(type(bits), bits.state)


def _restored(
    kind: Callable[[int], np.random.BitGenerator], state: Mapping[str, Any]
) -> np.random.Generator:  # NumPy's
    bits = kind(0)
    bits.state = state
    return np.random.Generator(bits)


def _seeded(seed: int) -> np.random.Generator:
    return seeding.np_random(seed)[0]


class LateGenerator(gymnasium.Env[str, str]):
    """An env whose generator is made when it is first drawn from: most episodes and their forks never need one."""

    _generator: np.random.Generator | None = None
    _make_generator: Callable[[], np.random.Generator] | None = None

    @property
    def _np_random(self) -> np.random.Generator | None:
        """Gymnasium's field: the env's generator; None before the first reset."""
        if self._generator is None and self._make_generator is not None:
            self._generator = self._make_generator()
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self._generator = generator

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:  # as Gymnasium's
        """Take the seed; without one the generator of the last reset goes on.

        Raises: InvalidInput: the seed is no int of at least 0.
        """
        if seed is not None:
            given: object = seed
            is_seed = isinstance(given, int) and given >= 0
            InvalidInput.unless(is_seed, "seed", "be an int of at least 0", given, where="reset", do="pass e.g. 0")
            self._generator, self._make_generator, self._np_random_seed = None, partial(_seeded, seed), seed
        elif self._np_random_seed is None:
            self._generator, self._np_random_seed = seeding.np_random()

    def own_generator(self) -> None:
        """Go on with a copy of the generator, made when it is drawn from: that of a shallow copy belongs to the env."""
        if self._generator is not None:
            bits = self._generator.bit_generator
            self._generator, self._make_generator = None, partial(_restored, type(bits), bits.state)


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
