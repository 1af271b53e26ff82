"""A reward is a value or it is invalid; there is no silent zero."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envgym.core.endings import Ending
from envgym.errors import InvalidInput, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A reward that counts."""

    value: float
    """Any finite number; a truncated episode's value too: its ending is `TRUNCATED_*`."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named parts as the rubric gave them, before weighting."""

    def __post_init__(self) -> None:
        """Refuse NaN and infinities."""
        if not math.isfinite(self.value):
            raise InvalidInput(
                sentence("reward", "be a finite number", self.value, where="Scored", do="record Invalid instead")
            )
        for name, part in self.components.items():
            if not math.isfinite(part):
                do = "leave the component out, or record Invalid instead"
                raise InvalidInput(sentence(f"component {name}", "be a finite number", part, where="Scored", do=do))


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A reward that does not exist because infrastructure failed."""

    cause: Ending
    """One of the `ERROR_*` endings."""
    reason: str
    """What failed, in one sentence."""

    def __post_init__(self) -> None:
        """Refuse causes that are not infrastructure failures."""
        if not self.cause.is_error:
            raise InvalidInput(
                sentence("cause", "be an ERROR_ ending", self.cause, where="Invalid", do="record Scored instead")
            )


Reward = Scored | Invalid
"""What one turn, or a whole episode, paid."""

ZERO = Scored(value=0.0)


def total(rewards: Iterable[Reward]) -> Reward:
    """Add the turn rewards of an episode: values and components add, one invalid makes the sum invalid."""
    value = 0.0
    components: dict[str, float] = {}
    for reward in rewards:
        if isinstance(reward, Invalid):
            return reward
        value += reward.value
        for name, part in reward.components.items():
            components[name] = components.get(name, 0.0) + part
    return Scored(value=value, components=components)
