"""`envgym plan`: what a run will take on given devices, predicted from its settings."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from envgym.cli.common import add_json_argument, add_set_argument, at_least_0, echo, not_negative, print_json
from envgym.errors import InvalidInput

if TYPE_CHECKING:
    from envgym.trainer.planning.predict import Plan
    from envgym.trainer.planning.workload import Workload

_GIB: Final = 2**30
_FASTER: Final = 0.95
"""A split of the devices is named if its step takes less than this share of the time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file of settings")
    parser.add_argument("--gpus", type=at_least_0, metavar="N", required=True, help="number of devices")
    parser.add_argument("--gpu", metavar="NAME", default="h200", help="h200 (default), h100 or a100")
    text = "plan a Qwen2.5 of this size, such as 7B, in place of model.name"
    parser.add_argument("--size", metavar="SIZE", help=text)
    add_set_argument(parser, "override a setting, such as launch.learners=2; `envgym settings` lists all")
    add_json_argument(parser)
    group = parser.add_argument_group("episodes, which the settings do not state")
    group.add_argument("--turns", type=at_least_0, metavar="N", help="turns of an episode (default: 4)")
    text = "tokens of the first context (default: 512)"
    group.add_argument("--prompt-tokens", type=at_least_0, metavar="N", help=text)
    text = "tokens that the policy samples in a turn (default: 128, at most agent.max_turn_tokens)"
    group.add_argument("--turn-tokens", type=at_least_0, metavar="N", help=text)
    text = "tokens of a reply of the environment (default: 128)"
    group.add_argument("--reply-tokens", type=at_least_0, metavar="N", help=text)
    text = "seconds that the environment takes for a turn (default: 0)"
    group.add_argument("--env-s", type=not_negative, metavar="S", help=text)


def run(args: argparse.Namespace) -> int:
    """Print the plan, or refuse it in one sentence."""
    from envgym.trainer.launch.launch import check_addresses
    from envgym.trainer.method import build_method
    from envgym.trainer.methods.protocols import CriticCredit
    from envgym.trainer.planning.constants import control, device_named
    from envgym.trainer.planning.engine import devices_used
    from envgym.trainer.planning.fit import check_fits, fastest_split
    from envgym.trainer.planning.predict import predict
    from envgym.trainer.planning.scope import check_modelled, not_counted
    from envgym.trainer.planning.shapes import model_shape
    from envgym.trainer.settings import load_train_settings

    InvalidInput.unless(args.gpus, "--gpus", "be at least 1", args.gpus, where="envgym plan", do="pass --gpus 1")
    settings, device = load_train_settings(args.config, args.settings), device_named(args.gpu)
    workload = _workload(args, settings.agent.max_turn_tokens)
    check_modelled(settings, workload)
    check_addresses(settings)
    method = build_method(settings, warns=False)
    objective, left_out = method.objective, not_counted(settings, has_critic=isinstance(method.credit, CriticCredit))
    settings = settings.model_copy(update={"model": settings.model.on("cuda")})
    shape = model_shape(settings.model, settings.optim, size=args.size, has_reference=settings.objective.kl_coef > 0)
    plan = predict(settings, workload, shape, device, control(), objective)
    check_fits(plan, settings, shape, device, num_devices=args.gpus)
    inputs = (settings, workload, shape, device, control(), objective)
    split = fastest_split(*inputs, num_devices=args.gpus, check_split=check_addresses)
    sources = {"device": device.sources, "control": control().sources}
    if args.json:
        sizes = {"parameters": shape.parameters, "context": workload.context}
        rest = {"fastest": split and split.to_json(), "not_counted": left_out, "sources": sources}
        print_json({**plan.to_json(), **sizes, **rest})
        return 0
    _print(plan, workload, args, num_used=devices_used(settings))
    if split is not None and split.step_s < _FASTER * plan.step_s:
        keys = f"launch.learners={split.learners} and launch.servers={split.servers}"
        echo(f"{'faster':<12} {split.step_s:.2f} s with {keys}")
    if left_out:
        echo(f"{'not counted':<12} {', '.join(left_out)}")
    for kind, lines in sources.items():
        for line in lines:
            echo(f"{kind:<12} {line}")
    return 0


def _workload(args: argparse.Namespace, max_turn_tokens: int) -> "Workload":
    from envgym.trainer.planning.workload import Workload

    lengths = {name: getattr(args, name) for name in (item.name for item in fields(Workload))}
    lengths = {name: value for name, value in lengths.items() if value is not None}
    workload = Workload(**{"turn_tokens": min(Workload().turn_tokens, max_turn_tokens), **lengths})
    for name in ("turns", "prompt_tokens", "turn_tokens"):
        do, value = "raise it", getattr(workload, name)
        InvalidInput.unless(
            value >= 1, f"--{name.replace('_', '-')}", "be at least 1", value, where="envgym plan", do=do
        )
    return workload


def _print(plan: "Plan", workload: "Workload", args: argparse.Namespace, *, num_used: int) -> None:
    idle = args.gpus - num_used
    devices = f"{plan.learners} learner ranks, {plan.servers} policy servers"
    echo(f"{'devices':<12} {args.gpus} x {args.gpu}: {devices}" + (f", {idle} without work" if idle else ""))
    echo(f"{'episode':<12} {workload.turns} turns, {workload.context:,} tokens")
    echo(f"{'step':<12} {plan.step_s:.2f} s" + (", sampling and learning at the same time" if plan.overlaps else ""))
    for name, seconds in plan.seconds.items():
        echo(f"  {name:<10} {seconds:.2f} s" + ("  (bottleneck)" if name == plan.bottleneck else ""))
    for name, memory in (
        ("learner rank", plan.learner_memory),
        ("server" if plan.servers else "in turns", plan.sampler_memory),
    ):
        if memory:
            echo(f"{name:<12} {sum(memory.values()) / _GIB:.2f} GiB")
            for part, size in memory.items():
                echo(f"  {part:<15} {size / _GIB:.2f} GiB")
