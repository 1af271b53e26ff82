"""`envgym value`: learn what a policy's episodes are worth, for searches that are led by it."""

import argparse
from pathlib import Path

from envgym.cli.common import Subparsers, add_command, add_json_argument, at_least_0, print_json

_EXAMPLES = """  envgym value runs/demo
  envgym value runs/demo --episodes 4096 --set optim.lr=0.0005 --out runs/judge
  envgym eval --model runs/demo --search mcts \\
    --search-set value.name=critic --search-set value.run=runs/demo-value"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    summary = "fit a value to the episodes of a run's newest checkpoint on train tasks"
    parser = add_command(subparsers, "value", summary=summary, examples=_EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="directory of a training run; it is only read")
    help_episodes = "episodes on train tasks (default: 2048)"
    parser.add_argument("--episodes", type=at_least_0, default=2048, metavar="N", help=help_episodes)
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[],
                        help="setting of the fit, as optim.epochs=8; repeatable")  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="write here (default: RUN-value)")
    add_json_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Fit, and print how much of the returns the value explains."""
    from envgym.cli.results import Ticker
    from envgym.trainer.workflows.value_fit import fit_value, value_settings

    source = Path(args.run)
    out = None if args.out is None else Path(args.out)
    settings = value_settings(source, episodes=args.episodes, directory=out, overrides=args.overrides)
    fit = fit_value(settings, source, on_progress=Ticker())
    if args.json:
        print_json({"directory": str(fit.directory), "metrics": dict(fit.metrics)})
        return 0
    print("on train tasks that were held back:")
    for name, value in fit.metrics.items():
        print(f"  {name.removeprefix('critic/').replace('_', ' '):<20} {value:.3f}")
    print(f"use it with: --search mcts --search-set value.name=critic --search-set value.run={fit.directory}")
    return 0
