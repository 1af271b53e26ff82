"""`envgym bench envs`: what a reset, a turn and a fork of each environment cost, played by its oracle."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from statistics import median
from typing import Any, TypeVar

import envgym
from envgym.cli.common import add_json_argument, add_set_argument, echo, env_kwargs, print_json, styled
from envgym.env import NoOracle
from envgym.errors import EnvgymError, InvalidInput
from envgym.wrappers import AnyEnv

ResultT = TypeVar("ResultT")

_FORK_SHARE = 0.5
"""Seconds of forks for each second of episodes, at most; one fork is made in any case."""
_COLUMNS = ("reset_us", "step_us", "fork_us", "fork_step_us", "episodes_per_s", "turns")
_TITLES = ("reset, µs", "step, µs", "fork, µs", "fork's step, µs", "episodes/s", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Medians of one environment."""

    reset_us: float
    step_us: float
    fork_us: float | None
    """None: it cannot be forked."""
    fork_step_us: float | None
    """The first turn of a fork, which may copy or replay what the fork itself left alone. None: it cannot be forked."""
    episodes_per_s: float
    """Whole episodes, with the oracle's own thoughts, one after the other."""
    turns: float
    """Of an episode."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("what", choices=("envs",), help="envs: environments, played by their oracles")
    parser.add_argument("envs", metavar="ENV", nargs="*", help="ids or import paths (default: every registered one)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of episodes per environment (default: 2)")
    parser.add_argument("--markdown", action="store_true", help="write a table for a page")
    add_set_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the environments; what cannot be made here is named with its reason."""
    if not args.seconds > 0:
        raise InvalidInput.of("--seconds", "be above 0", args.seconds, where="envgym bench", do="pass e.g. 2")
    registered = envgym.list_ids()
    for name in args.envs:
        if name not in registered and ":" not in name:
            envgym.make(name)  # says which names there are
    ids = args.envs or registered
    kwargs, results = env_kwargs(args.settings), dict[str, Speed | str]()
    for number, env_id in enumerate(ids, start=1):
        echo(styled(f"[{number}/{len(ids)}] {env_id}", "dim"), file=sys.stderr, flush=True)
        results[env_id] = speed_or_reason(env_id, args.seconds, kwargs)
    machine = {"python": platform.python_version(), "cores": os.cpu_count() or 1, "load": os.getloadavg()[0]}
    if args.json:
        speeds = {name: {"missing": item} if isinstance(item, str) else asdict(item) for name, item in results.items()}
        print_json({"machine": machine, "envs": speeds})
        return 0
    echo((_markdown if args.markdown else _table)(results))
    echo(f"\nPython {machine['python']}, {machine['cores']} cores, load {machine['load']:.1f}.")
    return 0


def speed_or_reason(env_id: str, seconds: float, kwargs: Mapping[str, Any]) -> Speed | str:  # the env's own arguments
    """Measure an environment, or say in a sentence why it cannot be measured here."""
    try:
        with closing(envgym.make(env_id, **kwargs)) as env:
            return measure(env, seconds)
    except (EnvgymError, NoOracle) as error:
        return str(error)


def measure(env: AnyEnv, seconds: float) -> Speed:
    """Play episodes for some seconds, at least one, then one more with forks in between."""
    resets: list[float] = []
    steps: list[float] = []
    env.reset(seed=0)  # what is loaded once is not counted
    begun = time.perf_counter()
    for seed in count():
        resets.append(_timed(partial(env.reset, seed=seed))[1])
        _play(env, steps)
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            break
    fork_us, fork_step_us = _forks(env, seconds * _FORK_SHARE)
    return Speed(
        reset_us=median(resets),
        step_us=median(steps),
        fork_us=fork_us,
        fork_step_us=fork_step_us,
        episodes_per_s=len(resets) / elapsed,
        turns=len(steps) / len(resets),
    )


def _play(env: AnyEnv, steps: list[float]) -> None:
    is_over = False
    while not is_over:
        result, cost = _timed(partial(env.step, env.oracle()))
        steps.append(cost)
        is_over = result.terminated or result.truncated


def _forks(env: AnyEnv, seconds: float) -> tuple[float | None, float | None]:
    if env.unwrapped.fork_capability is envgym.ForkCapability.NONE:
        return None, None
    costs: list[float] = []
    first_turns: list[float] = []
    begun = time.perf_counter()
    for seed in count():
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            twin, cost = _timed(env.fork)
            costs.append(cost)
            action = env.oracle()
            first_turns.append(_timed(partial(twin.step, action))[1])
            twin.close()
            if time.perf_counter() - begun >= seconds:
                return median(costs), median(first_turns)
            step = env.step(action)
            is_over = step.terminated or step.truncated
    raise AssertionError("seeds do not end")


def _timed(call: Callable[[], ResultT]) -> tuple[ResultT, float]:
    start = time.perf_counter_ns()
    result = call()
    return result, (time.perf_counter_ns() - start) / 1e3


def _cells(item: Speed | str) -> Sequence[str]:
    if isinstance(item, str):
        return [*("-" for _ in _COLUMNS[:-1]), item]
    values = [getattr(item, name) for name in _COLUMNS]
    return ["-" if value is None else f"{float(f'{value:.3g}'):,.10g}" for value in values]


def _table(results: dict[str, Speed | str]) -> str:
    width = max(map(len, results))
    rows: list[Sequence[str]] = [("environment".ljust(width), *_TITLES)]
    rows += [(name.ljust(width), *_cells(item)) for name, item in results.items()]
    return "\n".join("  ".join([row[0], *(cell.rjust(11) for cell in row[1:-1]), row[-1]]) for row in rows)


def _markdown(results: dict[str, Speed | str]) -> str:
    lines = [f"| environment | {' | '.join(_TITLES)} |", f"|---|{'---:|' * len(_TITLES)}"]
    lines += [f"| `{name}` | {' | '.join(_cells(item))} |" for name, item in results.items()]
    return "\n".join(lines)
