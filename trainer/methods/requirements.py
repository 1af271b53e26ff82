"""What a plug-in requires of the other choices of a run; asked before a model is loaded.

A requirement asks another plug-in for what it can do, by an attribute or a protocol, never for its name.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from envgym.core.segments import Origin
from envgym.core.tree import Source

if TYPE_CHECKING:
    from envgym.agents.search import Strategy
    from envgym.trainer.learner.settings import CriticSettings, ObjectiveSettings, OptimSettings
    from envgym.trainer.methods.corrections.base import Correction
    from envgym.trainer.methods.losses.base import PolicyLoss
    from envgym.trainer.methods.protocols import Allocator, BatchCredit, Credit, Curriculum, Filter, Shaping
    from envgym.trainer.methods.replay.base import Replay
    from envgym.trainer.rollout.settings import RolloutSettings
    from envgym.trainer.workflows.settings import DemonstrationSettings


class Fault(NamedTuple):
    """The parts of the sentence that refuses a run."""

    what: str
    must: str
    got: str
    do: str

    @classmethod
    def unless(cls, holds: object, what: str, must: str, got: object, do: str) -> "Fault | None":
        """Return None if a requirement holds, else the fault."""
        return None if holds else cls(what, must, str(got), do)


class TermChoice(NamedTuple):
    """A term of the objective."""

    title: str
    """Such as `objective term imitation`."""
    loss_name: str
    loss: "PolicyLoss"
    sources: Sequence[Source]
    origins: Set[Origin]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlugins:
    """The plug-ins of a method that work on groups: which are sampled, which train, and with what advantages."""

    curriculum: "Curriculum"
    search: "Strategy"
    filter: "Filter"
    shaping: "Shaping"
    credit: "Credit | BatchCredit"
    replay: "Replay | None" = None
    """None: nothing but what a step samples trains in it."""
    allocator: "Allocator | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices(GroupPlugins):
    """The plug-ins of a run as they were built, and the sections of its settings that requirements read."""

    names: Mapping[str, str]
    """Section -> name of its plug-in, for sentences."""
    correction: "Correction"
    loss: "PolicyLoss"
    """Of the policy."""
    terms: Sequence[TermChoice]
    """The policy's loss, then `objective.terms`."""
    readers: Sequence[tuple[str, object]]
    """Plug-ins that may read states or scores, each after the words that name it in a sentence."""
    wrapper_prompts: Sequence[str]
    """Names in `Tree.prompts` that wrappers of the envs may fill."""
    num_steps: int
    """Train steps of the run."""
    rollout: "RolloutSettings"
    optim: "OptimSettings"
    objective: "ObjectiveSettings"
    critic: "CriticSettings | None"
    demonstrations: "DemonstrationSettings | None"

    @property
    def tree_prompts(self) -> tuple[str, ...] | None:
        """Names in `Tree.prompts` that the run fills; None: its curriculum or allocator does not declare them."""
        plugins = (plugin for plugin in (self.curriculum, self.allocator) if plugin is not None)
        declared: list[Any] = [getattr(plugin, "tree_prompts", None) for plugin in plugins]
        return None if None in declared else (*chain.from_iterable(declared), *self.wrapper_prompts)


@runtime_checkable
class Requires(Protocol):
    """A part of a run's method that does not work with every other choice."""

    def requires(self, choices: Choices) -> Fault | None:
        """Return why a run with these choices is refused; None: the plug-in has no objection."""
        ...
