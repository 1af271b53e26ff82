"""The trackers of `run.trackers`: built from settings, and kept from ending the training."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from envgym.config.plugins import Choice
from envgym.core.tree import Tree
from envgym.errors import RunError, SettingsError
from envgym.runtime.membership import warn_user
from envgym.trainer.metrics.callbacks import TRACKER, Callback
from envgym.trainer.metrics.update import Metrics

REQUIRED: Final = "required"
"""Setting of every tracker: whether its failure ends the training."""


class GuardedTracker(Callback):
    """Turns a tracker off at its first failure, with one warning; a required one ends the training instead."""

    def __init__(self, name: str, tracker: Callback, *, is_required: bool = False) -> None:
        self._name, self._tracker, self._is_required = name, tracker, is_required
        self._is_on = self._has_started = False

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        """Start the tracker. Raises: RunError: it fails and is required; so do the other methods."""
        self._is_on = self._has_started = True
        self._call(self._tracker.on_start, directory, config, first_step, last_step)

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        self._call(self._tracker.on_progress, phase, done, total, detail)

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        self._call(self._tracker.on_episodes, step, trees)

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._call(self._tracker.on_step, step, metrics)

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        self._call(self._tracker.on_evaluation, step, label, metrics)

    def on_end(self, report: Path | None) -> None:
        """End the tracker, also one that is off, so that it closes what it has opened."""
        if not self._has_started:
            return
        self._has_started = False
        if self._is_on:
            self._call(self._tracker.on_end, report)
            self._is_on = False
        else:
            with suppress(Exception):  # its first failure is reported
                self._tracker.on_end(report)

    def _call(self, method: Callable[..., None], *arguments: object) -> None:
        if not self._is_on:
            return
        try:
            method(*arguments)
        except Exception as error:  # of a package or of a class of the user
            self._is_on = False
            got = f"{type(error).__name__}: {error}"
            if self._is_required:
                do = f"correct it and resume the run, or remove `{REQUIRED}` in run.trackers"
                raise RunError.of(f"tracker {self._name}", "work", got, where="run.trackers", do=do) from error
            warn_user(
                f"tracker {self._name} failed and is off: {got}. Training continues. metrics.jsonl of the run "
                "directory has every step, and a resumed run starts the tracker again"
            )


def build_trackers(choices: Sequence[Choice]) -> list[Callback]:
    """Build the trackers of `run.trackers`.

    Raises: UnknownName, SettingsError: an unknown name, settings that do not fit, a package that is missing, or a name
        that is listed twice.
    """
    names = [choice.name for choice in choices]
    twice = sorted({name for name in names if names.count(name) > 1})
    SettingsError.unless(not twice, "run.trackers", "list each tracker once", twice, where="settings", do="remove one")
    return [_build(choice) for choice in choices]


def _build(choice: Choice) -> GuardedTracker:
    settings = choice.settings
    is_required = settings.pop(REQUIRED, False)
    if not isinstance(is_required, bool):
        where, do = f"tracker {choice.name}", "write `true` if the training must end with it"
        raise SettingsError.of(REQUIRED, "be true or false", is_required, where=where, do=do)
    tracker = TRACKER.build(Choice(name=choice.name, **settings))
    return GuardedTracker(choice.name, tracker, is_required=is_required)
