"""What a run reports while it runs: the base of callbacks, and the progress display."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from envgym.config.plugins import PluginKind
from envgym.core.tree import Tree
from envgym.runs.wall_time import WallClock
from envgym.runtime.progress import ProgressDisplay
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.tables import KINDS

COLLECT, LEARN = PHASES_OF_A_STEP = ("collect", "learn")
"""Phases that every train step has; the step's own line tells how they went."""
_STEPS = "train steps"


class Callback:
    """Base of callbacks: every method does nothing; override what you need. They run in the training thread."""

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        """Run once, before anything is sampled; a resumed run starts at its checkpoint's step."""

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Run often: `done` of `total` units (episodes, updates) of a phase are through; `detail`: 'loss 0.31'."""

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        """Run before `on_step`, with all trees that train step `step` (from 1) sampled, group by group."""

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Run after train step `step` (from 1)."""

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        """Run after an evaluation made when `step` train steps were done."""

    def on_end(self, report: Path | None) -> None:
        """Run once, also when the run failed (then without a report), even if `on_start` was not reached or raised."""


TRACKER: Final[PluginKind[Callback]] = KINDS["tracker"]


class EpisodeCounter:
    """Tells callbacks how many episodes of a phase have ended; call it with every tree as it ends."""

    def __init__(self, callbacks: Callback, phase: str, total: int) -> None:
        """Tell that a phase of `total` episodes begins."""
        self._callbacks, self._phase, self._total = callbacks, phase, total
        self._done, self._detail = 0, ""
        self._tell()

    def __call__(self, tree: Tree) -> None:
        self._done += len(tree.leaves)
        self._tell()

    def count_groups(self, num_finished: int, num_open: int) -> None:
        """Tell how many groups are finished, and how many are under way, where a step may take any of them."""
        self._detail = f"groups: {num_finished} finished, {num_open} open"
        self._tell()

    def _tell(self) -> None:
        done = min(self._done, self._total)  # of a step ahead more may end
        self._callbacks.on_progress(self._phase, done, self._total, self._detail)


class LiveProgress(Callback):
    """Show the run on a terminal or in a notebook: a bar per phase, a line per step and evaluation. Else: lines."""

    SHOWN = (
        ("success", "train/success"),
        ("reward", "reward/mean"),
        ("kept", "filter/kept"),
        ("entropy", "loss/entropy"),
        ("kl", "loss/kl_old"),
        ("gap", "logprob_gap/mean_abs"),
        ("turns", "rollout/turns"),
        ("s", "time/step_s"),
    )
    """Column -> metric of the line per step."""

    def __init__(self) -> None:
        self._display: ProgressDisplay | None = None

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        self._display = ProgressDisplay(quiet=(_STEPS, *PHASES_OF_A_STEP)).open()
        self._step, self._last = first_step, last_step
        self._display.print(f"run directory: {directory}")

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Show how far the phase is, and how far the run; its time begins with its first step's phase."""
        if phase in PHASES_OF_A_STEP:
            self._shown(_STEPS, self._step, self._last)
        self._shown(phase, done, total, detail)

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._step = step
        self._shown(_STEPS, step, self._last)
        parts = [f"{label} {metrics[name]:.3g}" for label, name in self.SHOWN if name in metrics]
        self._shown.print(f"step {step:>4}/{self._last}  " + "  ".join(parts) + self._shown.time_left(_STEPS))

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        text = "success {success:.1%} [{success_low:.1%}, {success_high:.1%}]".format(**metrics)
        text = "no valid episode" if math.isnan(metrics["success"]) else text
        self._shown.print(f"evaluation after {step} steps ({label}, {int(metrics['tasks'])} tasks): {text}")

    def on_end(self, report: Path | None) -> None:
        if self._display is not None:
            self._display.close()

    @property
    def _shown(self) -> ProgressDisplay:
        assert self._display is not None, "a run begins with on_start"
        return self._display


class TimeKeeper(Callback):
    """Records the wall time of a run, after every step and evaluation; a run that was over has none to add."""

    def __init__(self, clock: WallClock) -> None:
        self._clock, self._has_worked = clock, False

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        self._has_worked = True

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._record()

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        self._record()

    def on_end(self, report: Path | None) -> None:
        """Record the time, also where the run was stopped."""
        if self._has_worked:
            self._record()

    def _record(self) -> None:
        self._has_worked = True
        self._clock.record()


class Callbacks(Callback):
    """Hands every call to each of several callbacks, in order."""

    def __init__(self, members: Sequence[Callback]) -> None:
        self._members = tuple(members)

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        for member in self._members:
            member.on_start(directory, config, first_step, last_step)

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        for member in self._members:
            member.on_progress(phase, done, total, detail)

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        for member in self._members:
            member.on_episodes(step, trees)

    def on_step(self, step: int, metrics: Metrics) -> None:
        for member in self._members:
            member.on_step(step, metrics)

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        for member in self._members:
            member.on_evaluation(step, label, metrics)

    def on_end(self, report: Path | None) -> None:
        """End each, also if one before it raises."""
        with ExitStack() as stack:
            for member in reversed(self._members):  # a stack ends with what it was given first
                stack.callback(member.on_end, report)
