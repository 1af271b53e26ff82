"""`envgym train`: run a training run; or look at what it would do, or at whether it can learn a single batch."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envgym.cli.common import Subparsers, add_command, add_json_argument, print_json
from envgym.errors import InvalidInput, SettingsError, sentence
from envgym.settings import apply_overrides, places

if TYPE_CHECKING:
    from envgym.trainer.settings import TrainSettings

_EXAMPLES = """  envgym train examples/demo.yaml
  envgym train examples/demo.yaml --set run.name=hot --set rollout.temperature=1.2
  envgym train examples/demo.yaml --dry-run
  envgym train runs/demo --resume"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = add_command(subparsers, "train", summary="train an agent as a settings file says", examples=_EXAMPLES)
    add_config_arguments(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="show one batch and what a step takes; nothing is written")
    mode.add_argument(
        "--overfit-one-batch", type=int, metavar="N", help="collect one batch and train N updates on it; a sanity check"
    )
    return parser


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, `--set`, `--resume` and `--json`."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file of settings; with --resume also a run directory")
    parser.add_argument(
        "--set", dest="settings", metavar="KEY=VALUE", action="append", default=[],
        help="replace a setting, as optim.lr=1e-4 or envs.0.settings.level=2; repeatable",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run directory")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train, or what was asked for instead."""
    settings = read_settings(args)
    if args.overfit_one_batch is not None:
        return _overfit(settings, args)
    if args.dry_run:
        return _dry_run(settings, args)
    return run_training(settings, args)


def read_settings(args: argparse.Namespace) -> "TrainSettings":
    """Read CONFIG with its overrides.

    Raises: SettingsError, UnknownName, RunError: settings, or a run directory, that cannot be used.
    """
    from envgym.runs import RunDirectory
    from envgym.trainer.settings import load_train_settings, train_settings

    sys.path.insert(0, os.getcwd())  # plug-ins may lie in the folder one works in
    path = Path(args.config)
    if not path.is_dir() and not (args.resume and not path.exists() and path.suffix not in (".yaml", ".yml")):
        return load_train_settings(path, args.settings)
    if not args.resume:
        do = "add --resume to go on with the run"
        raise SettingsError(sentence("CONFIG", "be a YAML file", "a directory", where=str(path), do=do))
    config = RunDirectory.open(path).config
    config["run"] = {**config.get("run", {}), "directory": str(path)}
    merged = apply_overrides(config, args.settings)
    return train_settings(merged, where=str(path / "config.json"), given=places(args.settings))


def run_training(settings: "TrainSettings", args: argparse.Namespace) -> int:
    """Train, show it, and print what came of it."""
    from envgym.trainer.checks.preflight import check_env_ids, open_run_directory

    check_env_ids(settings)  # these take no time; importing the trainer does
    open_run_directory(settings, resume=args.resume)
    from envgym.cli.results import print_comparisons, print_evaluations, print_untrained, run_json
    from envgym.trainer.catalog import TRACKER
    from envgym.trainer.train import train

    trackers = [TRACKER.build(choice) for choice in settings.run.trackers]
    try:
        result = train(settings, callbacks=trackers, resume=args.resume)
    except KeyboardInterrupt:
        if (settings.run.path / "run.json").exists():
            directory = shlex.quote(str(settings.run.path))  # it knows all settings, overrides too
            print(f"stopped; go on with: envgym {args.command} {directory} --resume", file=sys.stderr)
        raise
    if args.json:
        print_json({**run_json(result.directory, result.report), "steps": result.steps})
        return 0
    if result.steps:
        print_comparisons(result.directory)
        print_untrained(result.directory)
    else:
        print_evaluations(result.directory)
    print(f"report: {result.report}")
    return 0


def _dry_run(settings: "TrainSettings", args: argparse.Namespace) -> int:
    from envgym.cli.batch_view import print_dry_run
    from envgym.cli.results import Ticker
    from envgym.trainer.workflows.dry_run import dry_run

    total, ticker = settings.rollout.groups * settings.rollout.group_size, Ticker()
    done = iter(range(1, total + 1))
    found = dry_run(settings, on_finished=lambda tree: ticker("collect", next(done, total), total))
    if args.json:
        print_json(found.to_json())
    else:
        print_dry_run(found, settings)
    return 0


def _overfit(settings: "TrainSettings", args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from envgym.cli.batch_view import overfit_header, overfit_line, overfit_verdict
    from envgym.cli.results import Ticker
    from envgym.trainer.workflows.overfit import OverfitPoint, overfit

    updates = args.overfit_one_batch
    if updates < 1:
        do = "ask for some updates"
        raise InvalidInput(sentence("--overfit-one-batch", "be at least 1", updates, where="envgym train", do=do))

    def show(point: OverfitPoint) -> None:
        if not args.json:
            print(overfit_header() + "\n" if point.updates == 0 else "", overfit_line(point), sep="", flush=True)

    points = overfit(settings, updates, on_point=show, on_progress=Ticker())
    if args.json:
        print_json([asdict(point) for point in points])
    else:
        print(overfit_verdict(points))
    return 0
