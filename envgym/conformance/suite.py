"""The table of checks, and the one way to run them."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from envgym.conformance import cheating, contract, forks, gymnasium_api, repeats, supply
from envgym.conformance.report import Check, Failed, Skipped, Status
from envgym.conformance.subject import Subject
from envgym.wrappers import AnyEnv

CHECKS: Mapping[str, Callable[[Subject], str]] = MappingProxyType(
    {
        check.__name__: check
        for check in (
            gymnasium_api.passes_gymnasium_checker,
            gymnasium_api.runs_in_vector_env,
            repeats.same_seed_same_episode,
            repeats.no_global_rng,
            repeats.interleaved_with_another,
            repeats.in_two_threads,
            repeats.survives_pickle,
            forks.fork_agrees,
            forks.forks_are_independent,
            forks.order_is_enforced,
            contract.records_are_consistent,
            contract.hostile_actions_are_answered,
            contract.rewards_in_range,
            contract.observations_in_bound,
            supply.oracle_reaches_optimum,
            supply.splits_do_not_overlap,
            supply.answer_is_hidden,
            cheating.chance_stays_at_declared,
            cheating.all_candidates_pay_nothing,
            cheating.others_answers_pay_nothing,
            cheating.format_alone_pays_nothing,
            cheating.prompt_echo_pays_nothing,
            cheating.injections_pay_nothing,
            cheating.grader_files_pay_nothing,
            gymnasium_api.costs_are_known,
        )
    }
)
"""Name -> check; it returns what it saw, or raises `Failed` or `Skipped` with the reason."""


def run_check(name: str, subject: Subject) -> Check:
    """Run one check; whatever it raises is its result."""
    start = time.perf_counter()
    reason = subject.unchecked.get(name)
    if reason is not None:
        status, detail = Status.SKIP, f"the env declares: {reason}"
    else:
        try:
            status, detail = Status.PASS, CHECKS[name](subject)
        except Failed as failure:
            status, detail = Status.FAIL, str(failure)
        except Skipped as skip:
            status, detail = Status.SKIP, str(skip)
        except Exception as error:  # noqa: BLE001  # whatever an env raises is a finding about it
            status, detail = Status.FAIL, f"{type(error).__name__}: {error}"
    return Check(name=name, status=status, detail=" ".join(detail.split()), seconds=time.perf_counter() - start)


def check_env_conformance(make: Callable[[], AnyEnv], *, num_tasks: int = 20, seed: int = 0) -> tuple[Check, ...]:
    """Judge an environment; `make` returns a new instance at each call.

    Args:
        make: For example `functools.partial(envgym.make, "math/arithmetic-v0")`, or the env's class.
        num_tasks: Tasks of each split that are played; ten times as many are compared.
        seed: Of everything random in the suite.
    """
    subject = Subject(make=make, num_tasks=num_tasks, seed=seed)
    return tuple(run_check(name, subject) for name in CHECKS)
