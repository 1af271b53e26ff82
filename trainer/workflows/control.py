"""Calls the controllers of a run between its steps, and puts what they change in force."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from envgym.config.settings import read_value
from envgym.errors import InvalidInput
from envgym.runs.files import write_json
from envgym.trainer.checks.changes import SettingsInForce
from envgym.trainer.method import Method
from envgym.trainer.methods.controllers.base import ActsAtStop, Control, ControlContext, EvaluationSummary
from envgym.trainer.methods.protocols import Checkpointed
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.reference import reset_reference
from envgym.trainer.run import RunContext, open_reference, update_policy

_FILE = "history.json"
_Call = Callable[[ControlContext], Control | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEvent:
    """What one controller did after one step."""

    step: int
    controller: str
    settings: Mapping[str, Any]
    """Dotted path -> value, one for each setting."""
    reset_reference: bool
    reset_optimizer: bool
    weights: bool
    """Whether the policy got other weights."""
    stop: str | None

    @property
    def has_effect(self) -> bool:
        """Whether anything was done."""
        return bool(self.settings) or self.reset_reference or self.reset_optimizer or self.weights or bool(self.stop)


class RunControl:
    """Calls the controllers of a run after each step, in order; each sees the settings as the one before left them.

    Its part of a checkpoint is the history of what they did.
    """

    def __init__(self, settings: SettingsInForce, method: Method, run: Path) -> None:
        self._settings, self._run = settings, run
        self.reference_step = 0
        """Step after which the reference was last reset; 0: it is that of the beginning."""
        self.history: list[ControlEvent] = []
        names = [choice.name.rpartition(":")[2] for choice in settings.now.controllers]
        labels = [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names)]
        self._controllers = list(zip(labels, method.controllers, strict=True))

    @property
    def stopped(self) -> str | None:
        """Why the run is over; None: it is not."""
        return next((event.stop for event in self.history if event.stop is not None), None)

    def parts(self) -> dict[str, Checkpointed]:
        """Return this as a part of a checkpoint; {} where there are no controllers."""
        return {"control": self} if self._controllers else {}

    def decide(
        self, context: RunContext, metrics: Metrics, evaluations: Sequence[EvaluationSummary], *, step: int
    ) -> tuple[list[Control], Metrics]:
        """Ask each controller after `step` train steps; put the changed settings in force, and extend the history.

        Returns: what they ask for, and the metrics of their own, named `control/CONTROLLER/...`.

        Raises: SettingsError, InvalidInput: a controller asks for what cannot be.
        """
        calls = [(label, controller.after_step) for label, controller in self._controllers]
        weights, data = trained_weights(context.model), self._settings.data
        seen = ControlContext(step=step, settings=data, metrics=metrics, evaluations=evaluations, weights=weights)
        controls, own_metrics = self._call(calls, seen)
        if step < self._settings.now.run.steps and any(control.stop for control in controls):
            at_stop = [(label, item.at_stop) for label, item in self._controllers if isinstance(item, ActsAtStop)]
            last, last_metrics = self._call(at_stop, seen)
            controls, own_metrics = [*controls, *last], own_metrics | last_metrics
        return controls, own_metrics

    def act(self, controls: Sequence[Control], context: RunContext, *, step: int) -> Metrics:
        """Give a run, after a step, the weights, the optimizer and the reference that controllers decided on.

        Returns: metrics of what was done, named `control/...`.
        """
        for control in controls:
            if control.weights is not None:
                with context.policy.pause(step):
                    set_trained_weights(context.model, control.weights)
                    context.learner.take_weights()
                if not context.policy.shares_weights:
                    update_policy(context, step)
            if control.reset_optimizer:
                context.learner.reset_optimizer()
        if any(control.reset_reference for control in controls):
            reset_reference(context.models, self._run, step)
            self.reference_step = step
        open_reference(context)
        return self._metrics(step)

    def _call(self, calls: Sequence[tuple[str, _Call]], context: ControlContext) -> tuple[list[Control], Metrics]:
        controls: list[Control] = []
        metrics: Metrics = {}
        for label, call in calls:
            control = call(replace(context, settings=self._settings.data))
            if control is None:
                continue
            event = ControlEvent(
                step=context.step,
                controller=label,
                settings=self._settings.change(control.settings, where=f"controller {label}"),
                reset_reference=control.reset_reference,
                reset_optimizer=control.reset_optimizer,
                weights=control.weights is not None,
                stop=control.stop,
            )
            if event.has_effect:
                self.history.append(event)
            controls.append(control)
            metrics |= {f"control/{label}/{name}": value for name, value in control.metrics.items()}
        return controls, metrics

    def _metrics(self, step: int) -> Metrics:
        """Return the counts of changes after a step, and every number that was ever set, as it stands."""
        now = [event for event in self.history if event.step == step]
        data = self._settings.data
        values = {path: read_value(data, path) for event in self.history for path in event.settings}
        return {
            "control/settings": float(sum(len(event.settings) for event in now)),
            "control/reference_resets": float(sum(event.reset_reference for event in now)),
            "control/optimizer_resets": float(sum(event.reset_optimizer for event in now)),
            "control/weights": float(sum(event.weights for event in now)),
            **{f"control/{path}": float(value) for path, value in values.items() if isinstance(value, int | float)},
        }

    def save(self, folder: Path) -> None:
        events = [{field.name: getattr(event, field.name) for field in fields(event)} for event in self.history]
        write_json(folder / _FILE, {"reference_step": self.reference_step, "events": events})

    def load(self, folder: Path) -> None:
        """Take over a history; its settings are in force then."""
        data = json.loads((folder / _FILE).read_text())
        self.reference_step = data["reference_step"]
        for event in (ControlEvent(**event) for event in data["events"]):
            self._settings.change(event.settings, where=f"controller {event.controller}")
            self.history.append(event)


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that train, by name, as they lie in the model."""
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def set_trained_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give every parameter that trains another value. Raises: InvalidInput: other names or shapes."""
    mine = trained_weights(model)
    shapes, expected = ({name: tuple(w.shape) for name, w in of.items()} for of in (weights, mine))
    if shapes != expected:
        wrong = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))[:3]
        do = "return the names and shapes of ControlContext.weights"
        raise InvalidInput.of("weights", "be those that train", f"others at {wrong}", where="learner", do=do)
    for name, weight in mine.items():
        weight.copy_(weights[name])
