"""`envgym train` on a file that describes several runs: phases, or rounds of self-training."""

import argparse
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.common import echo, print_json, styled
from envgym.errors import SettingsError
from envgym.interrupts import describe_interrupt_by
from envgym.progress import ProgressDisplay
from envgym.settings import build_settings

if TYPE_CHECKING:
    from envgym.trainer.settings import TrainSettings

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
    from envgym.trainer.phases import phase_settings, train_phases, untrained_phases
    from envgym.trainer.sections import PhasesSettings, TrainRunSettings

    shared = {section: value for section, value in data.items() if section != PHASES}
    directory = build_settings(TrainRunSettings, {**shared.get("run", {})}, where=f"{args.config}, run").path
    listed = build_settings(PhasesSettings, {PHASES: data[PHASES]}, where=args.config).phases
    phases = phase_settings(shared, listed, directory)
    named = {settings.run.name: settings for settings in phases}
    if args.dry_run:
        return _dry_run(dict(zip(named, untrained_phases(phases), strict=True)), args)
    _check_folder(directory, args)
    train_phases(phases, callbacks=_trackers(phases[0]))
    return _report({name: settings.run.path for name, settings in named.items()}, args)


def _run_rounds(data: Mapping[str, Any], args: argparse.Namespace) -> int:
    from envgym.trainer.catalog import SELF_TRAINING as PLANS
    from envgym.trainer.sections import SelfTrainingSettings
    from envgym.trainer.self_training import self_train
    from envgym.trainer.settings import train_settings

    first = train_settings({key: value for key, value in data.items() if key != SELF_TRAINING}, where=args.config)
    chosen = build_settings(SelfTrainingSettings, data[SELF_TRAINING], where=f"{args.config}, self_training")
    plan = PLANS.build(chosen.plan)
    if args.dry_run:
        return _dry_run({"round 0": first}, args)
    _check_folder(first.run.path, args)
    rounds = self_train(
        first,
        plan,
        rounds=chosen.rounds,
        episodes=chosen.episodes,
        scorer=chosen.scorer,
        on_progress=ProgressDisplay(),  # lines of the fits alone: each training has a display of its own
        callbacks=_trackers(first),
    )
    return _report({f"round {number}": runs.policy for number, runs in enumerate(rounds, start=1)}, args)


def _check_folder(directory: Path, args: argparse.Namespace) -> None:
    """See that the runs may be written. Raises: RunError: the folder is taken, and `--resume` was not given."""
    from envgym.runs import check_new

    if not args.resume:
        check_new(directory)
    describe_interrupt_by(partial(_describe_runs, directory, args))


def _describe_runs(directory: Path, args: argparse.Namespace) -> str:
    """Say what runs that are interrupted have saved, and how to go on."""
    if not directory.exists():
        return "nothing was written"
    words = [args.command, args.config, *(word for text in args.settings for word in ("--set", text)), "--resume"]
    return f"all checkpoints are saved; continue with: envgym {shlex.join(words)}"


def _trackers(settings: "TrainSettings") -> list[Any]:  # Callback, of the trainer
    from envgym.trainer.catalog import TRACKER

    return [TRACKER.build(choice) for choice in settings.run.trackers]


def _dry_run(named: Mapping[str, "TrainSettings"], args: argparse.Namespace) -> int:
    """Show a batch of every run, as the model of the first one samples it: nothing has trained yet."""
    from envgym.cli.batch_view import print_dry_run
    from envgym.trainer.workflows.dry_run import dry_run

    found = {name: dry_run(settings) for name, settings in named.items()}
    if args.json:
        print_json({name: result.to_json() for name, result in found.items()})
        return 0
    for name, result in found.items():
        echo(styled(name, "bold"))
        print_dry_run(result, named[name])
    return 0


def _report(directories: Mapping[str, Path], args: argparse.Namespace) -> int:
    """Print what every run measured, and where its report is."""
    from envgym.cli.results import print_run, run_json

    if args.json:
        print_json({name: run_json(path, path / "report.html") for name, path in directories.items()})
        return 0
    for name, path in directories.items():
        echo(styled(name, "bold"))
        print_run(path, path / "report.html")
    return 0
