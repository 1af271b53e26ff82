"""Calls the controllers of a run between its steps, and puts what they change in force."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from envgym.agents.search.protocol import TreeStrategy
from envgym.files import write_json
from envgym.settings import read_value
from envgym.trainer.build import RunContext
from envgym.trainer.checks.changes import changed_settings, leaves
from envgym.trainer.checks.compatibility import check_critic_stays, check_run
from envgym.trainer.learner.weights import set_trained_weights, trained_weights
from envgym.trainer.method import Method, build_method
from envgym.trainer.methods.controllers.base import Control, ControlContext, EvaluationSummary
from envgym.trainer.methods.protocols import Checkpointed
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.reference import reset_reference
from envgym.trainer.models.scores import check_score_models
from envgym.trainer.rollout.collector import Collector
from envgym.trainer.settings import TrainSettings

_FILE = "history.json"


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

    def __init__(self, settings: TrainSettings, method: Method, run: Path) -> None:
        """Begin with the settings and the method of the run in the directory `run`."""
        self.settings = settings
        """In force from the next step on."""
        self.reference_step = 0
        """Step after which the reference was last reset; 0: it is that of the beginning."""
        self._run = run
        self.history: list[ControlEvent] = []
        names = [choice.name.rpartition(":")[2] for choice in settings.controllers]
        labels = [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names)]
        self._controllers = list(zip(labels, method.controllers, strict=True))

    @property
    def stopped(self) -> str | None:
        """Why the run is over; None: it is not."""
        return next((event.stop for event in self.history if event.stop is not None), None)

    def parts(self) -> dict[str, Checkpointed]:
        """Return this as a part of a checkpoint; {} where there are no controllers."""
        return {"control": self} if self._controllers else {}

    def after_step(
        self,
        context: RunContext,
        collector: Collector,
        step: int,
        metrics: Metrics,
        evaluations: Sequence[EvaluationSummary],
    ) -> tuple[RunContext, Metrics]:
        """Do what the controllers ask for after a step.

        Args:
            context: of the run.
            collector: of its groups.
            step: train steps done.
            metrics: of this step.
            evaluations: that were made before it.

        Returns: the parts of the run as they go on, and metrics of what was done, named `control/...`.

        Raises: SettingsError, InvalidInput: a controller asks for what cannot be.
        """
        before, learner = self.settings, context.learner
        seen = ControlContext(
            step=step, settings=before, metrics=metrics, evaluations=evaluations, weights=trained_weights(context.model)
        )
        controls, own_metrics = self._decide(seen)
        changed = self.put_in_force(context, collector, before)
        for control in controls:
            if control.weights is not None:
                with context.policy.pause(step):
                    set_trained_weights(context.model, control.weights)
                    learner.take_weights()
                if not context.policy.shares_weights:
                    context.update_policy(step)
            if control.reset_optimizer:
                learner.reset_optimizer()
        if any(control.reset_reference for control in controls):
            reset_reference(changed.models, self._run, step)
            self.reference_step = step
        changed.open_reference()
        return changed, own_metrics | self._metrics(step)

    def put_in_force(self, context: RunContext, collector: Collector, before: TrainSettings) -> RunContext:
        """Return the parts of a run that went on by `before`, by the settings that are in force."""
        return context if before == self.settings else change_run(context, collector, before, self.settings)

    def _decide(self, seen: ControlContext) -> tuple[list[Control], Metrics]:
        """Ask each controller; change the settings, and keep what is to be done in the history."""
        controls: list[Control] = []
        metrics: Metrics = {}
        for label, controller in self._controllers:
            control = controller.after_step(replace(seen, settings=self.settings))
            if control is None:
                continue
            data = self.settings.model_dump(mode="json")
            self.settings = changed_settings(self.settings, control.settings, where=f"controller {label}")
            event = ControlEvent(
                step=seen.step,
                controller=label,
                settings=leaves(control.settings, data),
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
        """Return what was done after a step, and every number that was ever set, as it stands."""
        now = [event for event in self.history if event.step == step]
        data = self.settings.model_dump(mode="json")
        values = {path: read_value(data, path) for event in self.history for path in event.settings}
        return {
            "control/settings": float(sum(len(event.settings) for event in now)),
            "control/reference_resets": float(sum(event.reset_reference for event in now)),
            "control/optimizer_resets": float(sum(event.reset_optimizer for event in now)),
            "control/weights": float(sum(event.weights for event in now)),
            **{f"control/{path}": float(value) for path, value in values.items() if isinstance(value, int | float)},
        }

    def save(self, folder: Path) -> None:
        """Write the history."""
        events = [{field.name: getattr(event, field.name) for field in fields(event)} for event in self.history]
        write_json(folder / _FILE, {"reference_step": self.reference_step, "events": events})

    def load(self, folder: Path) -> None:
        """Take over a history; its settings are in force then."""
        data = json.loads((folder / _FILE).read_text())
        self.reference_step = data["reference_step"]
        for event in (ControlEvent(**event) for event in data["events"]):
            self.settings = changed_settings(self.settings, event.settings, where=f"controller {event.controller}")
            self.history.append(event)


def change_run(context: RunContext, collector: Collector, before: TrainSettings, after: TrainSettings) -> RunContext:
    """Return a run's parts after a change of settings, which learner and collector follow from now on.

    A method whose choice did not change stays the object that it was; one that keeps a state and gets other settings
    goes on with its state.

    Raises: SettingsError: the settings do not suit the run.
    """
    method = changed_method(context.method, before, after)
    check_score_models(method.scores, context.models)
    check_run(method.search, method.credit, method.curriculum, after, context.env_sources)
    if isinstance(method.search, TreeStrategy):
        method.search.check_tokenizer(context.tokenizer)
    agent = replace(context.agent, settings=after.agent)
    changed = replace(context, method=method, agent=agent)
    changed.learner.optim = after.optim
    changed.change_collector(collector, after)
    return changed


def changed_method(method: Method, before: TrainSettings, after: TrainSettings) -> Method:
    """Return the method after a change of settings. Raises: SettingsError: it needs a critic, and there is none."""
    built = build_method(after)
    check_critic_stays(method.credit, built.credit, after)
    kept = {
        field.name: getattr(method, field.name)
        for field in fields(Method)
        if field.name in TrainSettings.model_fields
        and field.name != "objective"
        and getattr(before, field.name) == getattr(after, field.name)
    }
    changed, parts = replace(built, **kept), method.checkpointed_parts()
    for name, new in changed.checkpointed_parts().items():
        old = parts.get(name)
        if old is not None and old is not new and type(old) is type(new):
            with TemporaryDirectory() as folder:
                old.save(Path(folder))
                new.load(Path(folder))
    return changed
