"""`envgym train`, `envgym sft`, `envgym value`: a training run, its warm start alone, the value of its episodes."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.common import (
    add_json_argument,
    add_set_argument,
    add_trust_argument,
    at_least_0,
    echo,
    import_from_here,
    print_json,
)
from envgym.cli.pipelines import is_pipeline, run_pipeline
from envgym.config.plugins import override_settings
from envgym.config.settings import places, read_settings_file
from envgym.errors import InvalidInput, SettingsError
from envgym.runtime.processes.interrupts import describe_interrupt_by, describe_saved
from envgym.runtime.progress import ProgressDisplay

if TYPE_CHECKING:
    from envgym.trainer.rollout.groups import CollectPlan
    from envgym.trainer.run import RunContext
    from envgym.trainer.workflows.dry_run import PlanMemory
    from envgym.trainer.workflows.settings import SftSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--dry-run", action="store_true", help="show one batch and the time and memory of a step; write nothing"
    )
    mode.add_argument(
        "--overfit-one-batch", type=int, metavar="N", help="sanity check: collect one batch and train N updates on it"
    )
    add_launch_arguments(parser)


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the processes beside this one: shorter names of the settings in `launch`."""
    parser.add_argument("--learners", type=int, metavar="N", help="processes that learn together, this one among them")
    parser.add_argument("--servers", type=at_least_0, metavar="M", help="policy servers beside this process")
    parser.add_argument("--env-servers", type=at_least_0, metavar="K", help="environment servers beside this process")
    help_workers = "processes that play the episodes; they need policy servers"
    parser.add_argument("--rollout-workers", type=at_least_0, metavar="W", help=help_workers)
    help_launcher = "start them on this machine, on a Ray cluster, or use the settings' addresses (default: local)"
    parser.add_argument("--launcher", choices=("local", "ray", "static"), help=help_launcher)
    help_timeout = "seconds within which every process must be ready"
    parser.add_argument("--start-timeout", type=float, metavar="S", help=help_timeout)


_LAUNCH = {name: name for name in ("learners", "servers", "env_servers", "rollout_workers", "launcher")} | {
    "start_timeout": "start_timeout_s"
}
"""Arguments -> keys of the section `launch`."""


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, `--set`, `--resume` and `--json`."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file of settings; with --resume also a run directory")
    add_set_argument(parser, "override a setting, such as optim.lr=1e-4; `envgym settings` lists all")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the newest checkpoint of the run directory"
    )
    add_trust_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train, or what was asked for instead."""
    launch_options = {key: getattr(args, name) for name, key in _LAUNCH.items()}
    args.settings += [f"launch.{key}={value}" for key, value in launch_options.items() if value is not None]
    from envgym.trainer.learner.ranks.meeting import is_torchrun

    data = _read_file(args)
    if data is not None and is_pipeline(data):
        do = f"use envgym train {shlex.quote(args.config)} --learners N, or train each stage by itself"
        SettingsError.unless(not is_torchrun(), "pipeline", "be one process", "torchrun", where=args.config, do=do)
        return run_pipeline(data, args)
    return _run(data, args)


def _read_file(args: argparse.Namespace) -> dict[str, Any] | None:
    """Read CONFIG with its overrides; None: it is a run directory. Raises: SettingsError: it cannot be read."""
    path = Path(args.config)
    if path.is_dir() or (args.resume and not path.exists() and path.suffix not in (".yaml", ".yml")):
        return None
    from envgym.trainer.settings import SettingsFile

    data = override_settings(SettingsFile, read_settings_file(path), args.settings)
    import_from_here(data)
    return data


def _run(data: dict[str, Any] | None, args: argparse.Namespace) -> int:
    """Train, or do what was asked for instead, by the settings of a file, or (None) of the run directory CONFIG."""
    from envgym.trainer.settings import load_train_settings, train_settings, warm_start_settings

    if data is not None:
        settings = train_settings(data, where=args.config, sources=places(args.settings))
    else:
        settings = load_train_settings(
            args.config, args.settings, resume=args.resume, trusted=args.trust, on_read=import_from_here
        )
    if args.command == "sft":
        settings = warm_start_settings(settings, is_resumed=Path(args.config).is_dir(), where=args.config)
    elif args.dry_run or args.overfit_one_batch is not None:
        from envgym.trainer.learner.ranks.meeting import is_torchrun

        if args.resume:
            what, must = "--resume", "be left out with --dry-run and --overfit-one-batch, which begin at the first step"
            do = "leave it out, and pass the YAML file of the run"
            raise InvalidInput.of(what, must, args.config, where="envgym train", do=do)
        do = "leave out --learners and torchrun; a rank needs that share of the memory of weights and optimizer"
        must, learners, updates = "be 1 where one process measures", settings.launch.learners, args.overfit_one_batch
        holds = learners == 1 and not is_torchrun()
        SettingsError.unless(holds, "launch.learners", must, learners, where="launch", do=do)
        if updates is not None and updates < 1:
            do = "pass the number of updates"
            raise InvalidInput.of("--overfit-one-batch", "be at least 1", updates, where="envgym train", do=do)
        from envgym.trainer.build import build_run_context, collect_plan

        context = build_run_context(settings)
        plan = collect_plan(context, settings)
        if updates is not None:
            return _overfit(context, plan, settings.sft, args)
        from envgym.trainer.planning.scope import planned_memory

        memory = partial(planned_memory, settings, context.method.objective, context.device.type)
        return _dry_run(context, plan, settings.sft, memory, args)
    from envgym.trainer.launch.launch import meeting_of_torchrun

    meeting = meeting_of_torchrun(settings.launch)
    if meeting is not None and meeting.rank:
        from envgym.agents.models.loading import prepare_device
        from envgym.trainer.launch.ranks import follow

        engine, timeout_s = settings.engine, settings.launch.rank_timeout_s
        device = prepare_device(engine.device, engine.threads)
        follow(meeting, device=device, timeout_s=timeout_s, on_settings=import_from_here)
        return 0
    command = f"envgym {args.command} {shlex.quote(str(settings.run.path))} --resume"
    describe_interrupt_by(partial(describe_saved, settings.run.path, command))
    from envgym.trainer.checks.preflight import check_names, open_run_directory

    open_run_directory(settings, resume=args.resume)  # these take no time; importing the trainer does
    check_names(settings.envs, settings.model)
    from envgym.cli.results import print_run, run_json
    from envgym.trainer.metrics.trackers.guard import build_trackers
    from envgym.trainer.train import train

    trackers = build_trackers(settings.run.trackers)
    result = train(settings, callbacks=trackers, resume=args.resume, started=args.started)
    if args.json:
        print_json({**run_json(result.directory, result.report), "steps": result.steps})
        return 0
    print_run(result.directory, result.report)
    return 0


def _dry_run(
    context: "RunContext",
    plan: "CollectPlan",
    sft: "SftSettings | None",
    memory: "PlanMemory",
    args: argparse.Namespace,
) -> int:
    from envgym.cli.batch_view import print_dry_run
    from envgym.trainer.workflows.dry_run import dry_run

    total = plan.rollout.groups * plan.rollout.group_size
    done = iter(range(1, total + 1))
    with ProgressDisplay() as progress:
        result = dry_run(
            context, plan, sft, memory, on_finished=lambda tree: progress("collect", next(done, total), total)
        )
    if args.json:
        print_json(result.to_json())
    else:
        print_dry_run(result)
    return 0


def _overfit(context: "RunContext", plan: "CollectPlan", sft: "SftSettings | None", args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from envgym.cli.batch_view import overfit_header, overfit_line, overfit_verdict
    from envgym.trainer.workflows.overfit import OverfitPoint, overfit

    def show(point: OverfitPoint) -> None:
        if not args.json:
            echo(overfit_header() + "\n" if point.updates == 0 else "", overfit_line(point), sep="", flush=True)

    with ProgressDisplay() as progress:
        points = overfit(context, plan, args.overfit_one_batch, sft=sft, on_point=show, on_progress=progress)
    if args.json:
        print_json([asdict(point) for point in points])
    else:
        echo(overfit_verdict(points))
    return 0


# ---- envgym sft ----------------------------------------------------------------------------------------------------


def run_sft(args: argparse.Namespace) -> int:
    """Train with no step after the warm start."""
    return _run(_read_file(args), args)


# ---- envgym value ---------------------------------------------------------------------------------------------------


def add_value_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", metavar="RUN", help="directory of a training run; it is not changed")
    help_episodes = "episodes on training tasks (default: 2048)"
    parser.add_argument("--episodes", type=at_least_0, default=2048, metavar="N", help=help_episodes)
    add_set_argument(parser, "setting of the fit, such as optim.epochs=8")
    parser.add_argument("--out", metavar="DIR", help="write here (default: RUN-value)")
    add_trust_argument(parser)
    add_json_argument(parser)


def run_value(args: argparse.Namespace) -> int:
    """Fit, and print how much of the returns the value explains."""
    from envgym.runs.directory import RunDirectory
    from envgym.trainer.self_training import fit_scorer, value_settings

    source = RunDirectory.open(args.run, trusted=args.trust).path
    out = None if args.out is None else Path(args.out)
    settings = value_settings(source, episodes=args.episodes, directory=out, overrides=args.settings)
    import_from_here(settings.model_dump(mode="json"))
    with ProgressDisplay() as progress:
        fit = fit_scorer(settings, source, on_progress=progress)
    if args.json:
        print_json({"directory": str(fit.directory), "metrics": dict(fit.metrics)})
        return 0
    echo("on training tasks that were held back:")
    for name, value in fit.metrics.items():
        echo(f"  {name.removeprefix('critic/').replace('_', ' '):<20} {value:.3f}")
    echo(f"use it with: --search mcts --search-set value.name=critic --search-set value.run={fit.directory}")
    return 0
