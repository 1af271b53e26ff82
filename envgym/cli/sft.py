"""`envgym sft`: the warm start of a training run, by itself."""

import argparse
from pathlib import Path

from envgym.cli.common import Subparsers, add_command
from envgym.cli.train import add_config_arguments, read_settings, run_training
from envgym.errors import SettingsError, sentence

_EXAMPLES = """  envgym sft examples/demo.yaml
  envgym sft examples/demo.yaml --set sft.epochs=3
  envgym train examples/demo.yaml --set model.name=runs/demo-sft/checkpoints/step-000000/model --set sft=null"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    summary = "make the warm start of a training run, evaluate it, and keep it as a checkpoint in RUN-sft"
    parser = add_command(subparsers, "sft", summary=summary, examples=_EXAMPLES)
    add_config_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Train with no step behind the warm start."""
    settings = read_settings(args)
    if settings.sft is None:
        do = "add an sft section, or pass --set sft.episodes=256"
        raise SettingsError(sentence("sft", "be set", "nothing", where=args.config, do=do))
    if not Path(args.config).is_dir():  # a run directory to resume is a warm start already
        renamed = {"name": f"{settings.run.name}-sft", "directory": f"{settings.run.path}-sft", "steps": 0}
        settings = settings.model_copy(update={"run": settings.run.model_copy(update=renamed)})
    elif settings.run.steps:
        do = "use envgym train RUN --resume"
        raise SettingsError(sentence("run.steps", "be 0", settings.run.steps, where=args.config, do=do))
    return run_training(settings, args)
