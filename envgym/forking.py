"""Forks by replay: run an episode's actions again in a new instance, and verify that everything agrees.

For an env whose state cannot be copied (a process, a page) but whose episodes repeat.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from envgym.core.messages import Observation
from envgym.errors import ForkUnsupported, ResetNeeded, sentence
from envgym.records import StepRecord

if TYPE_CHECKING:
    from envgym.env import Env

EnvT = TypeVar("EnvT", bound="Env[Any]")  # every env has its own state type


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All that repeats an episode besides its task."""

    generator: np.random.Generator
    """The env's generator as it stood when the episode began; never drawn from."""
    first: Observation
    turns: tuple[StepRecord, ...] = ()

    def extended(self, turn: StepRecord) -> Self:
        """Return the recording with one turn more."""
        return replace(self, turns=(*self.turns, turn))


def copy_generator(generator: np.random.Generator) -> np.random.Generator:
    """Return a generator that continues with the same numbers (several times faster than a deep copy)."""
    bits = type(generator.bit_generator)(0)
    bits.state = generator.bit_generator.state
    return np.random.Generator(bits)


def fork_by_replay(env: EnvT) -> EnvT:
    """Return a new instance that has played the recorded episode of `env` again.

    Raises: ResetNeeded: no episode yet. ForkUnsupported: the replay differs; the first difference is named.
        InfrastructureError: the new instance could not be set up.
    """
    recording = env.recording
    if recording is None:
        raise ResetNeeded(sentence("fork", "follow a reset", "no episode", where=env.name, do="call reset first"))
    twin = env.fresh()
    try:
        twin.np_random = copy_generator(recording.generator)
        first = twin.reset(options={"task": env.task}).info["envgym"].observation
        _compare("first observation", recording.first, first, env.name)
        for played in recording.turns:
            again = twin.step(played.action).info["envgym"]
            _compare(f"observation of turn {played.turn}", played.observation, again.observation, env.name)
            _compare(f"reward of turn {played.turn}", played.reward, again.reward, env.name)
            _compare(f"ending of turn {played.turn}", played.ending, again.ending, env.name)
    except Exception:
        twin.close()
        raise
    return twin


def _compare(what: str, before: object, now: object, name: str) -> None:
    """Refuse a replay in which `now` is not `before`."""
    same = before == now
    if isinstance(before, Observation) and isinstance(now, Observation):
        same = same and before.messages == now.messages
    if not same:
        do = "make the episode repeatable or declare ForkCapability.NONE"
        raise ForkUnsupported(sentence(f"{what} of the replay", f"equal {before!r:.200}", repr(now), where=name, do=do))
