"""`envgym check`: the conformance check."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial

import envgym
from envgym.cli.common import (
    Styled,
    add_json_argument,
    add_set_argument,
    at_least_0,
    echo,
    env_kwargs,
    print_json,
    styled,
)
from envgym.conformance import CHECKS, Check, CheckStatus, as_text, is_passed
from envgym.conformance.env_under_test import EnvUnderTest
from envgym.conformance.suite import other_unchecked, run_check
from envgym.core.json_types import visible
from envgym.errors import InfrastructureError, InvalidInput, check_known
from envgym.runtime.error_log import HeldErrors, hold_errors, log_error
from envgym.runtime.processes.interrupts import describe_interrupt_by
from envgym.runtime.progress import ProgressDisplay, duration

_MAKE = "make"
"""The one entry of an environment that could not be made."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("envs", metavar="ENV", nargs="*", help="ids or import paths")
    parser.add_argument("--all", action="store_true", help="check every registered environment")
    parser.add_argument("-n", type=int, default=20, metavar="N", dest="num_tasks", help="tasks per split (default: 20)")
    parser.add_argument("--seed", type=at_least_0, default=0, help="seed of the check (default: 0)")
    parser.add_argument("--only", metavar="CHECK", action="append", help="run only this check; repeatable")
    help_tracebacks = "show the traceback of every error in the environment's code, also where its check passes"
    parser.add_argument("--tracebacks", action="store_true", help=help_tracebacks)
    add_set_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Check the environments; exit code 1 where a check fails."""
    names = args.only or list(CHECKS)
    for name in names:
        check_known("check", name, CHECKS, where="envgym check --only")
    kwargs, ids, started = env_kwargs(args.settings), _ids(args), time.monotonic()
    results: dict[str, Sequence[Check]] = {}
    describe_interrupt_by(lambda: f"{len(results)} of {len(ids)} environments were checked")
    for env_id in ids:
        subject = EnvUnderTest(make=partial(envgym.make, env_id, **kwargs), num_tasks=args.num_tasks, seed=args.seed)
        unseen = HeldErrors()
        detail = _place(len(results), len(ids), time.monotonic() - started)
        with ProgressDisplay(quiet=ids) as show:
            checks = _missing(subject, args.all)
            for done, name in enumerate(() if checks else names):
                show(env_id, done, len(names), detail)
                with hold_errors() as errors:
                    checks.append(run_check(name, subject))
                if args.tracebacks or checks[-1].status is CheckStatus.FAIL:
                    errors.log()
                else:
                    unseen.count += errors.count
                    unseen.texts.update(errors.texts)
        if not args.only and checks[0].name in CHECKS:
            checks += other_unchecked(subject)
        results[env_id] = checks
        if not args.json:
            echo(_coloured(as_text(env_id, checks)), *_unseen_lines(unseen), sep="\n", flush=True)
    if args.json:
        print_json({env_id: [asdict(check) for check in checks] for env_id, checks in results.items()})
    elif len(results) > 1:
        for line in _summary(results, time.monotonic() - started):
            echo(line)
    return 0 if all(is_passed(checks) for checks in results.values()) else 1


def _unseen_lines(unseen: HeldErrors) -> list[str]:
    """Return how many errors the passing checks raised in the environment's code, and how to see them."""
    if not unseen.count:
        return []
    times = "once" if unseen.count == 1 else f"{unseen.count} times"
    kinds = "" if unseen.count == 1 else f" ({len(unseen.texts)} {'kind' if len(unseen.texts) == 1 else 'kinds'})"
    return [
        f"  This is not a failure: the environment's code raised an error {times}{kinds}, and every such call was "
        "answered as it must be. Hostile inputs cause such errors. See them with --tracebacks."
    ]


def _place(num_done: int, total: int, seconds: float) -> str:
    """Return which environment of how many is checked, and how long the others will take if they are like the first."""
    if total == 1:
        return ""
    left = f" (about {duration(seconds / num_done * (total - num_done))} left in all)" if num_done else ""
    return f"environment {num_done + 1} of {total}{left}"


def _summary(results: Mapping[str, Sequence[Check]], seconds: float) -> Iterator[str]:
    failed = {env_id: checks for env_id, checks in results.items() if not is_passed(checks)}
    absent = {env_id: checks[0].detail for env_id, checks in results.items() if checks[0].name == _MAKE}
    passed = len(results) - len(failed) - len(absent)
    counts = f"{passed} passed, {len(failed)} failed, {len(absent)} not checked"
    yield f"{len(results)} environments in {duration(seconds)}: {counts}"
    for env_id, checks in failed.items():
        names = (check.name for check in checks if check.status is CheckStatus.FAIL)
        yield f"  failed       {env_id}: {', '.join(names)}"
    for env_id, reason in absent.items():
        yield f"  not checked  {env_id}: {reason}"


def _ids(args: argparse.Namespace) -> list[str]:
    if bool(args.envs) == args.all:
        got = "both" if args.all else "neither"
        raise InvalidInput.of("envgym check", "be given ids or --all", got, where="command line", do="name an id")
    InvalidInput.unless(args.num_tasks >= 1, "-n", "be at least 1", args.num_tasks, where="envgym check", do="raise it")
    return envgym.list_ids() if args.all else list(args.envs)


def _missing(subject: EnvUnderTest, is_one_of_all: bool) -> list[Check]:
    """Make and reset the env once; what it lacks is bad input, but skips it where all are checked.

    An env whose reset fails is one failed check: all others would fail likewise.
    """
    try:
        with closing(subject.make()) as env:
            env.reset(seed=subject.seed)
    except InvalidInput as error:
        if not is_one_of_all:
            raise
        return [Check(name=_MAKE, status=CheckStatus.SKIP, detail=str(error), seconds=0.0)]
    except InfrastructureError as error:
        log_error(error, "nothing else was checked")
        return [Check(name="reset", status=CheckStatus.FAIL, detail=str(error), seconds=0.0)]
    return []


def _coloured(text: str) -> Styled:
    text = visible(text)
    for status, colour in ((CheckStatus.PASS, "green"), (CheckStatus.FAIL, "red"), (CheckStatus.SKIP, "yellow")):
        text = text.replace(f"  {status}  ", f"  {styled(status, colour)}  ")
    return Styled(text)
