"""`envgym train` on a file that describes several runs: phases, or rounds of self-training."""

import argparse
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.common import echo, print_json, styled
from envgym.config.settings import build_settings
from envgym.errors import SettingsError
from envgym.runtime.processes.interrupts import describe_interrupt_by
from envgym.runtime.progress import ProgressDisplay

if TYPE_CHECKING:
    from envgym.trainer.workflows.dry_run import DryRun

PHASES, SELF_TRAINING = "phases", "self_training"


def is_pipeline(data: Mapping[str, Any]) -> bool:
    """Return whether the settings of a file describe several runs."""
    return PHASES in data or SELF_TRAINING in data


def run_pipeline(data: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Train run after run, from where they stopped; or show what each would begin with.

    Raises: SettingsError, UnknownName, RunError: as `train`, before anything is written.
    """
    if PHASES in data and SELF_TRAINING in data:
        must, do = "have one of phases and self_training", "make two files of it"
        raise SettingsError.of("settings file", must, "both", where=args.config, do=do)
    if args.overfit_one_batch is not None:
        must, do = "be given the settings of one run", "leave it out, or name a file without phases and self_training"
        raise SettingsError.of("--overfit-one-batch", must, args.config, where="envgym train", do=do)
    return _run_phases(data, args) if PHASES in data else _run_rounds(data, args)


def _run_phases(data: Mapping[str, Any], args: argparse.Namespace) -> int:
    from envgym.trainer.metrics.trackers.guard import build_trackers
    from envgym.trainer.phases import dry_runs, phase_settings, train_phases
    from envgym.trainer.settings import PhasesSettings, TrainRunSettings

    shared = {section: value for section, value in data.items() if section != PHASES}
    directory = build_settings(TrainRunSettings, {**shared.get("run", {})}, where=f"{args.config}, run").path
    listed = build_settings(PhasesSettings, {PHASES: data[PHASES]}, where=args.config).phases
    phases = phase_settings(shared, listed, directory)
    if args.dry_run:
        names = [settings.run.name for settings in phases]
        return _show_batches(dict(zip(names, dry_runs(phases), strict=True)), args)
    _check_folder(directory, args)
    train_phases(phases, callbacks=build_trackers(phases[0].run.trackers))
    return _report({settings.run.name: settings.run.path for settings in phases}, args)


def _run_rounds(data: Mapping[str, Any], args: argparse.Namespace) -> int:
    from envgym.trainer.methods.self_training.base import SELF_TRAINING as PLANS
    from envgym.trainer.metrics.trackers.guard import build_trackers
    from envgym.trainer.phases import dry_runs
    from envgym.trainer.self_training import self_train
    from envgym.trainer.settings import SelfTrainingSettings, train_settings

    first = train_settings({key: value for key, value in data.items() if key != SELF_TRAINING}, where=args.config)
    settings = build_settings(SelfTrainingSettings, data[SELF_TRAINING], where=f"{args.config}, self_training")
    plan = PLANS.build(settings.plan)
    if args.dry_run:
        return _show_batches({"round 0": dry_runs([first])[0]}, args)
    _check_folder(first.run.path, args)
    rounds = self_train(
        first,
        plan,
        rounds=settings.rounds,
        episodes=settings.episodes,
        scorer=settings.scorer,
        on_progress=ProgressDisplay(),  # lines of the fits alone: each training has a display of its own
        callbacks=build_trackers(first.run.trackers),
    )
    return _report({f"round {number}": runs.policy for number, runs in enumerate(rounds, start=1)}, args)


def _check_folder(directory: Path, args: argparse.Namespace) -> None:
    from envgym.runs.directory import check_new

    if not args.resume:
        check_new(directory)
    describe_interrupt_by(partial(_describe_runs, directory, args))


def _describe_runs(directory: Path, args: argparse.Namespace) -> str:
    if not directory.exists():
        return "nothing was written"
    words = [args.command, args.config, *(word for text in args.settings for word in ("--set", text)), "--resume"]
    return f"all checkpoints are saved; continue with: envgym {shlex.join(words)}"


def _show_batches(results: "Mapping[str, DryRun]", args: argparse.Namespace) -> int:
    """Show a batch of every run, as the model of the first one samples it: nothing has trained yet."""
    from envgym.cli.batch_view import print_dry_run

    if args.json:
        print_json({name: result.to_json() for name, result in results.items()})
        return 0
    for name, result in results.items():
        echo(styled(name, "bold"))
        print_dry_run(result)
    return 0


def _report(directories: Mapping[str, Path], args: argparse.Namespace) -> int:
    from envgym.cli.results import print_run, run_json

    if args.json:
        print_json({name: run_json(path, path / "report.html") for name, path in directories.items()})
        return 0
    for name, path in directories.items():
        echo(styled(name, "bold"))
        print_run(path, path / "report.html")
    return 0
