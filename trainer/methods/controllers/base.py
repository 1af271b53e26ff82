"""What a controller sees after a train step, and what it may do to the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from envgym.config.plugins import PluginKind
from envgym.config.settings import read_value
from envgym.errors import SettingsError
from envgym.trainer.tables import KINDS


class EvaluationSummary(NamedTuple):
    """The headline numbers of one evaluation of the run."""

    step: int
    """Train steps done when it was made."""
    label: str
    """Such as `during`."""
    metrics: Mapping[str, float]
    """Such as `success`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlContext:
    """What is known after a train step."""

    step: int
    """Train steps done, this one included."""
    settings: Mapping[str, Any]
    """The sections of the run as plain data, with what controllers have changed."""
    metrics: Mapping[str, float]
    """Of this step, by the names of `metrics.jsonl`."""
    evaluations: Sequence[EvaluationSummary] = ()
    """All that were made before this step, by step; one that is due after it comes after the controllers."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """The parameters that train, by name: the learner's own, to be read and never written."""

    def metric(self, name: str) -> float | None:
        """Return a metric of this step, or LABEL/METRIC of the newest evaluation of that label; None: there is none."""
        if name in self.metrics:
            return self.metrics[name]
        label, _, metric = name.rpartition("/")
        of_label = [evaluation.metrics for evaluation in self.evaluations if evaluation.label == label]
        return of_label[-1].get(metric) if of_label else None

    def number(self, path: str) -> float:
        """Return the setting at a dotted path. Raises: SettingsError: there is no number."""
        value = read_value(self.settings, path)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError.of(path, "be a number", repr(value), where="controllers", do="name another setting")
        return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a controller asks for; it holds from the next step on."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted path -> value, such as `{"objective.kl_coef": 0.0}`, as plain data; checked as `--set` is."""
    reset_reference: bool = False
    """The policy as it is now becomes the reference of the KL term."""
    reset_optimizer: bool = False
    """The policy's optimizer forgets its moments; its learning rate stays that of the schedule."""
    weights: Mapping[str, Tensor] | None = None
    """New values of the parameters that train, by the names of `ControlContext.weights`."""
    stop: str | None = None
    """Why the run ends after this step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the controller's own; they are recorded as `control/NAME`."""


@runtime_checkable
class Controller(Protocol):
    """Looks at a run after each step, and may change how it goes on.

    One with a state of its own also has the two methods of `Checkpointed`. It must be deterministic: a run that is
    resumed calls it again with what it saw before.
    """

    def after_step(self, context: ControlContext) -> Control | None:
        """Return the changes to make; None: none."""
        ...


CONTROLLER: Final[PluginKind[Controller]] = KINDS["controller"]


@runtime_checkable
class ActsAtStop(Controller, Protocol):
    """A controller that has something left to do when another one ends the run before its last step."""

    def at_stop(self, context: ControlContext) -> Control | None:
        """Return the changes to make as the run ends after this step; `after_step` was called before, by all."""
        ...


@runtime_checkable
class Planned(Protocol):
    """A controller that knows beforehand which settings it may set; the run checks them before it starts."""

    def planned(self, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the changes, in the order in which they come, given the sections that the run begins with."""
        ...
