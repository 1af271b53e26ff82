"""How many episodes a step samples, and which of them it waits for."""

from typing import Literal

from pydantic import Field, model_validator

from envgym.agents.protocols import Sampling
from envgym.config.plugins import Choice
from envgym.config.settings import Settings, check_unread
from envgym.errors import SettingsError, sentence


def check_trainable(sampling: Sampling, *, where: str) -> None:
    """Refuse a way of sampling whose samples have no exact gradient. Raises: SettingsError."""
    must, do = "be above 0 in training", "raise it: greedy samples have no gradient"
    SettingsError.unless(sampling.temperature, "sampling.temperature", must, 0, where=where, do=do)
    for name, value, neutral in (("top_p", sampling.top_p, 1.0), ("top_k", sampling.top_k, 0.0)):
        must, do = f"be {neutral:g} in training", "leave it out: what is cut off has no exact gradient"
        SettingsError.unless(value == neutral, f"sampling.{name}", must, value, where=where, do=do)


class RolloutSettings(Settings):
    """How many episodes a step samples, how far sampling runs ahead of learning, and which episodes it waits for."""

    groups: int = Field(default=8, ge=1)
    """Groups per train step."""
    group_size: int = Field(default=8, ge=1)
    """Episodes that share a baseline; at least 2, but for a credit with a critic."""
    metrics: tuple[Choice, ...] = ()
    """What else is measured of each step's episodes: `endings`, `lengths`, or metrics of your own."""
    staleness: int = Field(default=0, ge=0)
    """Train steps by which a sample may be older than the weights that it trains. 0: every step samples anew. Above,
    the groups of later steps are begun already; choose a `correction`, as they are off-policy."""
    deterministic: bool = True
    """Finish groups before a step learns, so that a run repeats; with `staleness` the samples are then exactly that
    old. false: sampling, envs and learning overlap, and samples are at most that old."""
    oversampling: float = Field(default=1.0, ge=1)
    """Groups that are begun for each that a step trains on; it goes on when the filter keeps as many as it needs."""
    min_finished_share: float = Field(default=1.0, gt=0, le=1)
    """Share of a step's trees that it waits for in any case; a chain is a tree with one episode."""
    max_group_size: int = Field(default=64, ge=1)
    """Most episodes that are sampled of a group, where an `allocator` extends it."""
    stragglers: Literal["wait", "abort", "carry", "window"] = "wait"
    """What becomes of the others: waited for; aborted, so that their episodes under way are invalid; or carried over to
    the next step. `window`: a step takes finished groups of the next steps in their place, and they train as soon as
    they are finished, or are aborted before they are older than `staleness`."""
    window: float = Field(default=0.3, ge=0, le=1)
    """Share of the groups begun ahead among which `stragglers: window` looks for finished ones."""

    @property
    def overlaps(self) -> bool:
        """Whether groups are sampled while a step learns."""
        return self.staleness > 0 and not self.deterministic

    @property
    def steps_ahead(self) -> int:
        """Steps whose groups are begun ahead; one that carries over lets its stragglers grow older by one."""
        return self.staleness - (self.stragglers == "carry")

    @model_validator(mode="after")
    def _check_stragglers(self) -> "RolloutSettings":
        where, must = "rollout", "be false where stragglers are not waited for"
        if self.stragglers != "wait" and self.deterministic:
            do = "set it to false: which episodes are late depends on timing"
            raise ValueError(sentence("rollout.deterministic", must, True, where=where, do=do))
        if self.stragglers in ("wait", "window") and self.min_finished_share < 1:
            do = "set stragglers to abort or carry, or leave min_finished_share at 1"
            must, got = "be 1 where all are waited for", self.min_finished_share
            raise ValueError(sentence("rollout.min_finished_share", must, got, where=where, do=do))
        if self.stragglers in ("carry", "window") and not self.staleness:
            do = "raise it: an episode that is carried over was started with older weights"
            raise ValueError(sentence("rollout.staleness", "be at least 1 to carry over", 0, where=where, do=do))
        if self.stragglers == "window" and self.oversampling > 1:
            must, do = "be 1 where stragglers is window", "leave it out: what the filter drops is replaced at once"
            raise ValueError(sentence("rollout.oversampling", must, self.oversampling, where=where, do=do))
        if self.stragglers != "window":
            when, do = "where stragglers is not window", "set stragglers to window"
            check_unread(self, ("window",), when, where=where, do=do)
        return self


class ResamplingSettings(Settings):
    """Dynamic sampling: more groups in place of those that the filter drops. Source: 2503.14476."""

    rounds: int = Field(default=1, ge=1)
    """Most rounds of `rollout.groups` groups that a step collects; it stops when the filter has kept so many."""
