"""The table of checks, and the one way to run them."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from envgym.conformance import contract, forks, gymnasium_api, red_team, repeats, task_source
from envgym.conformance.env_under_test import EnvUnderTest
from envgym.conformance.report import Check, CheckFailed, CheckSkipped, CheckStatus
from envgym.wrappers import AnyEnv

CHECKS: Mapping[str, Callable[[EnvUnderTest], str]] = MappingProxyType(
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
            task_source.oracle_reaches_optimum,
            task_source.splits_do_not_overlap,
            task_source.answer_is_hidden,
            red_team.chance_stays_at_declared,
            red_team.all_candidates_pay_nothing,
            red_team.others_answers_pay_nothing,
            red_team.format_alone_pays_nothing,
            red_team.prompt_echo_pays_nothing,
            red_team.injections_pay_nothing,
            red_team.grader_files_pay_nothing,
            gymnasium_api.costs_are_known,
        )
    }
)
"""Name -> check; it returns what it saw, or raises `CheckFailed` or `CheckSkipped` with the reason."""


def run_check(name: str, subject: EnvUnderTest) -> Check:
    """Run one check; whatever it raises is its result."""
    start = time.perf_counter()
    reason = subject.unchecked.get(name)
    if reason is not None:
        status, detail = CheckStatus.SKIP, f"the env declares: {reason}"
    else:
        try:
            status, detail = CheckStatus.PASS, CHECKS[name](subject)
        except CheckFailed as failure:
            status, detail = CheckStatus.FAIL, str(failure)
        except CheckSkipped as skip:
            status, detail = CheckStatus.SKIP, str(skip)
        except Exception as error:  # noqa: BLE001  # whatever an env raises is a finding about it
            status, detail = CheckStatus.FAIL, f"{type(error).__name__}: {error}"
    return Check(name=name, status=status, detail=" ".join(detail.split()), seconds=time.perf_counter() - start)


def check_env_conformance(make: Callable[[], AnyEnv], *, num_tasks: int = 20, seed: int = 0) -> tuple[Check, ...]:
    """Judge an environment; `make` returns a new instance at each call.

    Args:
        make: For example `functools.partial(envgym.make, "math/arithmetic-v0")`, or the env's class.
        num_tasks: Tasks of each split that are played; ten times as many are compared.
        seed: Of everything random in the suite.
    """
    subject = EnvUnderTest(make=make, num_tasks=num_tasks, seed=seed)
    return tuple(run_check(name, subject) for name in CHECKS)
