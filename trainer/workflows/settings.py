"""The demonstrations of a run: a warm start, and those beside the episodes of every step."""

from pydantic import Field

from envgym.config.plugins import Choice
from envgym.config.settings import Settings


class SftSettings(Settings):
    """A warm start: supervised training before the first step of reinforcement learning."""

    source: Choice = Choice(name="oracle")
    """What gives the demonstrations: `oracle` plays the envs' oracles on train tasks; `recorded` reads the episodes
    of another run (`directory`); `chat` reads conversations (`path` or `hub`); or a source of your own, such as
    `examples/giving_up.py:GivingUp`."""
    episodes: int = Field(default=256, ge=1)
    """Episodes to play; a source that reads them ignores it."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the demonstrations."""
    batch_size: int = Field(default=32, ge=1)
    """Episodes per update."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of AdamW at its highest."""
    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the updates in which the rate rises; it falls to 0 as a cosine afterwards."""
    until_success: float | None = Field(default=None, gt=0, le=1)
    """Stop once this share of sampled episodes on train tasks succeeds; the rate then stays up instead of falling."""
    check_every: int = Field(default=50, ge=1)
    """Updates between such checks."""
    check_tasks: int = Field(default=64, ge=1)
    """Episodes of each check, each on a task of its own."""
    next: "SftSettings | None" = None
    """A further phase after this one, with demonstrations and an optimizer of its own."""

    @property
    def phases(self) -> "list[SftSettings]":
        """This phase and those after it."""
        return [self, *(self.next.phases if self.next is not None else [])]


class DemonstrationSettings(Settings):
    """Demonstrations beside the episodes of every step, for terms of the objective that read them."""

    source: Choice = Choice(name="oracle")
    """What gives them, as for a warm start: `oracle` or `recorded` (`directory`)."""
    episodes: int = Field(default=256, ge=1)
    """Episodes to play when the run begins or is resumed; a source that reads them ignores it."""
    per_step: int = Field(default=8, ge=1)
    """Episodes drawn for each step."""
