"""What a method of self-training chooses in every round."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from envgym.config.plugins import PluginKind
from envgym.trainer.tables import KINDS

Sections = Mapping[str, Any]
"""Sections of a run's settings, as plain data; each is laid over the run's section of the same name."""


@runtime_checkable
class SelfTrainingPlan(Protocol):
    """What a method of self-training chooses in every round.

    With an attribute `continues_scorer` that is true, a round's scorer begins with the weights of the scorer before,
    and not with the policy's.
    """

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Return how the scorer's episodes are searched, and its targets; `previous` is the last round's scorer."""
        ...

    def policy_sections(self, scorer: Path) -> Sections:
        """Return how the policy learns, given the run of the scorer."""
        ...


SELF_TRAINING: Final[PluginKind[SelfTrainingPlan]] = KINDS["self_training"]
